"""Transformers' own decoding, timed from outside: `generate`, and its prompt lookup.

The model is a copy as Transformers loads it, in its own weights and with its own kernels. Times
are taken as a streamer is handed the tokens, which is once per forward.

Invariant: what the model's files say about generation (penalties, top-k, lengths) is left out, as
Graft leaves it out; only what is given here counts. It knows no engine of Graft.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from graft.request import FinishReason


class Outside(NamedTuple):
    """One answer."""

    token_ids: list[int]
    first_tokens: int  # of the first forward, where prompt lookup may bring several
    rounds: int  # forwards after the first one
    finish_reason: FinishReason
    time_to_first_token: float
    latency_seconds: float

    @property
    def tau(self) -> float:
        """Tokens per forward after the first forward."""
        return (len(self.token_ids) - self.first_tokens) / self.rounds if self.rounds else 1.0


class Asked(NamedTuple):
    """What a method of others is asked."""

    prompt: Sequence[int]
    lookup: int  # tokens that prompt lookup copies at most; 0 is none of it
    max_new_tokens: int
    temperature: float
    eos_token_ids: Sequence[int]
    seed: int


Answer = Callable[[Asked], Outside]  # a way of others to answer


class _Clock(BaseStreamer):
    """Notes when tokens come, and how many. The first call brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.sizes: list[int] = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())
        self.sizes.append(value.numel())

    def end(self) -> None:
        pass


def generate(model: PreTrainedModel, asked: Asked) -> Outside:
    """Answer one prompt. torch's random numbers are left as they were."""
    ids = torch.tensor([list(asked.prompt)], device=model.device)
    ends = asked.eos_token_ids
    options: dict[str, Any] = {"prompt_lookup_num_tokens": asked.lookup} if asked.lookup else {}
    if asked.temperature:
        options |= {"temperature": asked.temperature, "top_k": 0}
    clock = _Clock()
    with _seeded(model, asked.seed), _plain_config(model):
        start = time.perf_counter()
        out = model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=bool(asked.temperature),
            max_new_tokens=asked.max_new_tokens,
            eos_token_id=list(ends) or None,
            pad_token_id=ends[0] if ends else 0,
            streamer=clock,
            **options,
        )
    answer = out[0, len(asked.prompt) :].tolist()
    first, last = clock.times[1], clock.times[-1]
    return Outside(
        token_ids=answer,
        first_tokens=clock.sizes[1],
        rounds=len(clock.times) - 2,
        finish_reason="stop" if answer[-1] in ends else "length",
        time_to_first_token=first - start,
        latency_seconds=last - start,
    )


@contextmanager
def _seeded(model: PreTrainedModel, seed: int) -> Iterator[None]:
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def _plain_config(model: PreTrainedModel) -> Iterator[None]:
    """Without the model's own settings: Transformers adds them to whatever a call leaves open."""
    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own
