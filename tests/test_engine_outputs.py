"""What comes with the tokens: log-probabilities, seeds, processors' calls, cached turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from graft.engine import Engine
from graft.request import Logprob, Result
from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings
from graft.target import TransformersTarget
from graft.tree import Source
from tests.engines import EASY, greedy, law_of, small, tiny_engine, warm
from tests.fakes import FakeTarget, byte_tokenizer, fake_engine
from tests.tiny_models import VOCAB_SIZE, tiny_model


def check_logprobs(known: Tensor, tokens: Sequence[int], found: list[Logprob], top: int) -> None:
    """Against raw logits [n, V] of the very text that was committed."""
    for logits, token, said in zip(known.log_softmax(1), tokens, found, strict=True):
        assert said.chosen == pytest.approx(float(logits[token]), abs=1e-4)
        best = logits.topk(top)
        assert list(said.top) == best.indices.tolist()
        assert list(said.top.values()) == pytest.approx(best.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "seed": 4, "top_p": 0.9}])
def test_log_probabilities_are_the_laws_own(options: dict[str, Any]) -> None:
    engine = small(padding=3)
    result = warm(engine, [3, 4], max_new_tokens=40, logprobs=5, **options)
    assert result.logprobs is not None
    tokens = result.token_ids
    known = torch.stack([law_of(engine, [3, 4, *tokens[:i]])[:12] for i in range(len(tokens))])
    check_logprobs(known, tokens, result.logprobs, 5)
    assert Source.RETRIEVED in result.sources


def test_log_probabilities_are_those_of_a_teacher_forced_model() -> None:
    engine = tiny_engine()
    result = warm(engine, [5, 6, 7], max_new_tokens=40, logprobs=3, temperature=0.4, seed=2)
    assert result.logprobs is not None
    assert isinstance(engine.target, TransformersTarget)
    text = torch.tensor([[5, 6, 7, *result.token_ids]])
    with torch.inference_mode():
        known = engine.target.model(text, use_cache=False).logits[0, 2:-1]
    check_logprobs(known, result.token_ids, result.logprobs, 3)


def test_a_stream_carries_the_log_probabilities() -> None:
    stream = small().stream([3], max_new_tokens=9, logprobs=2)
    found = [t.logprob for t in stream]
    assert found == stream.results[0].logprobs
    assert small().generate([3], max_new_tokens=9).logprobs is None


class Recorder:
    """A processor with a state: it disfavours even and odd ids in turn, and keeps its calls."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.seen.append(ids[0].tolist())
        scores[:, len(self.seen) % 2 :: 2] -= 1.0
        return scores


ENDS: list[dict[str, Any]] = [{}, {"stop_token_ids": [2]}, {"stop": ["d", "gh"]}]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("policy", ["plain", "retrieval"])
def test_a_processor_sees_each_output_position_once_in_order(
    policy: str, end: dict[str, Any]
) -> None:
    engine = fake_engine(likely=range(97, 109), **EASY)
    prompt = list(b"ab")
    warm(engine, prompt, max_new_tokens=40)
    for seed in range(8):
        recorder = Recorder()
        result = engine.generate(
            prompt,
            max_new_tokens=17,
            temperature=0.5,
            seed=seed,
            policy=policy,
            logits_processors=[recorder],
            **end,
        )
        tokens = result.token_ids
        assert recorder.seen == [[*prompt, *tokens[:i]] for i in range(len(tokens))]


def test_processors_make_the_same_answer_with_and_without_trees() -> None:
    engine = small()
    warm(engine, [3], max_new_tokens=60)
    plain, tree = (
        engine.generate([3], max_new_tokens=60, policy=policy, logits_processors=[Recorder()])
        for policy in ("plain", "retrieval")
    )
    assert tree.token_ids == plain.token_ids
    assert tree.stats.tau is not None
    assert tree.stats.tau > 1.0


def test_a_ban_that_would_leave_nothing_behind_the_end_does_not_matter() -> None:
    engine = small(5, order=1, context=0.0)
    for start in range(5):
        options: dict[str, Any] = {"max_new_tokens": 4, "no_repeat_ngram_size": 1, "budget": 20}
        result = engine.generate([start], **options)
        assert sorted([start, *result.token_ids]) == [0, 1, 2, 3, 4]


SAMPLED: dict[str, Any] = {"max_new_tokens": 30, "temperature": 1.0}


