"""Top-k and argmax in blocks give exactly what a sort of the whole row gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.topk import BLOCK, argmax, topk_ids

# Below, at and above a block; not a multiple of it; enough blocks for the fast way.
SIZES = (1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 20 * BLOCK, 20 * BLOCK + 3, 49152)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 3, 8])
def test_topk_is_the_head_of_the_sorted_row(size: int, k: int) -> None:
    scores = torch.randn(5, size)
    k = min(k, size)
    assert torch.equal(topk_ids(scores, k), scores.sort(dim=-1, descending=True).indices[:, :k])


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 8), st.sampled_from([200, 20 * BLOCK]))
def test_topk_of_rows_full_of_equals_has_the_right_scores(seed: int, k: int, size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 4, (3, size), generator=generator).float()
    ids = topk_ids(scores, k)
    assert torch.equal(scores.gather(1, ids), scores.topk(k).values)
    assert all(len({*row}) == k for row in ids.tolist())


def test_winners_that_share_one_block_are_all_found() -> None:
    scores = torch.zeros(1, 40 * BLOCK)
    scores[0, 5 * BLOCK : 5 * BLOCK + 8] = torch.arange(8.0) + 1
    assert topk_ids(scores, 8).tolist() == [[5 * BLOCK + 7 - i for i in range(8)]]


def test_topk_takes_bfloat16() -> None:
    scores = torch.randn(4, 20 * BLOCK).bfloat16()
    found = scores.gather(1, topk_ids(scores, 8))
    assert torch.equal(found, scores.topk(8).values)


def test_topk_keeps_leading_dimensions() -> None:
    scores = torch.randn(2, 3, 20 * BLOCK)
    ids = topk_ids(scores, 4)
    assert ids.shape == (2, 3, 4)
    assert torch.equal(ids[1, 2], topk_ids(scores[1, 2], 4))
    assert ids.dtype == torch.int64


def test_topk_of_a_slice_of_the_logits_does_not_see_the_rest() -> None:
    scores = torch.randn(4, 30 * BLOCK)
    scores[:, 20 * BLOCK :] = 100.0
    assert int(topk_ids(scores[:, : 20 * BLOCK], 8).max()) < 20 * BLOCK


def test_forbidden_scores_come_last() -> None:
    scores = torch.full((1, 20 * BLOCK), float("-inf"))
    scores[0, 1000] = 0.0
    assert topk_ids(scores, 1).tolist() == [[1000]]


@pytest.mark.parametrize("size", SIZES)
def test_argmax_is_the_place_of_the_maximum(size: int) -> None:
    scores = torch.randn(5, size)
    found = argmax(scores)
    assert torch.equal(scores.gather(1, found.unsqueeze(1)).squeeze(1), scores.amax(1))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from(SIZES[:-1]))
def test_argmax_takes_the_lowest_of_equals(seed: int, size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 3, (2, 3, size), generator=generator).to(torch.bfloat16)
    wanted = [[row.index(max(row)) for row in rows] for rows in scores.tolist()]
    assert argmax(scores).tolist() == wanted
