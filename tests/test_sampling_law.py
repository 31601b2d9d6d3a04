"""Draws follow the processed distribution, in Transformers' definition of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from graft.noise import GumbelNoise
from graft.sampling import Sampler, SampleRequest, SamplingParams
from tests.sampling_cases import PROMPT, request, single_thread

ALPHA = 1e-4  # the seeds are fixed: what passes once passes always

one_thread = pytest.fixture(autouse=True)(single_thread)


def draws(row: dict[str, Any], positions: int = 100, rows: int = 80) -> Tensor:
    """[N]: choices from the same logits and known tokens, at many positions of many rows."""
    requests = [request(index, 3, **row) for index in range(rows)] * positions
    many = Sampler(requests, LOGITS.shape[1], LOGITS.shape[1] - 2, "cpu")
    length = torch.arange(positions).repeat_interleave(rows) + PROMPT
    history = torch.cat([HISTORY, HISTORY[:, -1:].expand(1, positions)], dim=1)
    logits, history = (each.expand(len(length), -1) for each in (LOGITS, history))
    return many.choose(logits, history, length, torch.ones(len(length), dtype=torch.bool))


def p_value(chosen: Tensor, law: Tensor) -> float:
    count = torch.bincount(chosen, minlength=len(law)).double()
    assert not count[law == 0].any(), "chose what the settings forbid"
    expected = law[law > 0].double()
    expected = expected / expected.sum() * len(chosen)
    return float(stats.chisquare(count[law > 0], expected).pvalue)


LOGITS = torch.tensor([[1.0, 0.2, -0.5, 2.0, 1.5, -1.0, 9.0, 9.0]])  # the last two are padding
HISTORY = torch.tensor([[3, 3, 1, 5, 0]])


@pytest.mark.parametrize(
    ("row", "chain"),
    [
        ({"temperature": 1.0}, []),
        ({"temperature": 0.5}, [TemperatureLogitsWarper(0.5)]),
        ({"temperature": 1.0, "top_k": 3}, [TopKLogitsWarper(3)]),
        ({"temperature": 1.0, "top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        (
            {"temperature": 1.6, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.8},
            [
                RepetitionPenaltyLogitsProcessor(1.8),
                TemperatureLogitsWarper(1.6),
                TopKLogitsWarper(5),
                TopPLogitsWarper(0.9),
            ],
        ),
    ],
)
def test_choices_follow_the_processed_distribution(row: dict[str, Any], chain: list[Any]) -> None:
    law = LogitsProcessorList(chain)(HISTORY, LOGITS[:, :6].clone())[0].softmax(dim=0)
    chosen = draws(row)
    assert p_value(chosen, law) > ALPHA
    other = (LOGITS[0, :6] / (row["temperature"] + 0.25)).softmax(dim=0).where(law > 0, 0)
    assert p_value(chosen, other) < ALPHA  # control: a law near by is told from it


def test_the_position_must_be_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def neighbours() -> float:
        chosen = draws({"temperature": 1.0}).view(100, 80)  # [positions, rows]
        law = LOGITS[0, :6].softmax(dim=0)
        return p_value((chosen[1:] * 6 + chosen[:-1]).flatten(), torch.outer(law, law).flatten())

    assert neighbours() > ALPHA
    noise = GumbelNoise.bits
    monkeypatch.setattr(
        GumbelNoise, "bits", lambda self, position, tokens=None: noise(self, position * 0, tokens)
    )
    assert neighbours() < ALPHA


def test_noise_must_not_be_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    noised = Sampler._noised

    def biased(self: Sampler, scores: Tensor, *rest: Any) -> Tensor:
        return (noised(self, scores, *rest) * 0.9 + scores * 0.1).where(scores.isfinite(), scores)

    monkeypatch.setattr(Sampler, "_noised", biased)
    chosen = draws({"temperature": 1.0})
    assert p_value(chosen, LOGITS[0, :6].softmax(dim=0)) < ALPHA


def test_rows_and_seeds_choose_independently() -> None:
    logits = torch.zeros(1, 8)
    alive = torch.ones(2000, dtype=torch.bool)
    length = torch.full((2000,), PROMPT)
    params = SamplingParams(temperature=1.0)
    by_row = [SampleRequest(params, 5, row, PROMPT) for row in range(2000)]
    by_seed = [SampleRequest(params, seed - 1000, 0, PROMPT) for seed in range(2000)]
    for requests in (by_row, by_seed):
        many = Sampler(requests, 8, 8, "cpu")
        history = torch.zeros(2000, 0, dtype=torch.int64)
        chosen = many.choose(logits.expand(2000, -1), history, length, alive)
        assert p_value(chosen, torch.ones(8)) > ALPHA
        pairs = chosen[1:] * 8 + chosen[:-1]
        assert p_value(pairs, torch.ones(64)) > ALPHA
