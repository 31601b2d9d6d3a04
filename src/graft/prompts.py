"""Prompts as users give them, to token ids.

A prompt is a text, a list of chat messages, or a list of token ids; a call takes one prompt or a
list of prompts. It does not know engines or settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
Prompt = str | Sequence[Message] | Sequence[int]

_NOTHING = "the prompt is empty: there is nothing to answer or to continue"


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """The prompts of a call as a list, and whether it was a single one.

    Raises:
        ValueError: for an empty list, or a thing that is no prompt.
    """
    if isinstance(prompts, str) or _is_messages(prompts) or _is_ids(prompts):
        return [prompts], True  # type: ignore[list-item]
    if not isinstance(prompts, Sequence) or not prompts:
        raise ValueError(
            f"no prompt in {prompts!r}: give a text, a list of chat messages, a list of token "
            "ids, or a list of these"
        )
    for prompt in prompts:
        if not (isinstance(prompt, str) or _is_messages(prompt) or _is_ids(prompt)):
            raise ValueError(
                f"{type(prompt).__name__} {prompt!r:.60} is no prompt: a text, a list of chat "
                "messages or a list of token ids is"
            )
    return list(prompts), False  # type: ignore[arg-type]


def encode(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, *, raw: bool) -> list[int]:
    """Token ids of one prompt.

    Args:
        raw: texts are continued as they are; else an instruct model's chat template makes a
            text the user's turn. Models without a template continue texts in any case.

    Raises:
        ValueError: empty prompts, text that is not Unicode, messages without a chat template.
    """
    if _is_ids(prompt):
        return list(prompt)  # type: ignore[arg-type]
    if isinstance(prompt, str):
        if raw or not tokenizer.chat_template:
            _check_text(prompt, blank=True)  # blank text can be continued, though not answered
            return _tokens(prompt, tokenizer)
        _check_text(prompt)
        prompt = [{"role": "user", "content": prompt}]
    if not tokenizer.chat_template:
        raise ValueError(
            "this model has no chat template, so it cannot take chat messages; give it a text"
        )
    for number, message in enumerate(prompt):
        if "content" not in message:  # type: ignore[operator]
            raise ValueError(f"chat message {number} has no content: each needs role and content")
    try:
        text = str(
            tokenizer.apply_chat_template(
                [dict(message) for message in prompt],  # type: ignore[arg-type]
                tokenize=False,
                add_generation_prompt=True,
            )
        )
    except Exception as error:  # templates are programs and raise what they like
        raise ValueError(
            f"the model's chat template does not take these messages: {error}"
        ) from error
    _check_text(text)
    return _tokens(text, tokenizer, add_special_tokens=False)


def _tokens(text: str, tokenizer: PreTrainedTokenizerBase, **options: bool) -> list[int]:
    # Not verbose: a text beyond the context is told by us, with what to do about it.
    ids: list[int] = tokenizer(text, verbose=False, **options)["input_ids"]
    if not ids:
        raise ValueError(_NOTHING)
    return ids


def _check_text(text: str, *, blank: bool = False) -> None:
    if not (text if blank else text.strip()):
        raise ValueError(_NOTHING)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the prompt is not valid Unicode at character {error.start}: {error.reason}"
        ) from error


def _is_messages(prompt: object) -> bool:
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and len(prompt) > 0
        and all(isinstance(m, Mapping) and "role" in m for m in prompt)
    )


def _is_ids(prompt: object) -> bool:
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str | bytes)
        and len(prompt) > 0
        and all(isinstance(t, int) and not isinstance(t, bool) for t in prompt)
    )
