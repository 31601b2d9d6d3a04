"""Rounds played over a recorded answer accept what real decoding accepted, round by round."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graft.assembly import make_parts, pick_drafter
from graft.costs import Costs
from graft.engine import Engine
from graft.matrix import AdjacencyMatrix
from graft.memory import Memory
from graft.metrics import Stats
from graft.replay import Played, Recording, every_step, play, record
from graft.settings import EngineSettings
from graft.spending import Paying
from tests.cost_tables import DEAR
from tests.exactness.drafting import DRAFTERS, engine
from tests.exactness.helpers import PROMPTS

PROMPT = PROMPTS[0]
BUDGET, BEAM, DEPTH = 16, 5, 6
COSTS = Costs((1, 61), (0.01, 0.07), draft=0.002, step=0.003, round=0.001)


def answered(drafter: str | None, policy: str, **settings: Any) -> tuple[Engine, list[int], Any]:
    made = engine(DRAFTERS[drafter]() if drafter else None, budget=BUDGET, **settings)
    result = made.generate(PROMPT, policy=policy, max_new_tokens=60, ignore_eos=True)
    return made, result.token_ids, result.stats


def recorded(made: Engine, answer: list[int]) -> Recording:
    plan = every_step(10 * BUDGET, BEAM, DEPTH)  # every candidate
    return record(made.target, made.drafter, made.matrix, plan, PROMPT, answer)


def played(
    made: Engine, answer: list[int], policy: Any, costs: Costs = COSTS, **changes: Any
) -> Played:
    recording = recorded(made, answer)
    settings: EngineSettings = made.settings.having(policy=policy, **changes)
    memory = Memory(AdjacencyMatrix(256, 8, torch.device("cpu")))
    shape = "suffix" if policy == "graft+" and made.drafter is None else policy
    plan = settings.plan(shape, BUDGET)
    drafter = pick_drafter(policy, made.drafter)
    parts = make_parts(settings, policy, plan, memory, made.templates, drafter, 1, costs)
    return play(recording, parts.grafter, parts.spending, costs)


def to_the_end(stats: Stats) -> list[int]:
    """Nodes accepted per round, without those behind the end of the answer."""
    accepted = [r.accepted for r in stats.round_records]
    return [*accepted[:-1], accepted[-1] - stats.trimmed]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("policy", ["dense", "pruned", "rasd"])
@pytest.mark.parametrize("thresholds", [None, (0.9, 0.5, 0.2), (0.0, 0.0, 1.5)])
def test_a_drafter_is_replayed_exactly(drafter: str, policy: str, thresholds: Any) -> None:
    made, answer, stats = answered(drafter, policy, thresholds=thresholds)
    found = played(made, answer, policy)
    assert found.accepted == to_the_end(stats)
    assert found.steps == stats.draft_steps
    rows = stats.proposed_draft + stats.proposed_retrieved + stats.rounds
    assert found.rows == rows
    assert found.tokens == len(answer) - 1  # the first one belongs to no round


def test_contexts_are_replayed_exactly() -> None:
    made, answer, stats = answered(None, "suffix")
    found = played(made, answer, "suffix")
    assert found.accepted == to_the_end(stats)


@pytest.mark.parametrize(("policy", "drafter"), [("retrieval", None), ("graft", "model")])
def test_a_matrix_is_replayed_but_for_what_nobody_verified(policy: str, drafter: Any) -> None:
    made, answer, stats = answered(drafter, policy)
    found = played(made, answer, policy)
    real = stats.accepted_draft + stats.accepted_retrieved - stats.trimmed
    assert found.tau == pytest.approx(1 + real / stats.rounds, rel=0.15)


def test_spending_is_replayed() -> None:
    """Where nothing is retrieved off the path, rounds that decide decide alike."""
    made, answer, stats = answered("model", "graft+", costs=DEAR, without=("contexts",))
    found = played(made, answer, "graft+", DEAR, without=("contexts",))
    real = [r.accepted for r in stats.round_records]
    same = sum(a == b for a, b in zip(found.accepted, real, strict=False))
    assert same > 0.7 * len(real)
    assert found.steps == pytest.approx(stats.draft_steps, rel=0.3)


def test_time_is_counted_by_costs() -> None:
    made, answer, _ = answered("eagle3", "dense")
    found = played(made, answer, "dense")
    wanted = found.rounds * (COSTS.round + COSTS.draft) + found.steps * COSTS.step
    wanted += sum(COSTS.of_rows(found.rows // found.rounds) for _ in range(found.rounds))
    assert found.seconds == pytest.approx(wanted, rel=0.02)
    assert found.tokens_per_second == pytest.approx(found.tokens / found.seconds)


def test_paying_is_used() -> None:
    made, answer, _ = answered("eagle3", "graft+", costs=DEAR)
    settings = made.settings.having(policy="graft+")
    plan = settings.plan("graft+", BUDGET)
    drafter = pick_drafter("graft+", made.drafter)
    memory = Memory(AdjacencyMatrix(256, 8, torch.device("cpu")))
    parts = make_parts(settings, "graft+", plan, memory, made.templates, drafter, 1, DEAR)
    assert isinstance(parts.spending, Paying)
    found = play(recorded(made, answer), parts.grafter, parts.spending, DEAR)
    assert found.rows < found.rounds * (BUDGET + 1)
