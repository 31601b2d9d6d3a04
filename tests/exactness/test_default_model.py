"""The default model: real weights, real prompts, nothing taught."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import graft
from graft.exactness import Comparison, compare
from graft.law import law_test
from graft.settings import DRAFTING
from tests.exactness.helpers import assert_same

GREEDY = graft.SamplingParams(max_new_tokens=120)
SAMPLED = graft.SamplingParams(temperature=0.7, top_p=0.9, seed=11, max_new_tokens=50)
PROMPTS = [
    "Write a Python class for a bank account with deposit and withdraw methods.",
    "List the planets of the solar system, one per line, with one fact about each.",
    "Tell me a short story about a lighthouse keeper.",
    "Explain how rain forms.",
]


@pytest.fixture(scope="module")
def engine() -> Iterator[graft.Engine]:
    before = torch.get_num_threads()
    try:
        yield graft.load("smollm2-135m", threads=2)
    except graft.ModelError as error:
        if "could not be fetched" not in str(error):
            raise
        pytest.skip(str(error))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("prompt", "params", "budget", "tau"),
    [
        (2, SAMPLED, 4, 1.0),
        pytest.param(0, GREEDY, 16, 1.3, marks=pytest.mark.slow),
        pytest.param(1, GREEDY, 4, 1.05, marks=pytest.mark.slow),
        pytest.param(3, SAMPLED, 16, 1.0, marks=pytest.mark.slow),
    ],
)
def test_trees_say_what_plain_decoding_says(
    engine: graft.Engine, prompt: int, params: graft.SamplingParams, budget: int, tau: float
) -> None:
    engine.matrix.clear()
    found = compare(engine, PROMPTS[prompt], params, policy="graft", budget=budget)
    assert_same(found)
    _assert_grown(found, tau)


def test_its_head_comes_with_it(engine: graft.Engine) -> None:
    assert engine.drafter is not None
    assert (engine.drafter.name, engine.policy) == ("eagle3", "graft+")
    found = engine.generate(PROMPTS[0], policy="eagle3", budget=8, max_new_tokens=32)
    assert found.stats.tau is not None
    assert found.stats.tau > 2.0
    assert found.token_ids == engine.generate(PROMPTS[0], max_new_tokens=32).token_ids


def test_its_head_can_be_left_out() -> None:
    without = graft.load("smollm2-135m", head="none", threads=torch.get_num_threads())
    assert (without.drafter, without.policy) == (None, "graft+")


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("policy", [policy for policy in DRAFTING if policy != "dense"])
def test_every_policy_that_drafts(engine: graft.Engine, policy: str, temperature: float) -> None:
    params = graft.SamplingParams(temperature=temperature, seed=3, max_new_tokens=60)
    found = compare(engine, PROMPTS[:2], params, policy=policy, budget=16)
    assert_same(found)
    _assert_grown(found, 1.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "budget"),
    [(GREEDY, 16), (SAMPLED, 4), (replace(SAMPLED, repetition_penalty=1.2), 60)],
)
def test_batches_of_long_answers(
    engine: graft.Engine, params: graft.SamplingParams, budget: int
) -> None:
    params = replace(params, max_new_tokens=200)
    assert_same(compare(engine, PROMPTS, params, budget=budget, batch=4))


@pytest.mark.slow
def test_the_law_of_short_answers(engine: graft.Engine) -> None:
    params = graft.SamplingParams(temperature=1.0, top_p=0.9, seed=2)
    found = law_test(engine, PROMPTS[3], params, 400, policy="graft", budget=16)
    assert found.passed
    assert found.cells > 10
    assert found.accepted_share > 0.2


def _assert_grown(found: Comparison, tau: float) -> None:
    assert found.tokens > 20
    assert found.tau is not None
    assert found.tau > tau
