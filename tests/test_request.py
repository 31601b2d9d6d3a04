"""A request ends at one token, wherever in a block of a round it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.metrics import RoundRecord
from graft.request import Drawn, Logprob, Request, StreamToken
from graft.sampling_params import SamplingParams
from graft.tree import Source
from tests.records import make_record

EOS = 0
TWO_BYTES = 300  # a token whose text is "END" and the beginning of a character


def decode(ids: Sequence[int]) -> str:
    parts = [b"END\xe6" if i == TWO_BYTES else bytes([i]) for i in ids]
    return b"".join(parts).decode(errors="replace")


def request(limit: int = 100, forced: Sequence[int] = (), **params: Any) -> Request:
    return Request(
        index=3,
        prompt=[5, 6, 7],
        params=SamplingParams(max_new_tokens=limit, **params),
        seed=11,
        row=0,
        stop_ids=frozenset({EOS, *params.get("stop_token_ids", ())}),
        limit=limit,
        decode=decode,
        forced=list(forced),
    )


def drawn(tokens: Sequence[int]) -> list[Drawn]:
    """A block: accepted nodes of both sources in turn, then the target's own token."""
    sources = [Source.RETRIEVED if i % 2 else Source.DRAFT for i in range(len(tokens) - 1)]
    return [
        Drawn(t, s, Logprob(-float(t), {t: -float(t)}))
        for t, s in zip(tokens, [*sources, Source.TARGET], strict=True)
    ]


def run(req: Request, blocks: Sequence[Sequence[int]]) -> list[StreamToken]:
    out: list[StreamToken] = []
    for block in blocks:
        if req.finished:
            break
        out += req.take(drawn(block))
    return out


def check_agreement(req: Request, stream: list[StreamToken], tokens: Sequence[int]) -> None:
    """Everything ends at the same token."""
    result = req.result()
    n = len(result.token_ids)
    assert result.token_ids == list(tokens[:n]) == [t.token_id for t in stream]
    assert "".join(t.text for t in stream) == result.text
    assert [t.source for t in stream] == result.sources
    assert result.usage.completion_tokens == n
    assert result.usage.prompt_tokens == 3
    assert [t.finish_reason for t in stream] == [None] * (n - 1) + [result.finish_reason]
    assert [t.logprob for t in stream] == [Logprob(-float(t), {t: -float(t)}) for t in tokens[:n]]
    assert {t.request for t in stream} == {3}


BLOCK = b"abcdef"


@pytest.mark.parametrize("offset", range(6))
@pytest.mark.parametrize("kind", ["end token", "stop token", "stop string", "length"])
def test_the_end_may_stand_anywhere_in_a_block(kind: str, offset: int) -> None:
    tokens, letter = list(BLOCK), chr(BLOCK[offset])
    req, shown = request(logprobs=1), b"xy" + BLOCK[:offset]
    reason: int | str | None = EOS
    if kind == "end token":
        tokens[offset] = EOS
    elif kind == "stop token":
        req, reason = request(stop_token_ids=[tokens[offset]], logprobs=1), tokens[offset]
    elif kind == "stop string":
        req, reason = request(stop=letter, logprobs=1), letter
    else:
        req, reason = request(limit=3 + offset, logprobs=1), None
        shown += BLOCK[offset : offset + 1]
    stream = run(req, [b"xy", tokens])
    check_agreement(req, stream, [*b"xy", *tokens])
    result = req.result()
    assert result.text == shown.decode()
    assert len(result.token_ids) == 3 + offset
    assert result.finish_reason == ("length" if kind == "length" else "stop")
    assert result.stop_reason == reason
    assert req.trimmed == result.stats.trimmed == 5 - offset


@settings(deadline=None, max_examples=120)
@given(
    st.text("abé字", min_size=1, max_size=12),
    st.lists(st.text("abé", min_size=1, max_size=2), max_size=2),
    st.integers(1, 20),
    st.data(),
)
def test_blocks_do_not_change_an_answer(
    text: str, stop: list[str], limit: int, data: st.DataObject
) -> None:
    tokens = [*text.encode(), EOS]
    places = sorted({*data.draw(st.lists(st.integers(1, len(tokens)))), len(tokens)})
    blocks = [tokens[a:b] for a, b in zip([0, *places], places, strict=False)]
    one, other = request(limit, stop=stop), request(limit, stop=stop)
    stream = run(one, blocks)
    run(other, [[t] for t in tokens])
    check_agreement(one, stream, tokens)
    assert one.result().text == other.result().text
    assert one.result().token_ids == other.result().token_ids
    assert one.result().stop_reason == other.result().stop_reason
    # The text of the whole answer, cut at the stop string that is complete first.
    whole = text if one.stop_reason in (EOS, None) else text[: _first_stop(text, stop)]
    assert one.stop_reason is None or one.result().text == whole


