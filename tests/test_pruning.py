"""The drafting plan: what it refuses, and how the paper's numbers scale with the budget."""

from __future__ import annotations

import re

import pytest

from graft import pruning
from graft.pruning import DraftPlan
from graft.settings import MAX_BUDGET

BUDGETS = range(1, MAX_BUDGET + 1)
PLAN = DraftPlan(60, 10, 8, (0, 1, 5), (0.35, 0.25, 0.15), (8, 24, 40, 60))


def changed(**changes: object) -> DraftPlan:
    values = {name: getattr(PLAN, name) for name in PLAN.__dataclass_fields__}
    return DraftPlan(**(values | changes))


def scaled(budget: int) -> DraftPlan:
    depth = pruning.scaled_depth(budget)
    marks = pruning.scaled_checkpoints(depth)
    kept = pruning.scaled_kept(budget, marks)
    thresholds = pruning.default_thresholds(marks)
    return DraftPlan(budget, pruning.scaled_beam(budget), depth, marks, thresholds, kept)


@pytest.mark.parametrize("beam", [0, -1, 65])
def test_a_beam_out_of_range_is_refused(beam: int) -> None:
    with pytest.raises(ValueError, match=rf"^beam={beam}: an integer from 1 to 64 is supported$"):
        changed(beam=beam)


@pytest.mark.parametrize("depth", [0, -3, 33])
def test_a_depth_out_of_range_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=rf"^depth={depth}: an integer from 1 to 32 is supported$"):
        changed(depth=depth)


@pytest.mark.parametrize(
    "marks", [(1, 0, 5), (0, 0, 5), (0, 1, 8), (-1, 1, 5)], ids=["order", "twice", "late", "early"]
)
def test_checkpoints_out_of_order_or_range_are_refused(marks: tuple[int, ...]) -> None:
    message = re.escape(f"checkpoints={marks}: ") + ".*ascending.* 0 to 7 for depth 8"
    with pytest.raises(ValueError, match=message):
        changed(checkpoints=marks)


@pytest.mark.parametrize(
    "thresholds",
    [(0.3, 0.2), (0.3, 0.2, 0.1, 0.1), (0.3, -0.1, 0.1), (0.3, 2.1, 0.1), (0.3, float("nan"), 0.1)],
)
def test_thresholds_must_fit_the_checkpoints(thresholds: tuple[float, ...]) -> None:
    message = re.escape(f"thresholds={thresholds}: ") + r".*3 checkpoints \(0, 1, 5\)"
    with pytest.raises(ValueError, match=message):
        changed(thresholds=thresholds)


@pytest.mark.parametrize(
    "kept", [(8, 24, 40), (8, 24, 40, 60, 60), (-1, 24, 40, 60), (8, 61, 8, 8)]
)
def test_kept_nodes_must_fit_the_stages_and_the_budget(kept: tuple[int, ...]) -> None:
    message = re.escape(f"kept={kept}: 4 numbers from 0 to the budget 60 ")
    with pytest.raises(ValueError, match=message):
        changed(kept=kept)


def test_the_edges_of_every_range_are_supported() -> None:
    changed(beam=1)
    changed(beam=64)
    changed(thresholds=(0, 1, 2))
    changed(kept=(0, 60, 0, 60))
    changed(checkpoints=(0, 1, 7))
    DraftPlan(1, 1, 1, kept=(1,))
    DraftPlan(0, 1, 32, kept=(0,))


def test_stages_are_named_after_their_checkpoints() -> None:
    assert PLAN.stages == 4
    assert [PLAN.stage_name(stage) for stage in range(4)] == ["d0", "d1", "d5", "full"]
    alone = pruning.dense(4, 2, 3)
    assert (alone.stages, alone.stage_name(0)) == (1, "full")


def test_a_dense_plan_never_stops_and_keeps_what_it_is_told() -> None:
    plan = pruning.dense(9, 3, 4)
    assert (plan.checkpoints, plan.thresholds, plan.kept) == ((), (), (9,))
    assert pruning.dense(9, 3, 4, 5).kept == (5,)
    assert pruning.dense(9, 3, 4, 0).kept == (0,)  # nothing is not "the whole budget"
    with pytest.raises(ValueError, match=r"kept=\(10,\)"):
        pruning.dense(9, 3, 4, 10)


def test_the_paper_s_budget_gives_the_paper_s_numbers() -> None:
    assert scaled(60) == PLAN


def test_small_budgets_scale_down() -> None:
    assert scaled(4) == DraftPlan(4, 3, 3, (0, 1), (0.35, 0.25), (1, 2, 4))
    assert scaled(16) == DraftPlan(16, 5, 6, (0, 1, 4), (0.35, 0.25, 0.15), (2, 6, 11, 16))


def test_every_budget_has_a_sane_plan() -> None:
    for budget in BUDGETS:
        plan = scaled(budget)  # valid, or it would raise
        assert list(plan.kept) == sorted(plan.kept), plan
        assert plan.kept[0] >= 1, plan
        assert plan.kept[-1] == budget, plan
        # A checkpoint after the last forward would save nothing.
        assert all(mark < max(plan.depth - 1, 1) for mark in plan.checkpoints), plan
        assert plan.checkpoints[0] == 0, plan


def test_plans_grow_with_the_budget() -> None:
    for name in ("beam", "depth"):
        sizes = [getattr(scaled(budget), name) for budget in BUDGETS]
        assert sizes == sorted(sizes)
        assert (sizes[0], sizes[59], sizes[-1]) == (1, getattr(PLAN, name), getattr(PLAN, name))


def test_the_share_that_is_kept_is_the_paper_s() -> None:
    assert pruning.scaled_kept(120, (0, 1, 5)) == (16, 48, 80, 120)
    assert pruning.scaled_kept(30, (0, 1, 5)) == (4, 12, 20, 30)
    assert pruning.scaled_kept(1, (0,)) == (1, 1)


def test_checkpoints_beyond_the_paper_s_keep_and_stop_as_its_last() -> None:
    marks = (0, 1, 3, 5, 6)
    assert pruning.scaled_kept(60, marks) == (8, 24, 40, 40, 40, 60)
    assert pruning.default_thresholds(marks) == (0.35, 0.25, 0.15, 0.15, 0.15)
    assert pruning.scaled_kept(60, ()) == (60,)
    assert pruning.default_thresholds(()) == ()


@pytest.mark.parametrize(
    ("depth", "marks"),
    [(1, (0,)), (2, (0,)), (3, (0, 1)), (4, (0, 1, 2)), (8, (0, 1, 5)), (32, (0, 1, 22))],
)
def test_checkpoints_scale_with_the_depth(depth: int, marks: tuple[int, ...]) -> None:
    assert pruning.scaled_checkpoints(depth) == marks
