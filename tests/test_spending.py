"""Spending: as many nodes and steps as pay, by given costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graft.costs import Costs
from graft.pruning import DraftPlan, dense
from graft.spending import EXPLORE, EXPLORE_BATCH, Fixed, Paying, Spent
from graft.worth import Worth

PLAN = DraftPlan(8, 2, 4, (0, 1, 2), (0.0,) * 3, (8,) * 4)
# A row more costs a quarter of the first.
COSTS = Costs((1, 9), (0.020, 0.060), draft=0.001, step=0.002, round=0.001)


def values(*numbers: float) -> Tensor:
    return torch.tensor([[1.0, *numbers, *[0.0] * (8 - len(numbers))]])


def width(spending: Paying, of: Tensor) -> int:
    spending.plan(len(of))
    return spending.width(of > 0, of, 0)


def settled(tokens: int, rounds: int = 400) -> Paying:
    """After many rounds of so many tokens."""
    spending = Paying(PLAN, COSTS, Worth())
    for _ in range(rounds):
        spending.plan(1)
        spending.width(values(1.0) > 0, values(1.0), 1)
        spending.settle([Spent((0.5,), 1, tokens - 1)])
    return spending


def test_nodes_are_verified_as_long_as_they_pay() -> None:
    """Plain decoding makes a token in 22 ms, so a row of 5 ms is worth 0.23 tokens."""
    spending = Paying(PLAN, COSTS, Worth())
    assert width(spending, values(0.9, 0.5, 0.24, 0.22, 0.1)) == 4
    assert width(spending, values(0.22, 0.2)) == 1  # plain decoding
    assert width(spending, values(*[0.3] * 8)) == 9


def test_a_faster_engine_has_less_time_for_unlikely_nodes() -> None:
    fast, slow = settled(4), settled(1)
    likely = values(0.9, 0.6, 0.4, 0.2)
    assert width(fast, likely) < width(slow, likely)


def test_a_batch_pays_for_its_rows_together() -> None:
    spending = Paying(PLAN, COSTS, Worth())
    one = values(0.9, 0.3, 0.1)
    # Two trees cost two rows a slot, and both fill it.
    assert width(spending, torch.cat([one, one])) == width(spending, one) == 3
    # One of them alone does not pay for the other's empty slot.
    assert width(spending, torch.cat([one, values(0.9)])) == 2


def test_where_rows_cost_nothing_all_are_verified() -> None:
    spending = Paying(PLAN, Costs((1, 9), (0.020, 0.0201)), Worth())
    assert width(spending, values(*[0.001] * 8)) == 9


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=8), st.integers(1, 3))
def test_the_choice_is_the_best_there_is(numbers: list[float], tokens: int) -> None:
    spending = settled(tokens, 3)
    numbers.sort(reverse=True)
    pace = spending._pace()
    gains = [
        sum(numbers[:n]) - pace * (COSTS.of_rows(n + 1) - COSTS.of_rows(1))
        for n in range(len(numbers) + 1)
    ]
    chosen = width(spending, values(*numbers)) - 1
    assert gains[chosen] == pytest.approx(max(gains), abs=1e-6)


def test_the_parts_can_be_left_out() -> None:
    of = values(*[0.01] * 8)
    sizes = Paying(PLAN, COSTS, Worth(), stops=False)
    assert sizes.plan(1) == PLAN
    assert sizes.width(of > 0, of, 0) == 1
    stops = Paying(PLAN, COSTS, Worth(), sizes=False)
    assert stops.plan(1) != PLAN
    assert stops.width(of > 0, of, 0) == 9


def test_fixed_spending_is_the_plan() -> None:
    plan = dense(8, 2, 4)
    spending = Fixed(plan)
    assert spending.plan(3) is plan
    used = torch.tensor([[True] * 3 + [False] * 6, [True] * 5 + [False] * 4])
    assert spending.width(used, None, 0) == 5


def test_now_and_then_a_round_goes_on_where_it_would_stop() -> None:
    """A drafter that never brings anything; every checkpoint is heard again in turn."""
    spending = settled(2, 0)
    seen = []
    for _ in range(400):
        plan = spending.plan(1)
        seen.append(plan.thresholds)
        spending.width(values(0.9) > 0, values(0.9), 3)
        stage = next((i for i, t in enumerate(plan.thresholds) if t > 0.5), 3)
        spending.settle([Spent((0.5,) * min(stage + 1, 3), stage, 1)])
    late = seen[200:]
    stopped = [t for t in late if t[0] > 0.5]
    assert len(stopped) > len(late) * (1 - 1.5 / EXPLORE)
    for mark in range(3):
        assert any(t[mark] == 0 and max(t) > 0.5 for t in late)


def test_a_draft_is_made_where_it_pays() -> None:
    """Plain decoding makes a token in 22 ms, a draft takes 1 ms: 0.05 tokens."""
    spending = Paying(PLAN, COSTS, Worth())
    spending.plan(2)
    assert spending.drafts(lambda: [0.5, 0.99])
    assert not spending.drafts(lambda: [0.99, 0.99])
    assert spending.drafts(lambda: None)  # nothing is known
    assert Paying(PLAN, COSTS, Worth(), stops=False).drafts(lambda: [0.99])
    assert Fixed(PLAN).drafts(lambda: [0.99])


@pytest.mark.parametrize(("accepted", "share"), [(1, 1.0), (0, 1 / EXPLORE)])
def test_a_drafter_is_heard_as_often_as_it_has_something_to_say(
    accepted: int, share: float
) -> None:
    """It brings a token every time, or never."""
    dear = replace(COSTS, draft=0.008)
    spending, heard = Paying(PLAN, dear, Worth()), 0
    for number in range(1000):
        spending.plan(1)
        drafts = spending.drafts(lambda: [0.1])
        heard += drafts and number >= 500
        spending.width(values(0.9) > 0, values(0.9), 0)
        worth = ((0.9,), (0.0,)) if drafts and accepted else ((), ())
        spending.settle([Spent((0.5,) if drafts else (), 0, len(worth[0]), *worth, 0.9)])
    assert heard / 500 == pytest.approx(share, abs=0.02)


def test_a_round_without_a_draft_takes_less_time() -> None:
    paces = []
    for promise in (0.0, 1.0):
        spending = Paying(PLAN, replace(COSTS, draft=0.015), Worth())
        for _ in range(400):
            spending.plan(1)
            spending.drafts(lambda promise=promise: [promise])  # type: ignore[misc]
            spending.width(values(0.9) > 0, values(0.9), 0)
            spending.settle([Spent((), 0, 1, (0.9,), (0.0,), 0.9)])
        paces.append(spending._pace())
    assert paces[1] > 1.3 * paces[0]


def test_what_is_owed_to_a_draft() -> None:
    """A node that retrieval knows as well is owed to nobody, nor one that is worth its row."""
    owed = Spent((), 0, 3, (0.9, 0.8, 0.7), (0.2, 0.9, 0.9), 0.5)
    assert owed.gain(-1) == 3
    assert owed._replace(unaided=(0.9, 0.8, 0.1)).gain(-1) == 1
    assert owed._replace(unaided=(0.9, 0.95, 0.95)).gain(-1) == 0
    spending = Paying(PLAN, COSTS, Worth())
    spending.plan(1)
    assert spending._owed(owed) == 3  # 0.2 of a token is less than a row of 5 ms is worth
    assert spending._owed(owed._replace(unaided=(0.4, 0.9, 0.9))) == 0


def batched(accepted: int, costs: Costs, batch: int = 4) -> list[bool]:
    """Which of 600 rounds of a batch verify trees, where each sequence accepts so many nodes."""
    spending, out = Paying(PLAN, costs, Worth()), []
    of = values(*[0.9] * 3).expand(batch, -1)
    for _ in range(600):
        spending.plan(batch)
        out.append(spending.speculates())
        if out[-1]:
            spending.drafts(lambda: None)
            spending.width(of > 0, of, 1)
        spending.settle([Spent((0.5,), 0, accepted if out[-1] else 0)] * batch)
    return out[100:]


def test_batches_that_plain_decoding_serves_better_are_decoded_plainly() -> None:
    """A row costs half a forward: two tokens do not pay for four rows each."""
    dear = Costs((1, 33), (0.02, 0.34), draft=0.001, step=0.002, round=0.001)
    assert sum(batched(1, dear)) / 500 == pytest.approx(1 / EXPLORE_BATCH, abs=0.01)
    assert all(batched(1, dear, batch=1))  # that is decided node by node
    assert all(batched(3, Costs((1, 33), (0.02, 0.03))))


def test_a_look_that_pays_is_followed_by_more() -> None:
    """The text changes to one that trees suit: plain rounds end with the next look."""
    costs = Costs((1, 33), (0.02, 0.10), round=0.001)
    spending, of, trees = Paying(PLAN, costs, Worth()), values(*[0.9] * 3).expand(4, -1), []
    for number in range(900):
        spending.plan(4)
        trees.append(spending.speculates())
        if trees[-1]:
            spending.drafts(lambda: None)
            spending.width(of > 0, of, 1)
        accepted = 3 if trees[-1] and number > 400 else 0
        spending.settle([Spent((0.5,), 0, accepted)] * 4)
    assert sum(trees[50:400]) <= 350 // EXPLORE_BATCH + 1
    assert all(trees[400 + EXPLORE_BATCH + 1 :])


def test_further_sequences_cost_what_they_add() -> None:
    """Rows are free; grafting for a fifth sequence takes as long as a forward."""
    free = Costs((1, 33), (0.02, 0.02), round=0.001)
    assert all(batched(1, free))
    assert sum(batched(1, replace(free, round_more=0.02))) < 100
    assert sum(batched(1, replace(free, draft_more=0.02))) < 100


def test_equal_states_spend_alike() -> None:
    one, other = settled(3, 50), settled(3, 50)
    assert one.plan(2) == other.plan(2)
    assert width(one, values(0.5, 0.4, 0.3)) == width(other, values(0.5, 0.4, 0.3))


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=8), st.integers(1, 3))
def test_useless_nodes_are_never_chosen(numbers: list[float], batch: int) -> None:
    spending = settled(2, 20)
    of = values(*sorted(numbers, reverse=True)).expand(batch, -1)
    chosen = width(spending, of)
    assert all(value >= spending.least() for value in of[0, 1:chosen].tolist())


def test_a_step_gains_what_would_not_have_been_there() -> None:
    """Values along the path, and what retrieval alone says of each node."""
    spent = Spent((0.9,) * 3, 3, 4, (0.9, 0.8, 0.7, 0.6), (0.1, 0.5, 0.9, 0.01), 0.3)
    # Without any step: 0.9, then 0.45, 0.4, 0.004: the last node would have been lost.
    assert spent.gain(0) == 1
    assert spent.gain(1) == 1  # 0.8, then 0.72, 0.007
    assert spent.gain(2) == 1  # 0.7, then 0.007
    assert spent.gain(3) == 0  # nothing lies deeper
    assert spent._replace(least=0.5).gain(0) == 3
    assert spent._replace(least=0.0).gain(0) == 0
    assert Spent((0.9,), 1, 0).gain(0) == 0


def test_what_retrieval_knows_as_well_is_no_gain() -> None:
    spent = Spent((0.9,), 2, 3, (0.9, 0.8, 0.7), (0.9, 0.95, 0.95), 0.4)
    assert [spent.gain(mark) for mark in range(3)] == [0, 0, 0]
