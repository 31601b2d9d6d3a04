"""`graft train`: from prompts to a head that loads, in two commands."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from graft.cli.train import data_command, head_command
from graft.drafters.eagle3.facts import TargetFacts
from graft.drafters.eagle3.loader import load_head
from graft.train.data_folder import read_answers
from graft.train.distill import DistillSettings
from graft.train.evaluation import Trees
from graft.train.settings import TrainSettings
from tests.cli.helpers import Command

HEAD = ("--draft-vocab", "200", "--test-steps", "3", "--epochs", "3", "--group-tokens", "128")
HEAD += ("--max-length", "200", "--held-out", "3", "--trees", "8,3,3,2,8", "--dtype", "fp32")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [{"id": i, "prompt": f"Count to {i} in words"} for i in range(14)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def data(run: Command, model: str, prompts: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    options = ("--prompts", str(prompts), "--out", str(folder), "-n", "24", "--batch", "5")
    assert run("train", "data", "--model", model, *options).code == 0
    return folder


def test_data_are_answers_to_all_prompts(data: Path) -> None:
    answers = list(read_answers(data))
    assert sorted(int(a.id) for a in answers) == list(range(14))
    assert {a.temperature for a in answers} == {0.0, 0.7}


def test_data_again_is_nothing_to_do(run: Command, model: str, prompts: Path, data: Path) -> None:
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    options = ("--prompts", str(prompts), "--out", str(data), "-n", "24")
    found = run("train", "data", "--model", model, *options)
    assert (found.code, found.out) == (0, "")
    assert {path.name: path.read_bytes() for path in data.iterdir()} == before


@pytest.mark.parametrize("form", ["specforge", "speculators"])
def test_a_head_is_trained_and_loads(
    run: Command, model: str, data: Path, tmp_path: Path, form: str
) -> None:
    head = tmp_path / "head"
    given = ("train", "head", "--model", model, "--data", str(data), "--out", str(head))
    found = run(*given, *HEAD, "--evaluate-every", "2", "--format", form)
    assert found.code == 0, found.err
    for said in ("12 answers", "2 kept aside", "covers", "held out", f"the head is in {head}"):
        assert said in found.err
    target = TargetFacts("tiny", 64, 256, 256, 3)
    loaded = load_head(head, target)
    assert loaded.report.draft_vocab_size == 200
    assert loaded.report.format == form
    card = (head / "README.md").read_text()
    assert "answer tokens seen" in card
    log = [json.loads(line) for line in (head / "training.jsonl").read_text().splitlines()]
    assert log[0]["model"] == "tiny"
    assert log[-1]["held_out_tau"] >= 1
    again = run("generate", "Hello", "--model", model, "--head", str(head), "-n", "8")
    plain = run("generate", "Hello", "--model", model, "--policy", "plain", "-n", "8")
    assert (again.code, again.out) == (0, plain.out)


def test_a_finished_run_is_not_done_again(
    run: Command, model: str, data: Path, tmp_path: Path
) -> None:
    given = ("train", "head", "--model", model, "--data", str(data), "--out", str(tmp_path / "h"))
    assert run(*given, *HEAD).code == 0
    weights = (tmp_path / "h" / "model.safetensors").read_bytes()
    found = run(*given, *HEAD)
    assert found.code == 0
    assert "going on from step" in found.err
    assert (tmp_path / "h" / "model.safetensors").read_bytes() == weights


def test_a_head_is_trained_on(run: Command, model: str, data: Path, tmp_path: Path) -> None:
    given = ("train", "head", "--model", model, "--data", str(data))
    assert run(*given, "--out", str(tmp_path / "a"), *HEAD).code == 0
    more = run(*given, "--out", str(tmp_path / "b"), "--from", str(tmp_path / "a"), *HEAD)
    assert more.code == 0, more.err
    logs = [
        [json.loads(line) for line in (tmp_path / n / "training.jsonl").read_text().splitlines()]
        for n in "ab"
    ]
    assert logs[1][1]["loss"] < logs[0][1]["loss"]
    card = (tmp_path / "b" / "README.md").read_text()
    assert re.search(r"trained on from \| a \([0-9a-f]{12}\)", card)
    assert str(tmp_path) not in card  # it may be published


def test_defaults_are_the_librarys() -> None:
    """They stand in the commands' signatures too, for the help."""
    for command, settings in ((data_command, DistillSettings()), (head_command, TrainSettings())):
        shown = inspect.signature(command).parameters
        for name, value in asdict(settings).items():
            assert shown[name].default == value, name
    assert inspect.signature(head_command).parameters["trees"].default == ",".join(
        map(str, asdict(Trees()).values())
    )


def test_mistakes_are_one_line(run: Command, model: str, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    given = ("train", "head", "--model", model, "--out", str(out))
    for options, said in (
        (("--data", str(tmp_path / "absent")), "cannot read"),
        (("--data", str(tmp_path)), "no data folder"),
        (("--data", str(data), "--max-length", "4096"), "holds 256 tokens"),
        (("--data", str(data), "--trees", "8,3"), "--trees"),
        (("--data", str(data), "--trees", "8,3,3,2,0"), "--trees"),
        (("--data", str(data), "--feature-layers", "1,x"), "--feature-layers"),
        (("--data", str(data), "--max-length", "200", "--feature-layers", "9"), "feature layer 9"),
        (("--data", str(data), "--rate", "7"), "rate=7"),
        (("--data", str(data), "--max-length", "8"), "nothing is left"),
        (("--data", str(data), "--from", str(tmp_path), "--max-length", "200"), "config.json"),
    ):
        found = run(*given, *options)
        assert found.code == 2, options
        assert found.err.splitlines()[-1].startswith("error: "), found.err
        assert said in found.err, found.err
        assert "Traceback" not in found.err
        assert not out.exists()


def test_a_folder_of_other_things_is_not_replaced(
    run: Command, model: str, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "thesis.txt").write_text("years")
    given = ("train", "head", "--model", model, "--data", str(data))
    found = run(*given, "--out", str(tmp_path / "head"))
    assert found.code == 2
    assert "holds other things" in found.err
