"""A run that was killed, wherever, and goes on, gives the lines of one that was not.

Warm matrices are what makes this hard: what later answers cost depends on all earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graft.bench.journal import Entry, Journal
from graft.bench.measurement import Measurement
from graft.bench.memories import Memories
from graft.bench.results_writer import ResultsWriter
from graft.bench.runner import Plan
from graft.engine import Engine
from tests.bench.factory import make_measurement, write_results
from tests.bench.running import (
    ITEMS,
    engines,
    lines_of,
    opened,
    plan,
    run,
    spoil,
    watched,
    without_times,
)

METHODS = "plain,retrieval,graft"


class Killed(BaseException):
    """As Ctrl-C or a signal, at a place that a test chooses."""


def _killing(real: Callable[..., Any], at: int, *, after: bool) -> Callable[..., Any]:
    """The call number `at` (from 0) dies, before or after it has done its work."""
    calls = iter(range(10**6))

    def call(*args: Any, **options: Any) -> Any:
        dies = next(calls) == at
        if dies and not after:
            raise Killed
        found = real(*args, **options)
        if dies:
            raise Killed
        return found

    return call


# What dies, at which call, and whether it has been done by then. A whole run has four groups of
# three cases, 15 lines; three calls of the engine warm up.
DEATHS = [
    (Engine, "generate", 0, False),
    (Engine, "generate", 5, True),
    (Engine, "generate", 12, False),
    (Journal, "write", 0, False),
    (Journal, "write", 0, True),
    (Journal, "write", 2, False),
    (Journal, "write", 2, True),
    (Journal, "write", 3, True),
    (ResultsWriter, "append", 7, True),
    (ResultsWriter, "append", 10, False),
    (ResultsWriter, "append", 14, True),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Measurement]:
    """A run that nobody disturbed."""
    return without_times(run(tmp_path_factory.mktemp("whole"), plan(METHODS)))


@pytest.mark.parametrize(("owner", "name", "at", "after"), DEATHS)
def test_a_killed_run_goes_on(
    whole: list[Measurement], tmp_path: Path, owner: type, name: str, at: int, after: bool
) -> None:
    before = _killed(tmp_path, plan(METHODS), owner, name, at, after)
    assert before == whole[: len(before)]
    assert (len(before) < len(whole)) or (name, at, after) == ("append", 14, True)
    assert without_times(run(tmp_path, plan(METHODS))) == whole


def test_with_cold_memories(tmp_path: Path) -> None:
    what = plan(METHODS, matrix="cold")
    _killed(tmp_path / "a", what, ResultsWriter, "append", 7, True)
    found = without_times(run(tmp_path / "a", what))
    assert found == without_times(run(tmp_path / "b", what))


def _killed(
    folder: Path, what: Plan, owner: type, name: str, at: int, after: bool
) -> list[Measurement]:
    """What a run has written when it dies there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, _killing(getattr(owner, name), at, after=after))
        with pytest.raises(Killed):
            run(folder, what)
    return without_times(lines_of(folder))


def test_killed_again_and_again(whole: list[Measurement], tmp_path: Path) -> None:
    for at in (1, 0, 2, 1, 3, 1):
        _killed(tmp_path, plan(METHODS), ResultsWriter, "append", at, True)
    assert without_times(run(tmp_path, plan(METHODS))) == whole


def test_without_the_journal_it_is_refused(whole: list[Measurement], tmp_path: Path) -> None:
    _killed(tmp_path, plan(METHODS), ResultsWriter, "append", 7, True)
    (tmp_path / "journal.safetensors").unlink()
    with pytest.raises(ValueError, match="what retrieval K=4 T=0 B=1 had learnt is not in"):
        run(tmp_path, plan(METHODS))


