"""Rounds that decide for themselves how deep they draft and how much they verify."""

from __future__ import annotations

import pytest

from graft import spending, worth
from graft.costs import Costs
from graft.metrics import RoundRecord
from graft.request import Result
from graft.settings import Part
from tests.cost_tables import DEAR, FREE
from tests.exactness.drafting import DRAFTERS, agree, engine, tau, taught

SETTINGS = ["greedy", "sampled", "all cuts"]


def rounds(found: list[Result]) -> list[RoundRecord]:
    return [record for result in found for record in result.stats.round_records]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("drafter", [None, *DRAFTERS])
def test_answers_where_rows_and_steps_are_dear(
    drafter: str | None, batch: int, setting: str
) -> None:
    made = taught(engine(DRAFTERS[drafter]() if drafter else None, costs=DEAR), setting, batch)
    found = agree(made, setting, policy="graft+", batch=batch)
    records = rounds(found)
    assert tau(found) > 1.15
    assert sum(r.unspent_slots for r in records) > 0
    assert len({r.proposed for r in records}) > 1  # each round decides anew
    if drafter is not None:
        assert len({r.stage for r in records}) > 1


def test_dear_rounds_spend_less_than_free_ones() -> None:
    spent = {}
    for name, costs in {"free": FREE, "dear": DEAR}.items():
        made = taught(engine(DRAFTERS["eagle3"](), costs=costs), "greedy")
        records = rounds(agree(made, "greedy", policy="graft+"))
        spent[name] = (
            sum(r.proposed for r in records) / len(records),
            sum(r.draft_steps for r in records) / len(records),
        )
    assert spent["dear"][0] < 0.7 * spent["free"][0]
    assert spent["dear"][1] < 0.85 * spent["free"][1]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_drafter_sits_out_where_retrieval_knows_better(batch: int, setting: str) -> None:
    """A draft costs as much as three forwards, and the memory has seen the answers."""
    dear = Costs((1, 61), (0.01, 0.02), draft=0.03, step=0.01)
    made = taught(engine(DRAFTERS["eagle3"](), costs=dear), setting, batch)
    records = []
    for _ in range(3):
        records += rounds(agree(made, setting, policy="graft+", batch=batch))
    out = [r for r in records if r.stage == "none"]
    assert 0.3 * len(records) < len(out) < len(records)
    assert all(r.draft_steps == r.proposed_draft == r.kept_draft == 0 for r in out)
    assert any(r.accepted_draft for r in records)
    assert "none" not in {
        r.stage for r in rounds(agree(made, setting, policy="graft", batch=batch))
    }


def test_a_drafter_that_cannot_wait_never_sits_out() -> None:
    dear = Costs((1, 61), (0.01, 0.02), draft=0.03, step=0.01)
    made = taught(engine(DRAFTERS["model"](), costs=dear), "greedy")
    assert "none" not in {r.stage for r in rounds(agree(made, "greedy", policy="graft+"))}


def test_plain_decoding_where_nothing_else_pays() -> None:
    """A row costs as much as a forward, and the memory is cold: most rounds verify the root."""
    made = engine(costs=Costs((1, 61), (0.01, 2.0)))
    records = rounds(agree(made, "greedy", policy="graft+"))
    assert sum(r.proposed == 0 for r in records) > 0.5 * len(records)


@pytest.mark.parametrize("drafter", [None, "eagle3"])
def test_costs_are_measured_when_none_are_given(drafter: str | None) -> None:
    made = taught(engine(DRAFTERS[drafter]() if drafter else None, costs=None), "greedy")
    agree(made, "greedy", policy="graft+", batch=1)
    assert tau(agree(made, "greedy", policy="graft+", batch=1)) > 1.2


@pytest.mark.parametrize("part", ["contexts", "anywhere", "calibration", "depth", "budget"])
def test_without_a_part(part: Part) -> None:
    made = taught(engine(DRAFTERS["eagle3"](), costs=DEAR, without=(part,)), "greedy")
    found = agree(made, "greedy", policy="graft+")
    records = rounds(found)
    assert tau(found) > 1.15
    assert (sum(r.unspent_slots for r in records) == 0) == (part == "budget")
    assert (sum(r.context_lookups for r in records) == 0) == (part == "contexts")
    rule = "graft" if part == "depth" else "graft+"
    plan = made.settings.plan(rule, 16)
    assert {r.stage for r in records} <= {plan.stage_name(s) for s in range(plan.stages)}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("drafter", [None, *DRAFTERS])
def test_batches_that_are_decoded_plainly(
    drafter: str | None, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a second sequence adds is more than trees can bring."""
    monkeypatch.setattr(worth, "BATCH_ROUNDS", 12)
    monkeypatch.setattr(spending, "HOPE", 1.0)
    dear = Costs((1, 61), (0.01, 0.05), round=0.001, round_more=0.05)
    made = engine(DRAFTERS[drafter]() if drafter else None, costs=dear)
    records = []
    for _ in range(4):
        records += rounds(agree(made, setting, policy="graft+", batch=3))
    together = [r for r in records if r.batch > 1]
    plainly = [r for r in together if r.stage == "none" and r.lookups == 0]
    if drafter == "model":  # it must see every round
        assert not plainly
        return
    assert 0.4 * len(together) < len(plainly) < len(together)
    assert all(r.proposed == r.draft_steps == r.rows_written == 0 for r in plainly)
    assert any(r.proposed for r in together)


def test_batches_that_no_tree_can_serve_are_plain_from_the_first_round_on() -> None:
    dear = Costs((1, 61), (0.01, 0.05), round=0.001, round_more=0.05)
    made = engine(DRAFTERS["eagle3"](), costs=dear)
    together = [r for r in rounds(agree(made, "greedy", policy="graft+", batch=3)) if r.batch > 1]
    looks = [r for r in together if r.stage != "none"]
    assert len(looks) <= 3 * (1 + len(together) // 3 // spending.EXPLORE_BATCH)


@pytest.mark.parametrize("drafter", [None, "eagle3"])
def test_batches_are_measured_with_their_rows(drafter: str | None) -> None:
    made = engine(DRAFTERS[drafter]() if drafter else None, costs=None, max_batch=3)
    agree(made, "greedy", policy="graft+", batch=3)
    (costs,) = made._costs.values()
    assert costs.rows[-1] == 3 * 16 + 1
    assert costs.round_more >= 0


def test_small_trees_are_measured_one_by_one_where_there_is_time() -> None:
    made = engine(DRAFTERS["eagle3"](), costs=None)
    assert made.costs(20).rows == (1, 2, 4, 8, 12, 16, 21)
    assert made.costs(20, fine=True).rows == (*range(1, 18), 21)
    assert made.costs(3, fine=True).rows == (1, 2, 3, 4)


def test_known_costs_serve_trees_that_they_were_measured_for() -> None:
    known = Costs((1, 9), (0.5, 0.9))
    made = engine(DRAFTERS["eagle3"](), costs=None, costs_of_one=known)
    assert made.costs(8) == known
    assert made.costs(9).rows == (1, 2, 4, 8, 10)
    assert made.costs(8, fine=True).rows == tuple(range(1, 10))
    assert made.costs(8) == known
