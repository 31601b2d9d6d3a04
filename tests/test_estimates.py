"""Estimates become what candidates are worth, in general and in each sequence."""

from __future__ import annotations

import pytest
import torch

from graft.contexts import ORDERS
from graft.estimates import Estimates
from graft.evidence import VOICES, Cells
from graft.prior import default_prior, prior_of

CPU = torch.device("cpu")
RATES = torch.tensor([0.05, 0.3, 0.6, 0.9])
VOICE = torch.tensor([0, 0, 1, 1])


def estimates(slots: int = 1, learns: bool = True) -> Estimates:
    return Estimates(torch.full((4,), 0.5), VOICE, slots, learns=learns)


def play(held: Estimates, rounds: int, rates: torch.Tensor, seed: int = 0) -> None:
    """Rounds in which every sequence meets each cell twice."""
    made = torch.Generator().manual_seed(seed)
    batch = len(rates)
    cells = torch.arange(4).repeat(batch, 2)
    for _ in range(rounds):
        right = torch.rand(batch, 8, generator=made) < rates.repeat(1, 2)
        held.learn(cells, torch.ones_like(right), right)


def test_they_converge_to_the_rates_of_the_cells() -> None:
    held = estimates()
    play(held, 500, RATES.unsqueeze(0))
    assert held.rates.tolist() == pytest.approx(RATES.tolist(), abs=0.04)
    assert held.factors[0].tolist() == pytest.approx([1.0, 1.0], abs=0.35)


def test_what_is_not_counted_teaches_nothing() -> None:
    held = estimates()
    cells = torch.tensor([[0, 1, 2, 3]])
    counted = torch.tensor([[True, False, False, False]])
    for _ in range(50):
        held.learn(cells, counted, torch.ones(1, 4, dtype=torch.bool))
    assert held.rates[0] > 0.8
    assert held.rates[1:].tolist() == [0.5] * 3


def test_rates_follow_a_change() -> None:
    held = estimates()
    play(held, 2000, torch.full((1, 4), 0.9))
    play(held, 2000, torch.full((1, 4), 0.1), seed=1)
    assert held.rates.tolist() == pytest.approx([0.1] * 4, abs=0.12)


def test_each_sequence_has_its_own_factors() -> None:
    """Voice 0 pays in the first sequence alone, and that is seen within some rounds."""
    held = estimates(2)
    right = torch.tensor([[0.6, 0.6, 0.6, 0.6], [0.0, 0.0, 0.6, 0.6]])
    play(held, 20, right)
    table = held.table(2)
    assert float(table[1, 0]) < 0.25 * float(table[0, 0])
    assert float(table[1, 2]) > 0.7 * float(table[0, 2])


def test_a_new_sequence_begins_anew_and_a_moved_one_does_not() -> None:
    held = estimates(2)
    play(held, 20, torch.tensor([[0.9] * 4, [0.0] * 4]))
    first, second = held.factors.clone()
    held.move(1, 0)
    assert torch.equal(held.factors[0], second)
    held.admit(0)
    assert held.factors[0].tolist() == [1.0, 1.0]
    assert not torch.equal(first, second)


def test_it_can_be_told_not_to_learn() -> None:
    held = estimates(learns=False)
    play(held, 20, RATES.unsqueeze(0))
    assert held.rates.tolist() == [0.5] * 4
    assert held.factors.tolist() == [[1.0, 1.0]]


def test_sequences_can_learn_each_for_itself() -> None:
    held = Estimates(torch.full((4,), 0.5), VOICE, 2, shares=False)
    play(held, 20, torch.tensor([[0.9] * 4, [0.1] * 4]))
    assert held.rates.tolist() == [0.5] * 4
    assert held.factors[0, 0] > 1.3 > 0.7 > held.factors[1, 0]


def test_a_prior_leans_on_rows_and_columns_where_counts_are_thin() -> None:
    cells = Cells(1, CPU)
    row, column = cells.parts()
    truth = torch.sigmoid(-3 + 2.0 * (row % 3 == 1) + 1.5 * (column % 5 == 2))
    trials = torch.full((cells.count,), 400.0)
    trials[::3] = 0.0  # never met
    rates = prior_of(trials, trials * truth, cells)
    assert rates.tolist() == pytest.approx(truth.tolist(), abs=0.06)


def test_the_prior_that_ships_fits_the_cells() -> None:
    cells = Cells(len(ORDERS), CPU)
    rates = default_prior(cells)
    assert rates.shape == (cells.count,)
    assert bool(((rates > 0) & (rates < 1)).all())
    assert len(VOICES) == int(cells.voice.max()) + 1
