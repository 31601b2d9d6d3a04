"""Costs: between what was measured, beyond it, and what cannot be."""

from __future__ import annotations

import pytest

from graft.cost_measure import _smooth
from graft.costs import Costs


def test_rows_are_read_in_straight_lines() -> None:
    costs = Costs((1, 3, 5), (1.0, 2.0, 4.0))
    assert [costs.of_rows(n) for n in range(1, 6)] == [1.0, 1.5, 2.0, 3.0, 4.0]
    assert costs.of_rows(9) == 7.0  # as over the upper half of what was measured


def test_more_rows_never_cost_less() -> None:
    costs = Costs((1, 2, 3, 9), (3.0, 2.0, 2.5, 1.0))
    assert [costs.of_rows(n) for n in (1, 2, 3, 6, 20)] == [3.0] * 5


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_seconds_that_cannot_be_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="seconds above 0"):
        Costs((1, 2), (0.1, bad))
    if bad != 0:
        with pytest.raises(ValueError, match="seconds above 0"):
            Costs((1,), (0.1,), step_more=bad)


def test_what_a_busy_machine_adds_to_one_size_is_taken_off() -> None:
    assert _smooth([1.0, 4.0, 2.0, 3.0, 9.0, 5.0]) == (1.0, 2.0, 2.0, 3.0, 5.0, 5.0)


def test_one_measurement_holds_for_all() -> None:
    assert Costs((1,), (2.0,)).of_rows(40) == 2.0


def test_trees_have_a_root() -> None:
    costs = Costs((1, 9), (1.0, 9.0))
    assert costs.of_trees(2, 1) == [1.0, 2.0, 3.0]
    assert costs.of_trees(2, 3) == [3.0, 6.0, 9.0]


@pytest.mark.parametrize(
    ("rows", "verify", "more"),
    [
        ((2, 3), (1.0, 2.0), {}),
        ((), (), {}),
        ((1, 3, 2), (1.0, 2.0, 3.0), {}),
        ((1, 1), (1.0, 2.0), {}),
        ((1, 2), (1.0,), {}),
        ((1, 2), (1.0, 0.0), {}),
        ((1, 2), (1.0, 2.0), {"step": -1.0}),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    rows: tuple[int, ...], verify: tuple[float, ...], more: dict[str, float]
) -> None:
    with pytest.raises(ValueError, match="supported"):
        Costs(rows, verify, **more)
