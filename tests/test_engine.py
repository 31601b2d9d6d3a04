"""The engine over a fake target: calls and their results, from first principles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from graft.matrix import EMPTY
from graft.request import Result
from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings
from graft.tree import Source
from tests.engines import check_arithmetic, greedy, small
from tests.fakes import CHAT_TEMPLATE, EOS_ID, byte_tokenizer, fake_engine


def test_one_prompt_gives_one_result_and_a_list_a_list() -> None:
    engine = small()
    one = engine.generate([3, 4], max_new_tokens=5)
    many = engine.generate([[3, 4]], max_new_tokens=5)
    assert isinstance(one, Result)
    assert isinstance(many, list)
    assert one.token_ids == many[0].token_ids == greedy(engine, [3, 4], 5)


def test_a_stream_gives_the_text_in_pieces() -> None:
    engine = fake_engine(likely=range(256), context=0.2)
    with engine.stream(["ab", "cd"], max_new_tokens=80, temperature=1.0, seed=3) as stream:
        tokens = list(stream)
    results = stream.results
    for index, result in enumerate(results):
        own = [t for t in tokens if t.request == index]
        assert "".join(t.text for t in own) == result.text
        assert [t.token_id for t in own] == result.token_ids
        assert result.text == engine.tokenizer.decode(result.token_ids, skip_special_tokens=True)
    assert any(ord(c) > 127 and c != "\ufffd" for r in results for c in r.text)


def test_a_stream_tells_the_source_of_every_token() -> None:
    stream = small().stream([3], max_new_tokens=40)
    sources = [t.source for t in stream]
    assert sources == stream.results[0].sources
    assert {*sources} == {Source.TARGET, Source.RETRIEVED}


def test_an_engine_does_one_thing_at_a_time() -> None:
    engine = small()
    first, second = engine.stream([3], max_new_tokens=9), engine.stream([4], max_new_tokens=9)
    next(first)
    for attempt in (
        lambda: next(second),
        lambda: engine.generate([5]),
        lambda: engine.logits_of([1]),
    ):
        with pytest.raises(RuntimeError, match="in the middle of another generation"):
            attempt()
    assert [t.token_id for t in first] == greedy(engine, [3], 9)[1:]
    assert engine.generate([5], max_new_tokens=4).token_ids == greedy(engine, [5], 4)


def test_a_stream_may_be_closed_early() -> None:
    engine = small()
    with engine.stream([[3], [4]], max_new_tokens=30) as stream:
        for _ in range(5):
            next(stream)
    with pytest.raises(RuntimeError, match="when the stream has ended"):
        _ = stream.results
    assert list(stream) == []
    results = engine.generate([[5], [6], [7]], max_new_tokens=20)
    assert [r.token_ids for r in results] == [greedy(engine, [i], 20) for i in (5, 6, 7)]


def test_a_stream_that_is_never_read_blocks_nothing() -> None:
    engine = small()
    engine.stream([3]).close()
    engine.stream([3])
    assert engine.generate([5], max_new_tokens=4).token_ids == greedy(engine, [5], 4)


def test_an_engine_works_on_after_an_error() -> None:
    engine, calls = small(), iter(range(5))

    def failing(ids: Tensor, scores: Tensor) -> Tensor:
        if next(calls) == 3:
            raise ZeroDivisionError
        return scores

    with pytest.raises(ZeroDivisionError):
        engine.generate([3], max_new_tokens=20, logits_processors=[failing])
    assert engine.generate([3], max_new_tokens=20).token_ids == greedy(engine, [3], 20)


@pytest.mark.parametrize("budget", [1, 5, 40])
@pytest.mark.parametrize("prompt", [1, 14, 19])
def test_the_context_of_the_model_is_a_limit(prompt: int, budget: int) -> None:
    engine = small(max_context=20, settings=EngineSettings(budget=budget))
    result = engine.generate([3] * prompt, max_new_tokens=50)
    assert result.token_ids == greedy(engine, [3] * prompt, 20 - prompt)
    assert (result.finish_reason, result.stop_reason) == ("length", None)
    check_arithmetic(result, budget)


@pytest.mark.parametrize("length", [20, 21])
def test_a_prompt_that_leaves_no_room_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"prompt has {length} tokens, but fake holds 20"):
        small(max_context=20).generate([3] * length)


@pytest.mark.parametrize("token", [-1, 12, 10**9])
def test_a_token_that_does_not_exist_is_refused(token: int) -> None:
    with pytest.raises(ValueError, match=f"token id {token}: fake has ids 0 to 11"):
        small(padding=4).generate([3, token])


def test_padding_of_the_logits_is_never_said() -> None:
    results = small(padding=6).generate([[3], [4]], max_new_tokens=30, temperature=2.0, seed=1)
    assert max(t for r in results for t in r.token_ids) < 12


def test_one_token_in_one_token_out() -> None:
    result = small().generate([0], max_new_tokens=1)
    assert len(result.token_ids) == 1
    assert (result.stats.rounds, result.stats.tau, result.stats.tokens_per_second) == (
        0,
        None,
        None,
    )
    check_arithmetic(result, 4)


def test_an_end_token_ends_unless_ignored() -> None:
    engine = fake_engine(likely=[97, 98, EOS_ID], sharpness=0.5)
    ended = engine.generate("a", max_new_tokens=200, temperature=1.0, seed=1)
    assert (ended.finish_reason, ended.stop_reason) == ("stop", EOS_ID)
    assert ended.token_ids.index(EOS_ID) == len(ended.token_ids) - 1
    more = engine.generate("a", max_new_tokens=200, temperature=1.0, seed=1, ignore_eos=True)
    assert (len(more.token_ids), more.finish_reason) == (200, "length")
    assert more.token_ids[: len(ended.token_ids)] == ended.token_ids


def test_settings_are_given_once() -> None:
    with pytest.raises(ValueError, match="sampling or top_k, not both"):
        small().generate([3], SamplingParams(), top_k=3)
    assert small().generate([3], SamplingParams(max_new_tokens=2)).finish_reason == "length"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "eagle"}, "policy='eagle'"),
        ({"budget": 0}, "budget=0"),
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"stop_token_ids": [12]}, "stop_token_ids: 12"),
        ({"banned_tokens": range(12)}, "forbid all 12"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], message: str) -> None:
    engine = small()
    with pytest.raises(ValueError, match=message):
        engine.generate([3], **options)
    assert len(engine.generate([3], max_new_tokens=3).token_ids) == 3


def test_texts_and_messages_are_encoded() -> None:
    engine = fake_engine(tokenizer=byte_tokenizer(CHAT_TEMPLATE))
    chat = engine.generate([{"role": "user", "content": "hi"}], max_new_tokens=9)
    assert engine.generate("hi", max_new_tokens=9).token_ids == chat.token_ids
    raw = engine.generate("hi", max_new_tokens=9, raw=True)
    assert (raw.usage.prompt_tokens, chat.usage.prompt_tokens) == (2, 20)
    assert raw.token_ids == greedy(engine, list(b"hi"), 9)


def test_the_matrix_is_shared_by_calls_and_prompts() -> None:
    engine = small()
    assert (engine.matrix.ids == EMPTY).all()
    cold = engine.generate([3], max_new_tokens=40).stats
    warm = engine.generate([3], max_new_tokens=40).stats
    assert warm.tau is not None
    assert cold.tau is not None
    assert warm.tau > cold.tau
    held = engine.matrix.ids.clone()
    engine.generate([3], max_new_tokens=9, policy="plain")
    assert torch.equal(engine.matrix.ids, held)


def test_a_bad_prompt_in_a_batch_is_named_by_its_place() -> None:
    engine = fake_engine()
    with pytest.raises(ValueError, match="prompt 1: the prompt is empty"):
        engine.generate(["good", ""], max_new_tokens=2)
