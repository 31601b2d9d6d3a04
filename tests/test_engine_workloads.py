"""Many requests at once: plain answers, numbers that add up, an alarm where trees do not pay."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings
from graft.tree import Source
from tests.engines import check_arithmetic, greedy, small


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=6), min_size=1, max_size=4),
    st.integers(1, 30),
    st.integers(1, 60),
    st.integers(1, 4),
    st.sampled_from(["text", "logits", "off"]),
)
def test_any_workload_gives_plain_answers_and_adds_up(
    prompts: list[list[int]], limit: int, budget: int, max_batch: int, learning: Any
) -> None:
    choices = EngineSettings(budget=budget, max_batch=max_batch, prompt_learning=learning)
    engine = small(settings=choices)
    for result, prompt in zip(engine.generate(prompts, max_new_tokens=limit), prompts, strict=True):
        assert result.token_ids == greedy(engine, prompt, limit)
        assert result.finish_reason == "length"
        check_arithmetic(result, budget)
    engine.matrix.check_integrity()


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 30),
    st.integers(0, 2**40),
    st.lists(st.integers(0, 11), max_size=2),
)
def test_sampled_workloads_that_end_anywhere_add_up(
    prompts: list[list[int]], limit: int, seed: int, ends: list[int]
) -> None:
    engine = small(eos_token_ids=[5], settings=EngineSettings(budget=8))
    params = SamplingParams(
        max_new_tokens=limit, seed=seed, temperature=0.7, top_p=0.95, stop_token_ids=tuple(ends)
    )
    for row, result in enumerate(engine.generate(prompts, params)):
        alone = engine.continue_ids(prompts[row], params, row=row, policy="plain")
        assert result.token_ids == alone.token_ids
        assert (result.finish_reason, result.stop_reason) == (
            alone.finish_reason,
            alone.stop_reason,
        )
        check_arithmetic(result, 8)


def test_trees_are_accepted_in_this_file() -> None:
    engine = small()
    result = engine.generate([3], max_new_tokens=60)
    assert result.stats.tau is not None
    assert result.stats.tau > 1.3  # else the tests here would say little


def test_plain_decoding_is_one_token_per_round() -> None:
    result = small().generate([3], max_new_tokens=9, policy="plain")
    assert (result.stats.rounds, result.stats.tau) == (8, 1.0)
    assert {*result.sources} == {Source.TARGET}
    check_arithmetic(result, 0)


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_more_prompts_than_fit_wait_for_their_turn(batch: int) -> None:
    engine = small(settings=EngineSettings(max_batch=batch))
    prompts = [[i, i + 1] for i in range(6)]
    results = engine.generate(prompts, max_new_tokens=15)
    assert [r.token_ids for r in results] == [greedy(engine, p, 15) for p in prompts]
    assert max(r.batch for result in results for r in result.stats.round_records) == min(batch, 6)


def test_requests_end_at_different_times() -> None:
    engine = small(eos_token_ids=[5])
    prompts = [[i] for i in range(12) if i != 5]
    results = engine.generate(prompts, max_new_tokens=40)
    for prompt, result in zip(prompts, results, strict=True):
        plain = greedy(engine, prompt, 40)
        wanted = plain[: plain.index(5) + 1] if 5 in plain else plain
        assert result.token_ids == wanted
    assert len({len(r.token_ids) for r in results}) > 2


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, logger="graft"):
        yield caplog


def test_the_alarm_is_raised_once_where_trees_do_not_pay(
    warnings: pytest.LogCaptureFixture,
) -> None:
    engine = small(60, context=2.0, sharpness=0.1)
    for _ in range(3):
        engine.generate([3], policy="retrieval", max_new_tokens=250, temperature=5.0, seed=1)
    assert len([m for m in warnings.messages if "tau was" in m]) == 1


def test_no_alarm_where_they_pay(warnings: pytest.LogCaptureFixture) -> None:
    small().generate([3], max_new_tokens=400)
    assert not warnings.messages
