"""Budgets, batches, matrices and lengths: none of them changes a token."""

from __future__ import annotations

import pytest

from graft.engine import Engine
from graft.exactness import compare
from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings
from graft.target import TransformersTarget
from tests.exactness.cases import SETTINGS, settings
from tests.exactness.helpers import (
    PROMPTS,
    assert_accepting,
    assert_same,
    family_engine,
    plain_answers,
    poison,
    teach,
    teach_answers,
)
from tests.fakes import fake_engine
from tests.tiny_models import tiny_model

SAMPLED = SETTINGS["all cuts"]


@pytest.mark.parametrize("budget", [1, 4, 16, 60])
def test_any_budget(budget: int) -> None:
    engine = family_engine("gemma2")
    teach_answers(engine, PROMPTS, SAMPLED, batch=3)
    found = compare(engine, PROMPTS, SAMPLED, budget=budget, batch=3)
    assert_same(found)
    assert_accepting(found)


@pytest.mark.parametrize(
    ("matrix", "learning"),
    [
        ("cold", "text"),
        ("cold", "logits"),
        ("cold", "off"),
        ("warm", "text"),
        ("random", "off"),
        ("equal", "off"),
    ],
)
def test_any_matrix(matrix: str, learning: str) -> None:
    engine = family_engine("qwen3", prompt_learning=learning)
    if matrix == "warm":
        teach(engine, *plain_answers(engine, PROMPTS, SAMPLED, batch=3))
    elif matrix in ("random", "equal"):
        poison(engine, matrix)
    assert_same(compare(engine, PROMPTS, SAMPLED, budget=16, batch=3))


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_any_batch_with_uneven_acceptance(batch: int) -> None:
    """Three prompts, one of which is known by heart: their rounds and their ends differ."""
    engine = family_engine("mistral")
    answers = plain_answers(engine, PROMPTS, SAMPLED, batch)
    teach_answers(engine, PROMPTS[:1], SAMPLED, batch)
    found = compare(engine, PROMPTS, SAMPLED, budget=16, batch=batch)
    assert_same(found)
    taus = [p.tau or 0.0 for p in found.prompts]
    assert taus[0] > 1.5 > max(taus[1:]), "acceptance is uneven"
    assert found.tokens == sum(len(a) for a in answers)


def test_a_batch_is_its_single_runs() -> None:
    """With trees, too: each row alone, under its own number, has the same tokens."""
    engine = family_engine("llama", max_batch=2)  # the third prompt waits for a place
    teach_answers(engine, PROMPTS, SAMPLED, batch=3)
    together = engine.generate(list(PROMPTS), SAMPLED(), budget=8)
    for row, (prompt, result) in enumerate(zip(PROMPTS, together, strict=True)):
        alone = engine.continue_ids(prompt, SAMPLED(), row=row, budget=8)
        assert alone.token_ids == result.token_ids
    other = engine.continue_ids(PROMPTS[0], SAMPLED(), row=1, budget=8)
    assert other.token_ids != together[0].token_ids, "rows have noise of their own"


@pytest.mark.parametrize(("family", "field"), [("gpt2", "n_positions"), ("gemma3", None)])
def test_answers_that_fill_the_context(family: str, field: str | None) -> None:
    """The last trees reach beyond the last position, for which GPT-2 has no embedding."""
    context = len(PROMPTS[2]) + 20
    model = tiny_model(family, **({field: context} if field else {}))
    engine = family_engine(family, TransformersTarget(model, max_context=context))
    params = SamplingParams(max_new_tokens=100, ignore_eos=True)
    teach_answers(engine, PROMPTS[2:], params)
    found = compare(engine, PROMPTS[2:], params, budget=16)
    assert_same(found)
    assert_accepting(found)
    assert found.tokens == 20


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_forced_tokens_are_continued_as_the_whole_answer(temperature: float) -> None:
    engine = family_engine("llama")
    params = settings(temperature=temperature)()
    whole = engine.continue_ids(PROMPTS[1], params, row=2, policy="plain").token_ids
    for policy in ("plain", "retrieval"):
        rest = engine.continue_ids(PROMPTS[1], params, forced=whole[:9], row=2, policy=policy)
        assert rest.token_ids == whole[9:]


def test_no_more_tokens_can_be_forced_than_the_answer_has() -> None:
    with pytest.raises(ValueError, match="leave nothing to draw"):
        fake_engine(5).continue_ids([1], SamplingParams(max_new_tokens=3), forced=[1, 2, 3])


@pytest.mark.slow
def test_two_thousand_tokens() -> None:
    engine = fake_engine(40, settings=EngineSettings(k=8), sharpness=3.0)
    _compare_long(engine, SamplingParams(temperature=0.8, max_new_tokens=2000))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_two_thousand_tokens_of_a_model(family: str) -> None:
    engine = family_engine(family)
    params = SamplingParams(temperature=0.8, max_new_tokens=2000, ignore_eos=True)
    teach_answers(engine, PROMPTS[1:2], params)
    _compare_long(engine, params)


def _compare_long(engine: Engine, params: SamplingParams) -> None:
    prompt = [token % engine.token_count for token in PROMPTS[1]]
    found = compare(engine, prompt, params, budget=8)
    assert_same(found)
    assert found.tokens == 2000
    assert sum(p.accepted for p in found.prompts) > 40  # the matrix cannot know so many successors
