"""Shared by the tests of sampling: samplers, histories and odd settings, without a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from graft.sampling import Sampler, SampleRequest, SamplingParams

VOCAB = 320
PROMPT = 5

# One entry per kind of row; a batch mixes them.
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 7},
    {"temperature": 0.9, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.8, "min_p": 0.1},
    {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
    {"temperature": 1.1, "frequency_penalty": 0.4, "presence_penalty": -0.3},
    {"temperature": 0.9, "logit_bias": {3: 4.0, 9: -2.0}, "banned_tokens": (1, 2)},
    {"temperature": 0.9, "top_k": 30, "min_new_tokens": 4, "no_repeat_ngram_size": 1},
    {"logits_processors": (lambda ids, scores: scores + (ids[0, -1] % 5),), "top_p": 0.3},
)


def request(row: int = 0, seed: int = 11, **settings: Any) -> SampleRequest:
    return SampleRequest(SamplingParams(**settings), seed, row, PROMPT, stop_ids=(0, 4))


def sampler(
    *settings: dict[str, Any], vocab: int = VOCAB, count: int | None = None, seed: int = 11
) -> Sampler:
    requests = [request(row, seed, **each) for row, each in enumerate(settings)]
    return Sampler(requests, vocab, count or vocab, "cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(rows: int, seed: int = 0, vocab: int = VOCAB, width: int = 12) -> tuple[Tensor, ...]:
    """(logits, history, length, alive) with different lengths, and rubbish beyond them."""
    draw = generator(seed)
    logits = torch.randn(rows, vocab, generator=draw) * 3
    history = torch.randint(0, min(vocab, 20), (rows, width), generator=draw)
    length = torch.randint(PROMPT, width + 1, (rows,), generator=draw)
    history[torch.arange(width) >= length[:, None]] = 10**12
    return logits, history, length, torch.ones(rows, dtype=torch.bool)


def single_thread() -> Iterator[None]:
    """A fixture's body, for many small steps: waiting for a second thread costs too much."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def row_of(inputs: tuple[Tensor, ...], row: int) -> tuple[Tensor, ...]:
    return tuple(each[row : row + 1] for each in inputs)
