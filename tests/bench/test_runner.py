"""The runner: who is asked what, in which order, with whose matrix, and what is written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from graft.bench.conversation import turn_ids
from graft.bench.item import Item
from graft.bench.measurement import Measurement
from graft.engine import Engine
from graft.matrix import AdjacencyMatrix
from graft.sampling_params import SamplingParams
from tests.bench.running import (
    ITEMS,
    LENGTH,
    engines,
    lines_of,
    opened,
    plan,
    run,
    watched,
    without_times,
)
from tests.exactness.drafting import plainly

MANY = "plain,lookup,retrieval,graft,hf,hf-lookup"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[Measurement]:
    """All kinds of methods, two budgets, two temperatures, two batch sizes."""
    what = plan(MANY, budgets=(3, 4), temperatures=(0.0, 0.8), batches=(1, 2))
    return run(tmp_path_factory.mktemp("many"), what)


class TestEverything:
    def test_every_case_answers_every_turn_once(self, many: list[Measurement]) -> None:
        what = plan(MANY, budgets=(3, 4), temperatures=(0.0, 0.8), batches=(1, 2))
        turns = sum(len(item.turns) for item in ITEMS)
        # 2 temperatures; at batch 1 plain, hf once, the others twice; at batch 2 without hf's.
        assert len(what.cases) == 2 * ((2 + 4 * 2) + (1 + 3 * 2))
        assert len(many) == len({m.key for m in many}) == turns * len(what.cases)
        assert set(Counter(m.case for m in many).values()) == {turns}
        assert {m.batch for m in many if m.method.startswith("hf")} == {1}

    def test_all_say_what_plain_says(self, many: list[Measurement]) -> None:
        assert [m.difference for m in many] == [None] * len(many)
        greedy = [m for m in many if m.temperature == 0]
        said = {(m.id, m.task, m.turn): m.token_ids for m in greedy if m.method == "plain"}
        same = [m.token_ids == said[m.id, m.task, m.turn] or m.excused == 1 for m in greedy]
        assert all(same)
        # Another generator: were these compared, they would count as faults.
        drawn = [m for m in many if m.temperature and m.method == "hf"]
        plain = {m.key[:3]: m for m in many if m.temperature and m.case[0] == "plain"}
        assert any(m.token_ids != plain[m.key[:3]].token_ids for m in drawn)

    def test_the_arithmetic(self, many: list[Measurement]) -> None:
        for m in many:
            assert m.completion_tokens == len(m.token_ids) <= LENGTH
            assert m.latency_seconds == pytest.approx(m.time_to_first_token + m.decode_seconds)
            assert m.finish_reason == ("length" if len(m.token_ids) == LENGTH else "stop")
            if m.method.startswith("hf"):
                assert m.sources == ""
                continue
            accepted = m.accepted_draft + m.accepted_retrieved
            assert 1 + accepted + m.rounds - m.trimmed == m.completion_tokens
            assert len(m.round_tokens) == len(m.round_stages) == m.rounds
            assert sum(m.round_tokens) == accepted + m.rounds
            assert m.tau == pytest.approx(sum(m.round_tokens) / m.rounds)
            assert sum(m.round_draft) == m.proposed_draft
            assert sum(m.round_retrieved) == m.proposed_retrieved
            proposed = m.proposed_draft + m.proposed_retrieved
            assert proposed + m.empty_slots == m.rounds * m.budget
            assert m.sources == "t" + m.sources[1:]
            assert len(m.sources) == m.completion_tokens
            assert m.hits <= m.lookups
            assert m.matrix == ("warm" if m.method in ("retrieval", "graft") else "none")

    def test_something_was_accepted(self, many: list[Measurement]) -> None:
        taken = Counter[str]()
        for m in many:
            taken[m.method] += m.accepted_draft
        assert taken["graft"] > 0
        assert taken["retrieval"] == taken["plain"] == 0


class TestOrder:
    def test_the_first_case_is_another_one_each_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = watched(monkeypatch)
        run(tmp_path, plan("plain,lookup,retrieval"))
        order = [policy for _, policy, _, size, _ in calls if size == LENGTH]
        rounds = [order[i : i + 3] for i in range(0, len(order), 3)]
        assert [r[0] for r in rounds] == ["plain", "lookup", "retrieval", "plain", "plain"]
        assert all(sorted(r) == ["lookup", "plain", "retrieval"] for r in rounds)

    def test_batches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = watched(monkeypatch)
        items = [Item("t", str(i), (f"number {i}",)) for i in range(7)]
        found = run(tmp_path, plan("plain", items, batches=(2, 3)))
        sizes = [len(prompts) for _, _, prompts, size, _ in calls if size == LENGTH]
        # Six fill batches of both sizes; no batch is cut but by the end.
        assert sorted(sizes) == [1, 1, 2, 2, 2, 3, 3]
        assert Counter(m.batch for m in found) == {2: 7, 3: 7}

    def test_all_cases_warm_up_and_nothing_of_it_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = watched(monkeypatch)
        with opened(tmp_path, plan("plain,retrieval,graft", batches=(1, 2))) as runner:
            answers = runner.run()
            runner._begin()
            policies = Counter((policy, len(prompts)) for _, policy, prompts, _, _ in calls)
            assert policies == dict.fromkeys(
                [(p, b) for p in ("plain", "retrieval", "graft") for b in (1, 2)], 1
            )
            assert all(int(ids.max()) == -1 for ids in runner._memories.learnt().values())
            answers.close()  # type: ignore[attr-defined]
        assert lines_of(tmp_path) == []


class TestMatrices:
    def test_no_case_learns_from_another(self, tmp_path: Path) -> None:
        together = run(tmp_path / "a", plan("plain,retrieval,graft", budgets=(3, 4)))
        for method in ("retrieval", "graft"):
            for budget in (3, 4):
                alone = run(tmp_path / f"{method}{budget}", plan(method, budgets=(budget,)))
                theirs = [m for m in together if (m.method, m.budget) == (method, budget)]
                assert without_times(theirs) == without_times(alone)

    def test_the_engines_own_is_left_alone(self, tmp_path: Path) -> None:
        made = engines()
        own = {kind: engine.matrix for kind, engine in made.items()}
        before = {kind: matrix.ids.clone() for kind, matrix in own.items()}
        run(tmp_path, plan("plain,retrieval,graft"), made)
        for kind, engine in made.items():
            assert engine.matrix is own[kind]
            assert torch.equal(engine.matrix.ids, before[kind])

    def test_warm_is_kept_and_cold_is_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same prompt twice: the second time is faster, warm, and as the first one, cold."""
        items = [Item("t", str(i), ("hello hello",)) for i in range(3)]
        for matrix in ("warm", "cold"):
            what = plan("retrieval", items, batches=(1, 2), matrix=matrix)
            found = run(tmp_path / matrix, what)
            assert {m.matrix for m in found} == {matrix}
            for batch in (1, 2):
                first, _, third = (m for m in found if m.batch == batch)
                assert (third.rounds < first.rounds) == (matrix == "warm")
                assert (third.hits > first.hits) == (matrix == "warm")

    def test_cold_is_empty_for_each_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a batch too: nobody learns from a neighbour, and no turn from an earlier one."""
        held: list[int] = []
        real = AdjacencyMatrix.clear

        def clear(self: AdjacencyMatrix, table: int | None = None) -> None:
            real(self, table)
            held.append(self.count)

        monkeypatch.setattr(AdjacencyMatrix, "clear", clear)
        turns = [Item("t", str(i), (f"hello {i}", "and then")) for i in range(3)]
        found = run(tmp_path / "all", plan("plain,retrieval", turns, batches=(1, 3), matrix="cold"))
        # Each request has a table that is cleared for it: alone in its slot, or one of three. Six
        # of each, one warm-up alone and one of three.
        assert Counter(held) == {1: 7, 3: 9}
        alone = []
        for item in turns:
            alone += run(tmp_path / item.id, plan("plain,retrieval", [item], matrix="cold"))
        mine = {m.key: m for m in without_times(alone)}
        for m in without_times(found):
            if m.batch == 1:
                assert m == mine[m.key]
            else:
                single = next(o for o in mine.values() if o.key[:5] == m.key[:5])
                assert m.token_ids == single.token_ids
                assert (m.hits, m.lookups) == (single.hits, single.lookups)

    def test_cold_engines_and_a_warm_plan_do_not_go_together(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError), opened(tmp_path, plan(), engines("cold")):
            pass
        with pytest.raises(AssertionError), opened(tmp_path, plan(matrix="cold"), engines()):
            pass


def test_others_are_asked_for_by_name_and_when_needed(tmp_path: Path) -> None:
    with opened(tmp_path, plan("plain,hf,hf-lookup", ITEMS[:2])) as runner:
        asked: list[str] = []
        real = runner._outside
        runner._outside = lambda method: asked.append(method) or real(method)  # type: ignore[func-returns-value]
        list(runner.run())
    assert set(asked) == {"hf", "hf-lookup"}
    with opened(tmp_path / "b", plan("plain", ITEMS[:1])) as runner:
        runner._outside = pytest.fail
        list(runner.run())


def test_answers_are_those_of_plain_decoding_of_the_prompt(tmp_path: Path) -> None:
    (found,) = run(tmp_path, plan("retrieval", ITEMS[:1], temperatures=(0.8,)))
    engine: Engine = engines()[None]
    prompt = turn_ids(ITEMS[0], [], engine.tokenizer)
    params = SamplingParams(temperature=0.8, max_new_tokens=LENGTH, seed=0)
    assert found.token_ids == plainly(prompt, params)
