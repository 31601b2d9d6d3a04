"""Who learns from whom: under matrix_scope "request" nobody from anybody."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from graft.metrics import RoundRecord, RoundTimes
from graft.request import Result
from graft.settings import EngineSettings
from tests.fakes import fake_engine

PROMPTS = [[5, 3, 5, 3, 5], [5, 3, 5, 3, 5], [7, 5, 3], [3, 5, 3, 5, 3, 5]]


def rounds(result: Result) -> list[RoundRecord]:
    """What a request's rounds were, whoever ran beside it. (How much is looked up depends on how
    deep the deepest tree of a batch goes.)"""
    beside = {"times": RoundTimes(), "batch": 1, "rows_written": 0}
    beside |= dict.fromkeys(("lookups", "hits", "context_lookups", "context_hits"), 0)
    return [replace(r, **beside) for r in result.stats.round_records]


def answers(
    policy: str, batch: int, scope: Literal["request", "process"], prompts: list[list[int]]
) -> list[Result]:
    settings = EngineSettings(k=4, matrix_scope=scope, max_batch=batch, budget=6)
    engine = fake_engine(12, settings=settings, order=2, context=0.0)
    return engine.generate(prompts, policy=policy, max_new_tokens=20)


@pytest.mark.parametrize("policy", ["retrieval", "suffix", "graft+"])
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_a_request_finds_nothing_of_another(policy: str, batch: int) -> None:
    """Not of those before it in its slot either, nor of those beside it."""
    together = answers(policy, batch, "request", PROMPTS)
    for prompt, found in zip(PROMPTS, together, strict=True):
        (alone,) = answers(policy, 1, "request", [prompt])
        assert found.token_ids == alone.token_ids
        assert rounds(found) == rounds(alone)
    assert sum(r.accepted for result in together for r in rounds(result)) > 0


@pytest.mark.parametrize("policy", ["retrieval", "suffix", "graft+"])
def test_the_comparison_notices_what_is_shared(policy: str) -> None:
    """The negative control: in a process the second of two equal requests finds the first."""
    first, second = answers(policy, 1, "process", PROMPTS[:2])
    assert first.token_ids == second.token_ids
    assert rounds(first) != rounds(second)