def test_a_seed_is_reported_and_repeats_the_answer() -> None:
    engine = small()
    first, second = (engine.generate([3], **SAMPLED) for _ in range(2))
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    for result in (first, second):
        for policy in ("plain", "retrieval"):
            again = engine.generate([3], seed=result.seed, policy=policy, **SAMPLED)
            assert again.token_ids == result.token_ids
            assert again.seed == result.seed


@pytest.mark.parametrize("seed", [0, -5, 2**63, 2**70 + 1])
def test_any_integer_is_a_seed(seed: int) -> None:
    result = small().generate([3], seed=seed, **SAMPLED)
    assert result.seed == seed
    assert small().generate([3], seed=seed, **SAMPLED).token_ids == result.token_ids


def test_prompts_of_a_call_draw_their_own_noise() -> None:
    engine = small()
    together = engine.generate([[3], [3], [3]], seed=5, **SAMPLED)
    assert len({tuple(r.token_ids) for r in together}) == 3
    for row, result in enumerate(together):
        params = SamplingParams(seed=5, **SAMPLED)
        assert engine.continue_ids([3], params, row=row).token_ids == result.token_ids
    fresh = engine.generate([[3], [3]], **SAMPLED)
    assert fresh[0].seed != fresh[1].seed


@pytest.mark.parametrize("policy", ["plain", "retrieval"])
def test_an_answer_can_be_continued_from_its_middle(policy: str) -> None:
    engine = small()
    params = SamplingParams(seed=5, presence_penalty=0.5, **SAMPLED)
    whole = engine.continue_ids([3, 4], params, policy="plain").token_ids
    for place in (0, 1, 17, 29):
        rest = engine.continue_ids([3, 4], params, forced=whole[:place], policy=policy)
        assert rest.token_ids == whole[place:]
    with pytest.raises(ValueError, match="30 forced tokens leave nothing to draw"):
        engine.continue_ids([3, 4], params, forced=whole)
    with pytest.raises(ValueError, match="token id 12"):
        engine.continue_ids([3, 4], params, forced=[12])


def test_logits_of_a_text_are_the_laws() -> None:
    engine = small()
    found = engine.logits_of([3, 4, 5, 6], last=3)
    assert torch.equal(found, torch.stack([law_of(engine, [3, 4, 5, 6][:n]) for n in (2, 3, 4)]))
    assert torch.equal(engine.logits_of([3]), law_of(engine, [3]).unsqueeze(0))


def turn(engine: Engine, prompt: list[int], **options: Any) -> Result:
    stream = engine.stream(prompt, max_new_tokens=12, reuse_prefix=True, **options)
    for _ in stream:
        pass
    result = stream.results[0]
    if isinstance(engine.target, FakeTarget):  # whose law does not look far back
        rows = engine.target.committed[0]
        assert rows[: len(prompt) + 11] == [*prompt, *result.token_ids[:-1]]
    return result


@pytest.mark.parametrize("policy", ["plain", "retrieval"])
@pytest.mark.parametrize("kind", ["fake", "model"])
def test_a_next_turn_keeps_the_cache_and_says_the_same(kind: str, policy: str) -> None:
    def engine() -> Engine:
        return small() if kind == "fake" else tiny_engine()

    kept, prompt = engine(), [3, 4, 5]
    for number in range(4):
        result = turn(kept, prompt, policy=policy)
        assert result.token_ids == engine().generate(prompt, max_new_tokens=12).token_ids
        if number:
            assert result.usage.cached_tokens >= len(prompt) - 4
        prompt = [*prompt, *result.token_ids, 7, number]


def test_a_next_turn_teaches_contexts_what_is_new() -> None:
    """The conversation so far is not counted again; the token in front of what is new may be."""
    kept, prompt = small(), [3, 4, 5]
    for number in range(5):
        result = turn(kept, prompt, policy="suffix")
        prompt = [*prompt, *result.token_ids, 7, number]
    contexts = kept.memory.contexts
    seen = int(contexts.seen[:-1].sum())
    whole = len(prompt) * len(contexts.orders)
    assert 0.7 * whole < seen + int(contexts.replaced) <= whole + 5 * len(contexts.orders)


def test_a_next_turn_that_begins_otherwise_keeps_what_is_common() -> None:
    engine = small()
    turn(engine, [3, 4, 5, 6])
    other = turn(engine, [3, 4, 9, 9, 9])
    assert other.usage.cached_tokens == 2
    assert other.token_ids == small().generate([3, 4, 9, 9, 9], max_new_tokens=12).token_ids