def _first_stop(text: str, stops: Sequence[str]) -> int:
    return min((text.find(s) + len(s), text.find(s)) for s in stops if s in text)[1]


def record(accepted: Sequence[Source]) -> RoundRecord:
    return make_record(
        proposed_draft=9,
        proposed_retrieved=9,
        accepted_draft=list(accepted).count(Source.DRAFT),
        accepted_retrieved=list(accepted).count(Source.RETRIEVED),
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 5), max_size=6), st.integers(1, 25))
def test_the_arithmetic_of_a_generation_holds(sizes: list[int], limit: int) -> None:
    req = request(limit)
    req.take(drawn(b"x"))  # from the prefill: it belongs to no round
    for size in [*sizes, 30]:
        if req.finished:
            break
        block = drawn(b"y" * size)
        req.records.append(record([d.source for d in block[:-1]]))
        req.take(block)
    stats = req.result().stats
    committed = 1 + stats.accepted_draft + stats.accepted_retrieved + stats.rounds
    assert committed - stats.trimmed == len(req.result().token_ids) == limit


def test_the_token_that_ends_is_an_id_but_no_text() -> None:
    req = request(stop="cd")
    run(req, [b"abcdef"])
    assert req.result().token_ids == list(b"abcd")
    assert req.result().text == "ab"


def test_a_stop_string_may_span_blocks() -> None:
    req = request(stop=["END"])
    stream = run(req, [b"oE", b"N", b"Dx"])
    assert [t.text for t in stream] == ["o", "", "", ""]
    assert (req.result().text, req.stop_reason, req.trimmed) == ("o", "END", 1)


def test_text_held_for_a_stop_string_is_released_at_the_end() -> None:
    for req, end in ((request(stop="END"), [EOS]), (request(limit=3, stop="END"), [])):
        stream = run(req, [[*b"oEN", *end]])
        assert req.result().text == "oEN"
        assert stream[-1].finish_reason is not None


def test_bytes_of_an_unfinished_character_are_released_at_the_end() -> None:
    req = request(limit=2)
    run(req, [[*b"a", *"字".encode()]])
    assert req.result().text == "a\ufffd"
    assert req.finish_reason == "length"


def test_a_stop_string_that_shows_only_at_the_end_is_the_reason() -> None:
    req = request(limit=2, stop="END")
    run(req, [[*b"a", TWO_BYTES]])
    assert (req.result().text, req.finish_reason, req.stop_reason) == ("a", "stop", "END")


def test_an_end_token_beats_the_limit() -> None:
    req = request(limit=1)
    run(req, [[EOS]])
    assert (req.finish_reason, req.result().text) == ("stop", "")


def test_a_stop_string_beats_the_limit() -> None:
    req = request(limit=1, stop="a")
    run(req, [b"a"])
    assert (req.finish_reason, req.stop_reason) == ("stop", "a")


def test_log_probabilities_are_kept_only_where_asked_for() -> None:
    silent, asked = request(limit=1), request(limit=1, logprobs=0)
    for req in (silent, asked):
        run(req, [b"a"])
    assert silent.result().logprobs is None
    assert asked.result().logprobs == [Logprob(-97.0, {97: -97.0})]


def test_forced_tokens_count_towards_the_limit_and_are_not_repeated() -> None:
    req = request(limit=4, forced=list(b"ab"))
    assert req.context == [5, 6, 7, *b"ab"]
    run(req, [b"xyz"])
    assert (req.result().token_ids, req.result().text) == (list(b"xy"), "xy")


def test_a_stop_string_may_begin_in_forced_tokens() -> None:
    req = request(forced=list(b"ab"), stop="bc")
    run(req, [b"cd"])
    assert (req.stop_reason, req.result().token_ids) == ("bc", list(b"c"))


def test_the_context_is_all_that_is_committed() -> None:
    req = request()
    run(req, [b"ab"])
    assert req.context == [5, 6, 7, *b"ab"]
    assert not req.finished
    with pytest.raises(AssertionError):
        req.result()
