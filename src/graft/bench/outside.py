"""Transformers' own decoding, timed from outside: `generate`, and its prompt lookup.

The model is a copy as Transformers loads it, in its own weights and with its own kernels. Times
are taken as a streamer is handed the tokens. It knows no engine of Graft.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer


class Outside(NamedTuple):
    """One answer."""

    token_ids: list[int]
    rounds: int  # forwards after the first one, as far as the streamer shows them
    time_to_first_token: float
    latency_seconds: float

    @property
    def tau(self) -> float:
        """Tokens per forward after the first."""
        return (len(self.token_ids) - 1) / self.rounds if self.rounds else 1.0


class _Clock(BaseStreamer):
    """Notes when tokens come. The first call brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def generate(
    model: PreTrainedModel,
    prompt: Sequence[int],
    *,
    lookup: int,
    max_new_tokens: int,
    temperature: float,
    eos_token_ids: Sequence[int],
    seed: int,
) -> Outside:
    """Answer one prompt.

    Args:
        lookup: tokens that prompt lookup copies at most; 0 is plain `generate`.
    """
    ids = torch.tensor([list(prompt)], device=model.device)
    options: dict[str, Any] = {"prompt_lookup_num_tokens": lookup} if lookup else {}
    if temperature:
        torch.manual_seed(seed)
        options |= {"temperature": temperature, "top_k": 0}
    clock, start = _Clock(), time.perf_counter()
    out = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=bool(temperature),
        max_new_tokens=max_new_tokens,
        eos_token_id=list(eos_token_ids) or None,
        pad_token_id=eos_token_ids[0] if eos_token_ids else 0,
        streamer=clock,
        **options,
    )
    answer = out[0, len(prompt) :].tolist()
    first, last = clock.times[1], clock.times[-1]
    return Outside(answer, len(clock.times) - 2, first - start, last - start)
