"""Comparing a decoding function with plain `generate`, token for token.

Invariant: `agree` passes only where both gave the same tensor. Matrices are taught the plain
answer first, so that what is compared are accepted nodes and not single tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from graft.engine import Engine
from graft.integrations.transformers import Decode, engine_of, forget
from graft.target import TransformersTarget
from tests.exactness.helpers import teach
from tests.fakes import byte_tokenizer
from tests.tiny_models import EOS_ID, VOCAB_SIZE, tiny_model

COUNT = 16  # output tokens of most comparisons

# What a call is given besides its prompts: a dictionary, or a function that makes it anew for
# each decoding, which processors and criteria with a state need.
Settings = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


@cache
def model_of(family: str) -> PreTrainedModel:
    """One for all tests that leave it as it is."""
    return tiny_model(family)


def row(length: int, seed: int = 0) -> list[int]:
    """A prompt without the ids of padding (0) and end (255)."""
    generator = torch.Generator().manual_seed(100 * seed + length)
    return torch.randint(1, 255, (length,), generator=generator).tolist()


def batch(*rows: list[int]) -> dict[str, Tensor]:
    """Rows as a tokenizer pads them at the left."""
    width = max(map(len, rows))
    padded = [[0] * (width - len(each)) + each for each in rows]
    mask = [[0] * (width - len(each)) + [1] * len(each) for each in rows]
    return {"input_ids": torch.tensor(padded), "attention_mask": torch.tensor(mask)}


ONE = batch(row(7))
PADDED = batch(row(7), row(3), row(12))


@cache
def answer() -> list[int]:
    """What the tiny Llama says to the one row; its first tokens differ from each other."""
    tokens: list[int] = generate(model_of("llama"), ONE, {})[0, 7:].tolist()
    return tokens


def generate(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], settings: Settings, **more: Any
) -> Any:
    """A call of `generate`, greedy unless the settings say otherwise."""
    own = settings() if callable(settings) else settings
    length = {} if "max_length" in own else {"max_new_tokens": COUNT}
    return model.generate(**inputs, **{"do_sample": False, **length, **own, **more})  # type: ignore[operator]


def agree(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    settings: Settings,
    function: Callable[..., Any] | None = None,
) -> float:
    """Fail unless both decode the same; returns accepted tokens and bonus per forward.

    Args:
        function: the decoding function; None for Graft's.
    """
    decode = Decode()
    forget(model)  # whatever other tests have taught
    plain = generate(model, inputs, settings)
    for sequence in plain.tolist():
        teach(engine_of(model), sequence)
    ours = generate(model, inputs, settings, custom_generate=function or decode)
    assert ours.dtype == plain.dtype
    assert ours.tolist() == plain.tolist()
    if function is not None:
        return 0.0
    records = [record for result in decode.last_results for record in result.stats.round_records]
    return 1 + sum(record.accepted for record in records) / max(len(records), 1)


def engine_over(model: Any) -> Engine:
    """An engine as a user makes it, with a tokenizer."""
    return Engine(
        TransformersTarget(model, max_context=200),
        byte_tokenizer(),
        name="tiny",
        token_count=VOCAB_SIZE,
        eos_token_ids=(EOS_ID,),
    )
