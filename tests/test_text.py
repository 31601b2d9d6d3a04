"""Text by pieces: whole characters, the whole text, and stop strings wherever pieces are cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from graft.text import Detokenizer, StopText
from tests.fakes import EOS_ID, byte_tokenizer

TOKENIZER = byte_tokenizer()


def decode(ids: Sequence[int]) -> str:
    return str(TOKENIZER.decode(list(ids), skip_special_tokens=True))


def pieces(ids: Sequence[int]) -> list[str]:
    """What each id gives, then what is flushed."""
    detokenizer = Detokenizer(decode)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(deadline=None, max_examples=100)
@given(texts)
def test_pieces_joined_are_the_text(text: str) -> None:
    assert "".join(pieces(list(text.encode()))) == text


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 255), max_size=16))
def test_pieces_of_any_bytes_joined_are_the_decoded_whole(ids: list[int]) -> None:
    assert "".join(pieces(ids)) == decode(ids)


@pytest.mark.parametrize("text", ["汉字处理", "a😀b👩‍👩‍👧", "naïve é", "日本 語"])
def test_a_piece_never_splits_a_character(text: str) -> None:
    found = pieces(list(text.encode()))
    assert not any("\ufffd" in piece for piece in found)
    assert [piece for piece in found if piece] == list(text)


def test_a_character_comes_with_its_last_byte() -> None:
    assert pieces(list("汉".encode())) == ["", "", "汉", ""]


def test_bytes_that_never_become_a_character_are_flushed() -> None:
    found = pieces([*b"ok", *"汉".encode()[:2]])
    assert found == ["o", "k", "", "", "\ufffd"]


def test_bad_bytes_are_given_out_once_the_next_character_is_whole() -> None:
    assert pieces([0xE6, 0x61, 0x62]) == ["", "\ufffda", "b", ""]


def test_flush_gives_nothing_twice() -> None:
    detokenizer = Detokenizer(decode)
    detokenizer.push(0xE6)
    assert (detokenizer.flush(), detokenizer.flush()) == ("\ufffd", "")


def test_a_copy_goes_its_own_way() -> None:
    first = Detokenizer(decode)
    for i in b"ab\xe6":
        first.push(i)
    second = first.copy()
    assert [second.push(i) for i in (0xB1, 0x89, 0x63)] == ["", "汉", "c"]
    assert [first.push(i) for i in (0xB1, 0x8A, 0x64)] == ["", "汊", "d"]


def test_special_tokens_are_silent() -> None:
    assert pieces([0x61, EOS_ID, 0x62]) == ["a", "", "b", ""]


def test_the_cost_of_a_piece_does_not_grow_with_the_text() -> None:
    asked: list[int] = []

    def counting(ids: Sequence[int]) -> str:
        asked.append(len(ids))
        return decode(ids)

    detokenizer = Detokenizer(counting)
    for i in b"some text that goes on for a while":
        detokenizer.push(i)
    assert max(asked) <= 2


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Words with a mark for the space before them, which the decoder drops at a text's start."""
    words = ["▁Hello", "▁big", "▁world", "<pad>", "s"]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken("<pad>", special=True)])
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=backend)


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(0, 4), max_size=8))
def test_a_space_dropped_at_the_start_of_a_text_is_kept_within_it(ids: list[int]) -> None:
    tokenizer = word_tokenizer()
    detokenizer = Detokenizer(lambda t: str(tokenizer.decode(list(t), skip_special_tokens=True)))
    joined = "".join(detokenizer.push(i) for i in ids) + detokenizer.flush()
    assert joined == tokenizer.decode(ids, skip_special_tokens=True)


def run_stop(stops: Sequence[str], given_pieces: Sequence[str]) -> tuple[str, str | None]:
    """The text shown, and the stop string met."""
    finder, shown = StopText(stops), ""
    for piece in given_pieces:
        shown += finder.push(piece)
        if finder.found is not None:
            return shown, finder.found
    return shown + finder.flush(), None


def cuts(text: str) -> list[list[str]]:
    """The text in one, two and three pieces, cut everywhere."""
    n = len(text)
    return [[text[:i], text[i:j], text[j:]] for i in range(n + 1) for j in range(i, n + 1)]


@pytest.mark.parametrize(
    ("text", "stops", "shown", "found"),
    [
        ("one END two", ["END"], "one ", "END"),
        ("END", ["END"], "", "END"),
        ("one EN", ["END"], "one EN", None),
        ("EEENDx", ["END"], "EE", "END"),  # a candidate begins within another
        ("aabaabaaab", ["aabaaab"], "aab", "aabaaab"),
        ("x\n\nUser: y", ["\n\nUser:"], "x", "\n\nUser:"),
        ("one two", ["two", "one"], "", "one"),  # the one that is complete first
        ("abcd", ["bc", "abcd"], "a", "bc"),  # complete before the one that began earlier
        ("abcd", ["abc", "ab"], "", "ab"),  # same place
        ("xabc", ["c", "abc"], "x", "abc"),  # complete together: the one that began first
        ("汉字END", ["字E"], "汉", "字E"),
        ("nothing", [], "nothing", None),
    ],
)
def test_stop_strings_are_found_wherever_the_pieces_are_cut(
    text: str, stops: list[str], shown: str, found: str | None
) -> None:
    for each in cuts(text):
        assert run_stop(stops, each) == (shown, found), each
    assert run_stop(stops, list(text)) == (shown, found)


few = st.text("ab", max_size=10)


@settings(deadline=None, max_examples=150)
@given(few, st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_cutting_changes_nothing(text: str, stops: list[str], data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    edges = [0, *places, len(text)]
    each = [text[a:b] for a, b in pairwise(edges)]
    assert run_stop(stops, each) == run_stop(stops, list(text))


def test_text_that_may_be_a_stop_is_held_and_then_released() -> None:
    finder = StopText(["END"])
    assert [finder.push(p) for p in ("x", "E", "N", "x", "E")] == ["x", "", "", "ENx", ""]
    assert (finder.flush(), finder.flush()) == ("E", "")


def test_a_copied_search_goes_its_own_way() -> None:
    first = StopText(["END"])
    first.push("xEN")
    second = first.copy()
    assert (second.push("D"), second.found) == ("", "END")
    assert (first.push("x"), first.found) == ("ENx", None)
    assert second.copy().found == "END"


def test_no_more_is_held_than_needed() -> None:
    assert StopText(["abcab"]).push("xxabcabab") == "xx"
    assert StopText(["abcabd"]).push("xxabcab") == "xx"
    assert StopText(["abcd"]).push("xxabcab") == "xxabc"
