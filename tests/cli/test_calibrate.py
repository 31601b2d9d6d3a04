"""`graft calibrate`: a profile is made, told of, and used from then on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graft import load, loader
from graft.bench.results import read_results
from graft.costs import Costs
from graft.profile import Profile, load_profile, save_profile
from graft.profiles import own_place
from tests.cli.helpers import Command, assert_mistake
from tests.drafter_folders import Folders, write_drafters

SHORT = ("--quick", "--limit", "2", "-n", "12", "--budgets", "2,3", "--temperatures", "0.9")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return write_drafters(tmp_path_factory.mktemp("drafters"), max_position_embeddings=512)


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loader, "self_test", lambda engine: None)
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def suite(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    lines = [
        f'{{"task": "{task}", "prompt": "{text}"}}'
        for task, text in (("a", "hello"), ("a", "what is it"), ("b", "def f():"), ("b", "1 2 3"))
    ]
    file.write_text("\n".join(lines))
    return str(file)


@pytest.mark.parametrize("drafter", ["none", "eagle3"])
def test_a_profile_is_made_and_used(
    run: Command, folders: Folders, suite: str, drafter: str
) -> None:
    head = folders.specforge if drafter == "eagle3" else "none"
    given = ("-m", folders.target, "--head", head)
    found = run("calibrate", *given, "--suite", suite, *SHORT)
    assert found.code == 0, found.err
    rows = [line.split("|")[1].strip() for line in found.out.splitlines() if line[:1] == "|"]
    ours = ["retrieval", "dense", "graft", "graft+"] if drafter == "eagle3" else None
    assert rows[2:] == ["plain", *(ours or ["retrieval", "suffix", "graft+"])]
    place = found.out.splitlines()[-1].rpartition(" ")[2]
    profile = load_profile(place)
    assert set(profile.settings) == set(rows[3:])
    engine = load(folders.target, head=head)
    assert engine.profile == profile
    assert engine.policy == profile.policy
    assert engine.budget == profile.settings.get(profile.policy, {"budget": 0})["budget"]
    assert load(folders.target, head=head, profile="none").profile is None
    assert load(folders.target, head=head, policy="retrieval", budget=7).budget == 7
    plain = run("generate", "hello", *given, "--policy", "plain", "-n", "9")
    for policy in rows[3:]:
        again = run("generate", "hello", *given, "--policy", policy, "-n", "9")
        assert (again.code, again.out) == (0, plain.out)


def test_a_profile_for_another_model(
    run: Command, folders: Folders, suite: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "p.json")
    made = run("calibrate", "-m", folders.target, "--suite", suite, *SHORT, "--out", file)
    assert made.code == 0, made.err
    ok = run("generate", "hi", "-m", folders.target, "--profile", file, "-n", "4")
    assert ok.code == 0, ok.err
    other = run("generate", "hi", "-m", folders.stranger, "--profile", file, "-n", "4")
    assert_mistake(other, "p.json", "graft calibrate")


def test_the_transfer_between_tasks_is_told(run: Command, folders: Folders, suite: str) -> None:
    short = [option for option in SHORT if option != "--quick"]
    found = run("calibrate", "-m", folders.target, "--suite", suite, *short)
    assert found.code == 0, found.err
    if "plain is taken" not in found.out:
        lines = [line for line in found.out.splitlines() if line[:1] == "|"]
        start = next(i for i, line in enumerate(lines) if "on the others" in line)
        assert [line.split("|")[1].strip() for line in lines[start + 2 :]] == ["a", "b", "mean"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--budgets", "0"), "1 to 256"),
        (("--budgets", "many"), "budgets"),
        (("--suite", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_mistakes(run: Command, folders: Folders, options: Any, said: str) -> None:
    assert_mistake(run("calibrate", "-m", folders.target, *options), said)


def test_a_profile_may_serve_a_benchmark(
    run: Command, folders: Folders, suite: str, tmp_path: Path
) -> None:
    """Each method at its own budget; other budgets are without it."""
    file = str(tmp_path / "p.json")
    engine = load(folders.target, head=folders.specforge)
    assert engine.made_for is not None
    rule: dict[str, Any] = {
        "budget": 3,
        "depth": 2,
        "checkpoints": (0,),
        "thresholds": (1.1,),
        "kept": (1,),
    }
    settings = {"dense": {"budget": 2, "depth": 1}, "graft": rule}
    costs = Costs((1, 17), (0.02, 0.04), draft=0.003, step=0.002, round=0.001)
    save_profile(file, Profile(engine.made_for(), costs, "graft", settings, {"plain": 1.0}))
    start = ("bench", "-m", folders.target, "--suite", suite, "-n", "8", "--no-figures")
    more = ("--head", folders.specforge, "--methods", "plain,eagle3,graft,graft+,retrieval")
    out = tmp_path / "run"
    given = ("--profile", file, "--budget", "own,5", "--out", str(out))
    ran = run(*start, *more, *given)
    assert ran.code == 0, ran.err
    results = read_results(out / "results.jsonl")
    budgets: dict[str, set[int]] = {}
    for m in results.measurements:
        budgets.setdefault(m.method, set()).add(m.budget)
        if (m.method, m.budget) == ("eagle3", 2):
            assert m.draft_steps <= m.rounds
    assert budgets == {
        "plain": {0}, "eagle3": {2, 5}, "graft": {3, 5}, "graft+": {16, 5}, "retrieval": {4, 5}
    }  # fmt: skip
    stages = {m.budget: set(m.round_stages) for m in results.measurements if m.method == "graft"}
    assert stages[3] == {"d0"}
    assert results.environment["settings"]["profile"]["dense"] == {"budget": 2, "depth": 1}
    other = run(*start[:2], folders.stranger, *start[3:], "--profile", file, "--out", str(out))
    assert_mistake(other, "p.json", "graft calibrate")


def test_the_floor_is_measured_and_not_read_from_a_profile(run: Command, folders: Folders) -> None:
    engine = load(folders.target, head="none")
    assert engine.made_for is not None
    here = engine.made_for()
    old = Costs((1, 17), (4321.0, 4321.0))
    save_profile(own_place(here), Profile(here, old, "graft+", {}, {"plain": 1.0}))
    assert load(folders.target, head="none").costs() == old
    found = run("bench", "floor", "-m", folders.target, "--head", "none", "--budget", "4")
    assert found.code == 0, found.err
    assert "verify 5 rows" in found.out
    assert "4321" not in found.out.replace(",", "")
