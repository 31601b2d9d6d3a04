"""Engines over fake and tiny models, and what their answers must be.

Invariant: the fake law here is one that the last token almost decides, so that many retrieved
nodes are accepted; tests of accepted tokens check that they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from graft.engine import Engine
from graft.request import Result
from graft.settings import EngineSettings
from graft.target import TransformersTarget
from graft.tree import Source
from tests.cost_tables import FREE
from tests.fakes import FakeTarget, byte_tokenizer, fake_engine
from tests.tiny_models import EOS_ID, VOCAB_SIZE, tiny_model

EASY: dict[str, Any] = {"order": 2, "context": 0.2}


def small(vocab_size: int = 12, **changes: Any) -> Engine:
    """An engine over a fake target of few tokens."""
    return fake_engine(vocab_size, **{**EASY, **changes})


def tiny_engine(family: str = "llama", **changes: Any) -> Engine:
    """An engine over a real architecture, which retrieves unless told; its answers are spelt in
    bytes."""
    return Engine(
        TransformersTarget(tiny_model(family), max_context=200),
        byte_tokenizer(),
        name=family,
        token_count=VOCAB_SIZE,
        eos_token_ids=(EOS_ID,),
        settings=EngineSettings(**{"policy": "retrieval", **changes}),
        costs=FREE,
    )


def law_of(engine: Engine, tokens: Sequence[int]) -> Tensor:
    """Logits [V] after `tokens`, from the fake target's law."""
    assert isinstance(engine.target, FakeTarget)
    return engine.target.law(tokens)


def greedy(engine: Engine, prompt: Sequence[int], count: int) -> list[int]:
    """The greedy answer from the law itself."""
    out = list(prompt)
    for _ in range(count):
        out.append(int(law_of(engine, out).argmax()))
    return out[len(prompt) :]


def warm(engine: Engine, prompt: Sequence[int], **options: Any) -> Result:
    """A second answer to a prompt, with a matrix that has seen the first one."""
    engine.generate(list(prompt), **options)
    again = engine.generate(list(prompt), **options)
    assert again.stats.tau is not None
    assert again.stats.tau > 1.2  # else what is said of accepted tokens says little
    return again


def check_arithmetic(result: Result, budget: int) -> None:
    """What must add up in every result."""
    stats, records = result.stats, result.stats.round_records
    committed = 1 + stats.accepted_draft + stats.accepted_retrieved + stats.rounds
    assert committed - stats.trimmed == len(result.token_ids) == result.usage.completion_tokens
    assert len(result.sources) == len(result.token_ids)
    assert result.sources[0] == Source.TARGET
    assert stats.rounds == len(records)
    for record in records:
        assert record.proposed + record.empty_slots + record.unspent_slots == budget
        assert record.accepted <= record.proposed
    if stats.tau is not None:
        assert stats.tau == pytest.approx(1 + sum(r.accepted for r in records) / len(records))
