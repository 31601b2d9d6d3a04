"""Argmax and top-k by blocks agree with PyTorch's own."""

from __future__ import annotations

import pytest
import torch

from graft.ranking import best_scores, first_argmax
from tests.sampling_cases import generator

WIDTHS = (1, 2, 31, 255, 256, 257, 512, 1000, 4097)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", WIDTHS)
def test_argmax_is_the_lowest_index_of_the_largest(width: int, dtype: torch.dtype) -> None:
    for seed in range(20):
        # Few levels, so that most rows have several equals for the best.
        scores = torch.randint(-4, 4, (3, width), generator=generator(seed)).to(dtype)
        index = torch.arange(width)
        equal = scores == scores.amax(dim=1, keepdim=True)
        assert torch.equal(first_argmax(scores), index.where(equal, width).amin(dim=1))


def test_argmax_of_odd_rows() -> None:
    nothing = torch.full((2, 600), float("-inf"))
    assert first_argmax(nothing).tolist() == [0, 0]
    nothing[1, 599] = -1e30
    assert first_argmax(nothing).tolist() == [0, 599]
    assert first_argmax(torch.zeros(0, 600)).shape == (0,)
    wide = torch.randn(3, 900, generator=generator())
    assert torch.equal(first_argmax(wide[:, 5:700]), wide[:, 5:700].argmax(dim=1))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1, 2, 16, 60])
def test_best_scores_are_those_of_topk(width: int, count: int) -> None:
    count = min(count, width)
    for levels in (3, 10**6):
        scores = torch.randint(-levels, levels, (4, width), generator=generator(levels)).float()
        scores[0, 1:] = float("-inf")
        values, index = best_scores(scores, count)
        assert torch.equal(values, scores.topk(count, dim=1).values)
        finite = values > float("-inf")
        assert torch.equal(scores.gather(1, index.where(finite, 0))[finite], values[finite])
        for row, kept in zip(index, finite, strict=True):
            assert len(row[kept].unique()) == int(kept.sum())
