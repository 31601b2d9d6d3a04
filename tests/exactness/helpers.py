"""Engines over tiny models and what their matrices know.

Random weights are hardly ever predicted by a matrix that learns as it goes. So tests that are
about accepted nodes `teach` it the plain answers first: the successor at rank 0 (or a little
behind, where a token has several) is what the target will say, and long paths are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from graft.engine import Engine
from graft.exactness import Comparison
from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings
from graft.target import TransformersTarget
from tests.cost_tables import FREE
from tests.fakes import byte_tokenizer
from tests.tiny_models import EOS_ID, VOCAB_SIZE, tiny_model

# A prompt of one token, shorter than any template; a short one; one longer than a window.
PROMPTS = [
    torch.randint(0, EOS_ID, (n,), generator=torch.Generator().manual_seed(n)).tolist()
    for n in (1, 7, 40)
]

Settings = SamplingParams | Callable[[], SamplingParams]


def new_target(family: str) -> TransformersTarget:
    return TransformersTarget(tiny_model(family), max_context=4096)


@cache
def family_target(family: str) -> TransformersTarget:
    """One for all tests, which leave its weights alone."""
    return new_target(family)


def family_engine(family: str, target: TransformersTarget | None = None, **settings: Any) -> Engine:
    """A fresh engine, with an empty matrix, over the family's tiny model; it retrieves unless
    told."""
    return Engine(
        target or family_target(family),
        byte_tokenizer(),
        name=family,
        token_count=VOCAB_SIZE,
        eos_token_ids=(EOS_ID,),
        settings=EngineSettings(**{"policy": "retrieval", **settings}),
        costs=FREE,
    )


def plain_answers(
    engine: Engine, prompts: Sequence[list[int]], params: Settings, batch: int = 1
) -> list[list[int]]:
    """Plain decoding of each prompt alone, with the noise that `compare` gives it."""
    out = []
    for i, prompt in enumerate(prompts):
        own = params() if callable(params) else params
        result = engine.continue_ids(prompt, own, row=i % batch, policy="plain")
        out.append(result.token_ids)
    return out


def teach(engine: Engine, *texts: Sequence[int]) -> None:
    """Let the matrix know what follows what in these texts."""
    for text in texts:
        engine.matrix.learn_text(torch.tensor(list(text)))


def freeze(engine: Engine) -> None:
    """The matrix stays as it is."""
    nothing = torch.zeros((), dtype=torch.int64)
    engine.matrix.write = lambda *_: nothing  # type: ignore[method-assign]
    engine.matrix.put = lambda *_: None  # type: ignore[method-assign]
    engine.matrix.learn_text = lambda *_: None  # type: ignore[method-assign]


def teach_answers(
    engine: Engine, prompts: Sequence[list[int]], params: Settings, batch: int = 1
) -> None:
    """Teach the plain answers to the prompts and freeze the matrix."""
    answers = plain_answers(engine, prompts, params, batch)
    # The first prompt is taught last: where answers contend for rank 0, it wins.
    for prompt, answer in reversed(list(zip(prompts, answers, strict=True))):
        teach(engine, [prompt[-1], *answer])
    freeze(engine)


def poison(engine: Engine, kind: str) -> None:
    """Fill the matrix with legal nonsense and freeze it."""
    size, k = engine.token_count, engine.matrix.k
    random = torch.Generator().manual_seed(9)
    rows = torch.stack([torch.randperm(size, generator=random)[:k] for _ in range(size)])
    engine.matrix.ids[:-1] = (rows if kind == "random" else rows[:1].expand_as(rows)).int()
    freeze(engine)


def assert_same(found: Comparison) -> None:
    assert found.same, f"{found.mismatches or found.excuses} in {found.tokens} tokens"


def assert_accepting(found: Comparison) -> None:
    """The comparison was one of trees: equality without accepted nodes says little."""
    assert found.tau is not None
    assert found.tau > 1.5, f"tau {found.tau:.2f}: hardly any node was accepted"
