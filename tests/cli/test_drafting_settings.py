"""Settings of drafting and retrieval, templates and matrices arrive from the command line."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from graft import loader
from graft.engine import Engine
from graft.metrics import LAPS
from graft.settings import EngineSettings
from tests.cli.drafting import LENGTH, generate, options
from tests.cli.helpers import Command, assert_mistake
from tests.drafter_folders import Folders, write_drafters


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return write_drafters(tmp_path_factory.mktemp("drafters"), max_position_embeddings=256)


@pytest.fixture(autouse=True)
def _untested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "self_test", lambda engine: None)


def test_every_setting_of_drafting_arrives(
    run: Command, folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Engine] = []
    real = Engine.stream

    def spy(self: Engine, *arguments: Any, **given: Any) -> Any:
        seen.append(self)
        return real(self, *arguments, **given)

    monkeypatch.setattr(Engine, "stream", spy)
    given = f"""--policy graft --budget 8 --preset paper-16 --beam 3 --depth 4 --checkpoints 0,2
        --thresholds 0.3,0.25 --kept 1,2 --dedup skip --no-refill --k 6 --matrix {tmp_path / "m"}
        --matrix-scope file --prompt-learning logits --head-window 7"""
    head = options(folders, "eagle3")
    start = ("generate", "x", "-m", folders.target, "-n", "2")
    assert run(*start, *head, *given.split()).code == 0
    expected = EngineSettings(
        policy="graft",
        budget=8,
        preset="paper-16",
        beam=3,
        depth=4,
        checkpoints=(0, 2),
        thresholds=(0.3, 0.25),
        kept=(1, 2),
        dedup="skip",
        refill=False,
        k=6,
        matrix_scope="file",
        prompt_learning="logits",
    )
    assert [engine.settings for engine in seen] == [expected]
    drafter: Any = seen[0].drafter
    assert [layer.self_attn.window for layer in drafter.head.layers] == [7]
    default = EngineSettings()
    same = [
        f.name for f in fields(default) if getattr(expected, f.name) == getattr(default, f.name)
    ]
    assert same == ["max_batch", "without"]  # a new setting needs an option, and a place above


def test_without_options_the_settings_are_the_librarys(
    run: Command, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[EngineSettings] = []
    real = Engine.__init__

    def spy(self: Engine, *arguments: Any, **given: Any) -> None:
        seen.append(given["settings"])
        real(self, *arguments, **given)

    monkeypatch.setattr(Engine, "__init__", spy)
    assert run("generate", "x", "-m", folders.target, "-n", "2").code == 0
    assert seen == [EngineSettings()]


@pytest.mark.parametrize("more", [(), ("--no-refill", "--dedup", "skip")])
def test_stages_are_counted_and_shown(
    run: Command, folders: Folders, more: tuple[str, ...]
) -> None:
    given = ("--checkpoints", "0,1", "--thresholds", "0.15,0.1", "--kept", "1,2", "--depth", "4")
    model = (*options(folders, "model"), *given, *more)
    found = generate(run, folders, *model)
    stages = found["stats"]["stage_histogram"]
    assert len(stages) >= (3 if not more else 2)
    assert found["token_ids"] == generate(run, folders, "--policy", "plain")["token_ids"]
    start = ("generate", "hello hello", "-m", folders.target, "-n", str(LENGTH), "--budget", "8")
    ran = run(*start, "--ignore-eos", *model)
    shown = ", ".join(f"{name} {stages[name]}" for name in ("d0", "d1", "full") if name in stages)
    assert f" · stages {shown} · " in ran.err
    plain = run(*start, "--policy", "dense", *options(folders, "model"))
    assert "stages" not in plain.err


def test_never_and_always(run: Command, folders: Folders) -> None:
    model = options(folders, "model")
    never = generate(run, folders, *model, "--checkpoints", "", "--thresholds", "", "--kept", "")
    assert list(never["stats"]["stage_histogram"]) == ["full"]
    always = generate(run, folders, *model, "--checkpoints", "0", "--thresholds", "2")
    assert list(always["stats"]["stage_histogram"]) == ["d0"]
    assert always["stats"]["draft_steps"] == 0
    assert always["token_ids"] == never["token_ids"]


def test_json_holds_what_every_round_records(run: Command, folders: Folders) -> None:
    stats = generate(run, folders, *options(folders, "model"), "--policy", "graft")["stats"]
    slots = "kept_draft released_slots redirected empty_slots unspent_slots rows_written"
    counters = ["rounds", "draft_steps", "trimmed", *slots.split()]
    for source in ("draft", "retrieved", "context"):
        counters += [f"accepted_{source}", f"proposed_{source}"]
    ratios = "tau draft_accept_ratio retrieved_accept_ratio verification_waste"
    ratios += " matrix_hit_rate context_hit_rate"
    times = "prefill_seconds decode_seconds time_to_first_token tokens_per_second lookup_seconds"
    named = [*counters, *ratios.split(), *times.split(), "stage_histogram", "time_split"]
    assert set(named) == set(stats)
    assert all(isinstance(stats[name], int) and stats[name] >= 0 for name in counters)
    assert set(stats["time_split"]) == set(LAPS)
    assert sum(stats["time_split"].values()) == pytest.approx(1)
    rounds, accepted = stats["rounds"], stats["accepted_draft"] + stats["accepted_retrieved"]
    assert 1 + accepted + rounds - stats["trimmed"] == LENGTH
    assert sum(stats["stage_histogram"].values()) == rounds
    proposed = stats["proposed_draft"] + stats["proposed_retrieved"]
    assert proposed + stats["empty_slots"] + stats["unspent_slots"] == rounds * 8
    assert stats["kept_draft"] + stats["released_slots"] == rounds * 8
    assert stats["tau"] == pytest.approx(1 + accepted / rounds)
    assert stats["verification_waste"] == pytest.approx(1 - accepted / proposed)
    assert accepted > 0


def test_presets(run: Command, folders: Folders) -> None:
    start = ("verify", "-m", folders.target, "-p", "hello", "-n", "4", "--samples", "0", "--json")
    for budget in (60, 16, 4):
        found = json.loads(run(*start, "--preset", f"paper-{budget}").out)
        assert (found["budget"], found["same"]) == (budget, True)
    assert json.loads(run(*start, "--preset", "paper-16", "--budget", "5").out)["budget"] == 5


# --- templates and matrices ---
def test_templates(run: Command, folders: Folders, tmp_path: Path) -> None:
    model = (*options(folders, "model"), "--checkpoints", "0,1")
    files = []
    for i, paths in enumerate([[[0]], [[0], [1]], [[0], [0, 0]]]):
        file = tmp_path / f"{i}.json"
        file.write_text(json.dumps({"paths": paths}))
        files += ["--template", str(file)]
    plain = generate(run, folders, "--policy", "plain", *files)["token_ids"]
    for given in (files[:2], files):
        assert generate(run, folders, *model, *given)["token_ids"] == plain
    start = ("generate", "x", "-m", folders.target, "-n", "2", *model)
    assert_mistake(run(*start, *files[:4]), "2 templates", "d0, d1, full")


def test_a_matrix_in_a_file(run: Command, folders: Folders, tmp_path: Path) -> None:
    file = tmp_path / "m.matrix"
    keeping = ("--matrix", str(file), "--matrix-scope", "file", "--policy", "retrieval")
    cold = generate(run, folders, *keeping)
    assert file.exists()
    first = file.read_bytes()
    warm = generate(run, folders, *keeping)
    assert warm["token_ids"] == cold["token_ids"]
    assert warm["stats"]["tau"] > cold["stats"]["tau"]
    kept = file.read_bytes()
    assert kept != first
    generate(run, folders, "--matrix", str(file))
    assert file.read_bytes() == kept  # read alone
    file.write_bytes(kept[:-5])
    start = ("generate", "x", "-m", folders.target)
    assert_mistake(run(*start, *keeping), "m.matrix")
    assert file.read_bytes() == kept[:-5]


def test_verify_and_chat_keep_a_matrix_too(run: Command, folders: Folders, tmp_path: Path) -> None:
    for name in ("verify", "chat"):
        keeping = ("--matrix", str(tmp_path / name), "--matrix-scope", "file", "-n", "4")
        more = ("-p", "hello", "--samples", "0") if name == "verify" else ()
        assert run(name, "-m", folders.target, *keeping, *more, stdin=b"one\n").code == 0
        assert "rows" in run("matrix", "info", str(tmp_path / name)).out