def test_with_memories_that_are_lost_it_would_not(
    whole: list[Measurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: rounds tell whether what was learnt is there."""
    _killed(tmp_path, plan(METHODS), Journal, "write", 2, False)
    monkeypatch.setattr(Memories, "take", lambda self, learnt: None)
    found = without_times(run(tmp_path, plan(METHODS)))
    assert [m.token_ids for m in found] == [m.token_ids for m in whole]
    assert found != whole


def test_a_finished_run_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tmp_path, plan())
    (tmp_path / "journal.safetensors").unlink()  # of no use any more
    calls = watched(monkeypatch)
    assert run(tmp_path, plan()) == first
    assert calls == []


def test_keys_are_those_of_the_lines(tmp_path: Path) -> None:
    with opened(tmp_path, plan("plain,retrieval,hf", temperatures=(0.0, 1.0))) as runner:
        found = [line.key for lines in runner.run() for line in lines]
        assert sorted(found) == sorted(runner.keys)


class TestAddedTo:
    def test_more_prompts(self, tmp_path: Path) -> None:
        """What was there stays; what comes is learnt upon what was there."""
        few = [item for item in ITEMS if item.id in "01"]
        first = run(tmp_path / "a", plan("plain,retrieval", few))
        found = run(tmp_path / "a", plan("plain,retrieval"))
        assert found[: len(first)] == first
        assert [m.id for m in found[len(first) :]] == ["2", "2"]
        # As if they had been asked in this order.
        wanted = run(tmp_path / "b", plan("plain,retrieval", [*few, ITEMS[3]]))
        assert without_times(found) == without_times(wanted)

    def test_more_methods(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those that were there are not asked again; the new ones are judged all the same."""
        what = plan("plain,retrieval", temperatures=(0.8,), batches=(2,))
        first = run(tmp_path / "a", what)
        calls = watched(monkeypatch)
        more = plan("plain,retrieval,lookup,graft", temperatures=(0.8,), batches=(2,))
        found = run(tmp_path / "a", more)
        warmed = 4
        assert {policy for _, policy, *_ in calls[warmed:]} == {"lookup", "graft"}
        assert found[: len(first)] == first
        together = {m.key: m for m in without_times(run(tmp_path / "b", more))}
        assert {m.key: m for m in without_times(found)} == together

    def test_more_methods_with_a_fault(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run(tmp_path, plan("plain"))
        spoil(monkeypatch, "lookup")
        found = run(tmp_path, plan("plain,lookup"))
        assert {m.difference for m in found if m.method == "lookup"} == {3}

    def test_a_matrix_is_kept_for_a_case_that_pauses(self, tmp_path: Path) -> None:
        few = ITEMS[:2]
        run(tmp_path / "a", plan("plain,retrieval,graft", few))
        run(tmp_path / "a", plan("plain,graft", ITEMS[:3]))
        found = run(tmp_path / "a", plan("plain,retrieval,graft", ITEMS[:3]))
        wanted = run(tmp_path / "b", plan("plain,retrieval,graft", ITEMS[:3]))
        by_key = {m.key: m for m in without_times(found)}
        assert by_key == {m.key: m for m in without_times(wanted)}


class TestJournal:
    ENTRY = Entry(
        [make_measurement(), make_measurement(id="多\n")],
        {"graft K=4 T=0 B=1": torch.arange(6, dtype=torch.int32).view(3, 2)},
    )

    def _journal(self, folder: Path, fingerprint: str = "f", **environment: Any) -> Journal:
        if not (folder / "results.jsonl").exists():
            write_results(folder / "results.jsonl", [], **environment)
        return Journal(folder, fingerprint)

    def test_round_trip(self, tmp_path: Path) -> None:
        journal = self._journal(tmp_path)
        assert journal.read() is None
        journal.write(Entry([], {}))
        assert journal.read() == Entry([], {})
        journal.write(self.ENTRY)
        found = self._journal(tmp_path).read()
        assert found is not None
        assert found.lines == self.ENTRY.lines
        (name,) = self.ENTRY.memories
        assert torch.equal(found.memories[name], self.ENTRY.memories[name])
        assert [p.name for p in tmp_path.glob("journal*")] == ["journal.safetensors"]

    def test_of_another_run(self, tmp_path: Path) -> None:
        """Who removes the results begins anew."""
        self._journal(tmp_path).write(self.ENTRY)
        (tmp_path / "results.jsonl").unlink()
        assert self._journal(tmp_path, time="another").read() is None

    def test_of_another_tokenizer(self, tmp_path: Path) -> None:
        self._journal(tmp_path).write(self.ENTRY)
        with pytest.raises(ValueError, match="another tokenizer"):
            self._journal(tmp_path, "g").read()

    def test_damaged(self, tmp_path: Path) -> None:
        journal = self._journal(tmp_path)
        journal.write(self.ENTRY)
        journal.path.write_bytes(journal.path.read_bytes()[:-5])
        with pytest.raises(ValueError, match=r"journal\.safetensors is damaged"):
            journal.read()

    def test_a_folder_in_its_place(self, tmp_path: Path) -> None:
        journal = self._journal(tmp_path)
        journal.path.mkdir()
        with pytest.raises(ValueError, match="cannot be written"):
            journal.write(self.ENTRY)
        assert not journal.path.with_suffix(".part").exists()

    def test_a_matrix_of_another_shape(self, tmp_path: Path) -> None:
        run(tmp_path, plan("retrieval", ITEMS[:1]))
        with (
            pytest.raises(ValueError, match="had learnt another memory"),
            opened(tmp_path, plan("retrieval"), engines(k=6)) as runner,
        ):
            list(runner.run())
