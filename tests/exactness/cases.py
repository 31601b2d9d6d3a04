"""Settings of sampling that the suite runs through: each a function that makes them anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from graft.sampling_params import SamplingParams
from tests.tiny_models import EOS_ID


class Alternating:
    """A processor with a state: calls in turn disfavour the even and the odd ids. It goes wrong
    where a position is seen twice, out of order, or not at all."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        scores = scores.clone()
        scores[:, self.calls % 2 :: 2] -= 4.0
        return scores


def settings(**changes: Any) -> Callable[[], SamplingParams]:
    """A maker of settings: 24 tokens, seed 1, temperature 0.8 if nothing else is said."""
    processors = changes.pop("processors", ())
    fields = {"max_new_tokens": 24, "seed": 1, "temperature": 0.8, **changes}
    return lambda: SamplingParams(**fields, logits_processors=[make() for make in processors])


SETTINGS: dict[str, Callable[[], SamplingParams]] = {
    "greedy": settings(temperature=0.0),
    "sampled": settings(),
    "top_p": settings(top_p=0.9),
    "top_k": settings(top_k=20),
    "min_p": settings(min_p=0.05),
    "all cuts": settings(top_p=0.95, top_k=40, min_p=0.02),
    "repetition": settings(repetition_penalty=1.5),
    "counts": settings(presence_penalty=0.5, frequency_penalty=1.0, temperature=1.2),
    "bias": settings(logit_bias={7: 3.0, 9: 2.0, 11: -5.0}, banned_tokens=(3, 4)),
    "ngrams": settings(no_repeat_ngram_size=2, temperature=0.0, logit_bias={7: 4.0, 9: 4.0}),
    "minimum": settings(min_new_tokens=12, logit_bias={EOS_ID: 8.0}),
    "processor": settings(processors=[Alternating]),
    "greedy processor": settings(processors=[Alternating], temperature=0.0),
}
# Processors with a state are shared by the prompts of a call, so these take one at a time.
ALONE = ("processor", "greedy processor")
