"""A choice stands as long as no score moves by half of its margin, and not much longer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from graft.sampling import Sampler
from tests.sampling_cases import batch, generator, request, sampler, single_thread

ROWS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.7},
    "top_k": {"temperature": 1.4, "top_k": 5},
    "top_k 1": {"temperature": 1.4, "top_k": 1},
    "top_p": {"temperature": 1.2, "top_p": 0.7},
    "top_p low": {"temperature": 1.2, "top_p": 0.2},
    "min_p": {"temperature": 1.5, "min_p": 0.2},
    "min_p 1": {"temperature": 1.5, "min_p": 1.0},
    "all": {"temperature": 1.5, "top_k": 8, "top_p": 0.8, "min_p": 0.05},
    "banned": {"temperature": 1.5, "top_k": 8, "top_p": 0.8, "banned_tokens": (1, 2, 3)},
}
ROUNDS = 60
COPIES = 64


one_thread = pytest.fixture(autouse=True)(single_thread)


def temperature(row: dict[str, Any]) -> float:
    return float(row.get("temperature", 1.0))


def changed(row: dict[str, Any], share: float, levels: int | None = None) -> tuple[float, Tensor]:
    """How often a choice changes if the logits move by ``share`` of the margin, and the margins."""
    once, often = sampler(row, vocab=40), sampler(*[row] * COPIES, vocab=40)
    often._noise = once._noise  # the same request row, many times
    hits, margins = 0, []
    for seed in range(ROUNDS):
        logits, history, length, alive = batch(1, seed, vocab=40)
        if levels is not None:
            logits = (logits * levels).round() / levels
        margin = once.margin(logits, history, length, alive)
        token = once.choose(logits, history, length, alive)
        margins.append(margin)
        if margin.isinf():
            margin = torch.tensor([10.0])
        reach = margin * temperature(row) * share
        moves = torch.rand(COPIES, 40, generator=generator(seed)) * 2 - 1
        moves[::2] = moves[::2].sign()  # the corners are the worst
        many = [each.expand(COPIES, *each.shape[1:]) for each in (history, length, alive)]
        hits += int((often.choose(logits + moves * reach, *many) != token).any())
    return hits / ROUNDS, torch.cat(margins)


@pytest.mark.parametrize("name", ROWS)
def test_choices_stand_within_the_margin(name: str) -> None:
    share, margins = changed(ROWS[name], 0.499)
    assert share == 0.0
    assert margins.median() > 0.02  # it says something
    share, _ = changed(ROWS[name], 3.0)  # control: far beyond, choices do change
    assert share > 0.3


@pytest.mark.parametrize("name", ["top_k", "top_p", "all"])
def test_choices_stand_within_the_margin_with_many_equals(name: str) -> None:
    # Rounded logits, as low precision gives them, tie at the cut: equals there leave no margin
    # to a choice that hangs on them.
    share, margins = changed(ROWS[name], 0.499, levels=1)
    assert share == 0.0
    assert (margins == 0).any()


def test_known_gaps() -> None:
    logits = torch.tensor([[5.0, 3.0, 4.5, -1.0]])
    rest = (torch.zeros(1, 5, dtype=torch.int64), torch.tensor([5]), torch.tensor([True]))
    assert sampler({}, vocab=4).margin(logits, *rest).item() == pytest.approx(0.5)
    # Two tokens that could both win: the lead in noised scores, temperature divided out.
    row = sampler({"temperature": 0.5}, vocab=4)
    best = row.scores(logits, *rest).topk(2).values
    assert row.margin(logits, *rest).item() == pytest.approx((best[0, 0] - best[0, 1]).item())
    # Only one stays: another comes in if the two best scores meet.
    row = sampler({"temperature": 0.5, "top_k": 1}, vocab=4)
    assert row.margin(logits, *rest).item() >= 0.5 / 0.5
    bans = {"banned_tokens": (1, 2, 3)}
    assert sampler(bans, vocab=4).margin(logits, *rest).item() == float("inf")


def test_a_choice_of_nothing_has_no_margin() -> None:
    logits = torch.full((2, 40), float("-inf"))
    _, history, length, alive = batch(2, vocab=40)
    for row in ROWS.values():
        assert sampler(row, {}, vocab=40).margin(logits, history, length, alive).tolist() == [0, 0]


def test_margins_of_a_batch_are_those_of_its_rows() -> None:
    rows = list(ROWS.values())
    inputs = batch(len(rows), 3, vocab=40)
    together = sampler(*rows, vocab=40).margin(*inputs)
    for row in range(len(rows)):
        alone = Sampler([request(row, **rows[row])], 40, 40, "cpu")
        torch.testing.assert_close(
            together[row : row + 1], alone.margin(*[each[row : row + 1] for each in inputs])
        )
