"""The cut of top-k, top-p and min-p leaves what Transformers' warpers leave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from graft.warpers import Warpers
from tests.sampling_cases import generator, request

CPU = torch.device("cpu")
NEVER = float("-inf")


def build(rows: tuple[dict[str, Any], ...], vocab: int, asks: bool = True) -> Warpers:
    warpers = Warpers([request(**row) for row in rows], vocab, CPU)
    warpers._may_ask = asks  # False: the way of an accelerator, which must not wait for the host
    return warpers


def ours(logits: Tensor, *rows: dict[str, Any], asks: bool = True) -> Tensor:
    warpers = build(rows, logits.shape[1], asks)
    scores = warpers.scaled(logits.clone())
    cut = warpers.keep(scores, torch.ones(len(rows), dtype=torch.bool)).cut
    return scores if cut is None else scores.masked_fill(scores < cut, NEVER)


def theirs(logits: Tensor, *rows: dict[str, Any]) -> Tensor:
    kinds = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper)
    names = ("temperature", "top_k", "top_p", "min_p")
    result = []
    for scores, row in zip(logits.split(1), rows, strict=True):
        chain = LogitsProcessorList(
            [kind(row[name]) for kind, name in zip(kinds, names, strict=True) if name in row]
        )
        result.append(chain(torch.zeros(1, 1, dtype=torch.int64), scores))
    return torch.cat(result)


ROWS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.5},
    {"temperature": 2.0, "top_k": 1},
    {"temperature": 0.7, "top_k": 50},
    {"temperature": 1.0, "top_k": 10**9},
    {"temperature": 1.0, "top_p": 0.01},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 3.0, "top_p": 0.99},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.7},
    {"temperature": 1.5, "top_k": 300, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 1.5, "top_p": 0.6, "min_p": 0.05},
)


@pytest.mark.parametrize("vocab", [2, 63, 1000, 9000])
@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("asks", [True, False])
def test_as_in_transformers(vocab: int, spread: float, asks: bool) -> None:
    for row in ROWS:
        logits = torch.randn(2, vocab, generator=generator(vocab)) * spread
        expected = theirs(logits, row, row)
        torch.testing.assert_close(ours(logits, row, row, asks=asks), expected)


@given(st.lists(st.sampled_from(ROWS), min_size=1, max_size=6), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_mixed_batches(rows: list[dict[str, Any]], seed: int) -> None:
    logits = torch.randn(len(rows), 2000, generator=generator(seed)) * 3
    together = ours(logits, *rows)
    torch.testing.assert_close(together, theirs(logits, *rows))
    assert torch.equal(together, ours(logits, *rows, asks=False))
    for row, each in enumerate(rows):
        assert torch.equal(together[row : row + 1], ours(logits[row : row + 1], each))


@pytest.mark.parametrize("asks", [True, False])
def test_equals_at_the_cut_all_stay(asks: bool) -> None:
    levels = torch.tensor([4.0, 3, 3, 3, 2, 2, 1]).repeat_interleave(50)
    logits = torch.cat([levels, torch.full((3650,), -9.0)])[torch.randperm(4000)][None]

    def kept(**row: Any) -> int:
        return int(ours(logits, {"temperature": 1.0} | row, asks=asks).isfinite().sum())

    assert kept(top_k=10) == 50
    assert kept(top_k=60) == 200
    assert kept(top_k=201) == 300
    assert kept(top_p=0.3) == 50  # the first level holds 0.42 of the mass, the second 0.46
    assert kept(top_p=0.5) == 200
    # After top-k 60 the two levels hold 0.48 and 0.52, all 150 equals counted.
    assert kept(top_k=60, top_p=0.47) == 50
    assert kept(top_k=60, top_p=0.49) == 200


def test_few_hold_all_that_stays() -> None:
    logits = torch.randn(2, 5000, generator=generator(1)) * 4
    alive = torch.tensor([True, True])
    narrow = {"temperature": 1.0, "top_k": 20, "top_p": 0.9}
    kept = build((narrow, {}), 5000).keep(logits, alive)
    assert kept.few is not None
    scores, tokens = kept.few
    assert torch.equal(logits.gather(1, tokens), scores)
    assert kept.cut is not None
    assert int((scores[0] >= kept.cut[0]).sum()) == int((logits[0] >= kept.cut[0]).sum())
    assert scores[1, 0] == logits[1].max()
    # A row that may choose anything, or a way that must not wait: no few.
    assert build((narrow, {"temperature": 1.0}), 5000).keep(logits, alive).few is None
    assert build((narrow, {}), 5000, asks=False).keep(logits, alive).few is None
    # Equals that a window cannot hold, unless their row is over.
    logits[1] = 0.0
    assert build((narrow, {}), 5000).keep(logits, alive).few is None
    alive[1] = False
    assert build((narrow, {}), 5000).keep(logits, alive).few is not None


@pytest.mark.parametrize("asks", [True, False])
def test_banned_tokens_stay_banned_and_rows_without_tokens_do_not_crash(asks: bool) -> None:
    logits = torch.randn(len(ROWS), 700, generator=generator(2))
    logits[:, 3:] = NEVER
    torch.testing.assert_close(ours(logits, *ROWS, asks=asks), theirs(logits, *ROWS))
    logits[:] = NEVER
    assert ours(logits, *ROWS, asks=asks).isneginf().all()


def test_greedy_rows_are_left_alone() -> None:
    logits = torch.randn(2, 100, generator=generator(3))
    greedy = {"top_k": 3, "top_p": 0.5, "min_p": 0.5}
    assert build((greedy, greedy), 100).idle
    assert torch.equal(ours(logits, greedy, {"temperature": 1.0, "top_k": 3})[0], logits[0])
