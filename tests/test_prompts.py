"""Prompts in all their forms, and what is said of those that are none."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import processors

from graft.prompts import as_prompts, encode
from tests.fakes import BOS_ID, CHAT_TEMPLATE, byte_tokenizer

CHAT = byte_tokenizer(CHAT_TEMPLATE)
BASE = byte_tokenizer()
HELLO = [{"role": "user", "content": "hi"}]


def ids(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize("prompt", ["hi", "", HELLO, [1, 2], (3,)])
def test_one_prompt_is_single(prompt: Any) -> None:
    assert as_prompts(prompt) == ([prompt], True)


@pytest.mark.parametrize("prompts", [["hi"], ["hi", "ho"], [HELLO], [[1, 2], "hi", HELLO]])
def test_a_list_of_prompts_is_not(prompts: list[Any]) -> None:
    assert as_prompts(prompts) == (prompts, False)


@pytest.mark.parametrize("nothing", [[], (), None, 7, {"role": "user"}, b"bytes"])
def test_no_prompt_is_refused(nothing: Any) -> None:
    with pytest.raises(ValueError, match=r"prompt.*a text"):
        as_prompts(nothing)


@pytest.mark.parametrize(
    ("prompts", "name"),
    [(["hi", 3], "int 3"), (["hi", []], r"list \[\]"), ([[1, True]], "list"), ([b"x"], "bytes")],
)
def test_a_thing_that_is_no_prompt_is_named(prompts: list[Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.* is no prompt"):
        as_prompts(prompts)


def test_messages_need_a_role() -> None:
    with pytest.raises(ValueError, match=r"dict .* is no prompt"):
        as_prompts([{"content": "hi"}])


def test_a_text_becomes_the_users_turn() -> None:
    assert encode("hi", CHAT, raw=False) == ids("<user>hi\n<assistant>")


def test_a_raw_text_is_continued() -> None:
    assert encode("hi", CHAT, raw=True) == ids("hi")


def test_a_text_for_a_model_without_a_template_is_continued() -> None:
    assert encode("hi", BASE, raw=False) == ids("hi")


def test_messages_go_through_the_template() -> None:
    messages = [{"role": "system", "content": "be brief"}, *HELLO]
    wanted = ids("<system>be brief\n<user>hi\n<assistant>")
    assert encode(messages, CHAT, raw=False) == wanted
    assert encode(messages, CHAT, raw=True) == wanted


def test_token_ids_are_taken_as_they_are() -> None:
    prompt = (BOS_ID, 5, 0)
    found = encode(prompt, CHAT, raw=False)
    assert found == [BOS_ID, 5, 0]
    assert isinstance(found, list)


def test_the_beginning_token_stands_once() -> None:
    # A template writes it into its text; a raw text gets it from the tokenizer.
    chat = byte_tokenizer("<bos>{{ messages[0]['content'] }}")
    adding: Any = processors.TemplateProcessing
    chat.backend_tokenizer.post_processor = adding(
        single="<bos> $A", special_tokens=[("<bos>", BOS_ID)]
    )
    assert encode(HELLO, chat, raw=False) == [BOS_ID, *ids("hi")]
    assert encode("hi", chat, raw=True) == [BOS_ID, *ids("hi")]


def test_blank_text_can_be_continued_though_not_answered() -> None:
    assert encode("  \n\t", CHAT, raw=True) == ids("  \n\t")


@pytest.mark.parametrize(("text", "raw"), [("", True), ("", False), ("  \n\t", False)])
def test_an_empty_text_is_refused(text: str, raw: bool) -> None:
    with pytest.raises(ValueError, match="the prompt is empty"):
        encode(text, CHAT, raw=raw)


@pytest.mark.parametrize("raw", [True, False])
def test_a_lone_surrogate_is_refused_with_its_place(raw: bool) -> None:
    with pytest.raises(ValueError, match="not valid Unicode at character 2"):
        encode("ab\ud800", CHAT, raw=raw)


def test_a_lone_surrogate_in_a_message_is_refused() -> None:
    with pytest.raises(ValueError, match="not valid Unicode"):
        encode([{"role": "user", "content": "ab\ud800"}], CHAT, raw=False)


def test_messages_without_a_template_are_refused() -> None:
    with pytest.raises(ValueError, match="no chat template"):
        encode(HELLO, BASE, raw=False)


def test_a_template_that_raises_is_reported() -> None:
    chat = byte_tokenizer("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match=r"chat template does not take .*roles must alternate"):
        encode(HELLO, chat, raw=False)


def test_a_template_that_writes_nothing_is_reported() -> None:
    with pytest.raises(ValueError, match="the prompt is empty"):
        encode(HELLO, byte_tokenizer("{{ '' }}"), raw=False)


def test_a_message_without_content_is_named() -> None:
    with pytest.raises(ValueError, match="chat message 1 has no content"):
        encode([{"role": "user", "content": "hi"}, {"role": "user"}], CHAT, raw=False)