@pytest.mark.parametrize("between", ["call", "list", "reusing list", "closed", "logits"])
def test_another_use_of_the_engine_does_not_mislead_a_next_turn(between: str) -> None:
    engine = small(settings=EngineSettings(max_batch=1))
    turn(engine, [3, 4, 5])
    if between == "call":
        engine.generate([3, 4, 9], max_new_tokens=3)
    elif between == "list":
        engine.generate([[3, 4, 5, 6], [9] * 5], max_new_tokens=3)
    elif between == "reusing list":
        list(engine.stream([[3, 4, 5, 6], [9] * 5], max_new_tokens=3, reuse_prefix=True))
    elif between == "closed":
        with engine.stream([3, 4, 9], max_new_tokens=30) as stream:
            next(stream)
    else:
        engine.logits_of([3, 4, 9, 9])
    result = turn(engine, [3, 4, 5, 6])
    assert result.token_ids == small().generate([3, 4, 5, 6], max_new_tokens=12).token_ids


def test_a_list_of_prompts_reuses_nothing() -> None:
    engine = small()
    turn(engine, [3, 4, 5])
    stream = engine.stream([[3, 4, 5, 6], [3, 4, 7]], max_new_tokens=9, reuse_prefix=True)
    for _ in stream:
        pass
    assert [r.usage.cached_tokens for r in stream.results] == [0, 0]
    fresh = small().generate([[3, 4, 5, 6], [3, 4, 7]], max_new_tokens=9)
    assert [r.token_ids for r in stream.results] == [r.token_ids for r in fresh]


@pytest.mark.parametrize("kind", ["fake", "model"])
def test_what_a_closed_stream_committed_serves_a_next_turn(kind: str) -> None:
    engine = small() if kind == "fake" else tiny_engine()
    with engine.stream([3, 4, 5], max_new_tokens=30, reuse_prefix=True) as stream:
        seen = [next(stream).token_id for _ in range(4)]
    prompt = [3, 4, 5, *seen, 7]
    result = turn(engine, prompt)
    assert result.usage.cached_tokens >= 3 + len(seen) - 1
    fresh = small() if kind == "fake" else tiny_engine()
    assert result.token_ids == fresh.generate(prompt, max_new_tokens=12).token_ids


def test_a_call_without_reuse_starts_afresh() -> None:
    engine = small()
    turn(engine, [3, 4, 5])
    assert engine.generate([3, 4, 5, 6], max_new_tokens=4).usage.cached_tokens == 0


@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_narrow_matrix_uses_what_it_holds_of_the_template(k: int) -> None:
    engine = Engine(
        FakeTarget(12, **EASY),
        byte_tokenizer(),
        name="fake",
        token_count=12,
        eos_token_ids=(),
        settings=EngineSettings(k=k, budget=20),
    )
    assert engine.templates[0].ranks_used == k
    result = warm(engine, [3], max_new_tokens=30)
    assert result.token_ids == small().generate([3], max_new_tokens=30, policy="plain").token_ids


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_a_real_model_ends_exactly_at_its_context(family: str) -> None:
    options: dict[str, Any] = {"n_positions": 32} if family == "gpt2" else {}
    engine = Engine(
        TransformersTarget(tiny_model(family, **options), max_context=32),
        byte_tokenizer(),
        name=family,
        token_count=VOCAB_SIZE,
        eos_token_ids=(),
        settings=EngineSettings(budget=9),
    )
    plain = engine.generate([5, 6, 7], max_new_tokens=99, policy="plain")
    tree = warm(engine, [5, 6, 7], max_new_tokens=99)
    assert tree.token_ids == plain.token_ids
    assert (len(tree.token_ids), tree.finish_reason) == (29, "length")


def test_a_prefix_is_not_taken_from_another_engine_over_the_same_target() -> None:
    first = small()
    second = fake_engine(12, target=first.target)  # type: ignore[arg-type]
    turn = first.generate([3, 4, 5, 6], max_new_tokens=6)
    follow = [3, 4, 5, 6, *turn.token_ids, 7]
    second.generate([9, 8, 7, 6, 5, 4, 3], max_new_tokens=9)
    stream = first.stream(follow, max_new_tokens=6, reuse_prefix=True)
    assert [t.token_id for t in stream] == greedy(first, follow, 6)
    assert stream.results[0].usage.cached_tokens == 0
    again = first.stream(follow, max_new_tokens=6, reuse_prefix=True)
    assert [t.token_id for t in again] == greedy(first, follow, 6)
    assert again.results[0].usage.cached_tokens > 0
