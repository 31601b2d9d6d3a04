"""Conversations: the token ids that a turn of an item is asked with.

Invariant: what `check_items` passes can be asked to the end: each turn can be put into words for
the model, and there is room for every answer. It knows tokenizers, not models or engines.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from graft.bench.item import Item
from graft.prompts import Message, encode

# Stands for an answer that is not there yet; templates may refuse an empty one.
_ANSWER = "."


def turn_ids(item: Item, said: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a conversation up to its next turn.

    Without a chat template the turns and answers are texts with blank lines between them.

    Args:
        said: answers to the turns before it.

    Raises:
        ValueError: where the chat template does not take it.
    """
    turn = item.turns[len(said)]
    before = list(zip(item.turns, said, strict=False))
    if item.raw or not getattr(tokenizer, "chat_template", None):
        texts = [text for pair in before for text in pair]
        return encode("\n\n".join([*texts, turn]), tokenizer, raw=True)
    messages: list[Message] = []
    for asked, answered in before:
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": answered})
    messages.append({"role": "user", "content": turn})
    return encode(messages, tokenizer, raw=False)


def check_items(
    items: Sequence[Item],
    tokenizer: PreTrainedTokenizerBase,
    *,
    room: int | None,
    max_new_tokens: int,
    name: str,
) -> None:
    """Refuse items that cannot be asked to the end.

    Later turns are measured with answers of the full length before them. A text may have more
    tokens when it is read than when it was written, so this is no promise for them.

    Args:
        room: tokens of prompt and answer together that the model holds; None if it states none.
        name: of the model.

    Raises:
        ValueError: naming the item, with the setting that leaves it out.
    """
    too_long = []
    for item in items:
        said = [_ANSWER] * (len(item.turns) - 1)
        try:
            prompt = len(turn_ids(item, said, tokenizer))
        except ValueError as error:
            raise ValueError(
                f"{told(item)} cannot be asked ({error}): take it out of the suite, or leave out "
                "its task with --task"
            ) from error
        needed = prompt + len(item.turns) * max_new_tokens
        if room is not None and needed > room:
            too_long.append((item, prompt, needed))
    if too_long:
        _refuse(too_long, tokenizer, room, max_new_tokens, name)


def told(item: Item) -> str:
    """An item, as errors call it."""
    return f"prompt {item.id!r} of task {item.task}"


def _refuse(
    too_long: Sequence[tuple[Item, int, int]],
    tokenizer: PreTrainedTokenizerBase,
    room: int | None,
    max_new_tokens: int,
    name: str,
) -> None:
    item, prompt, needed = too_long[0]
    more = f" (and {len(too_long) - 1} more)" if len(too_long) > 1 else ""
    least = min(sum(text_length(tokenizer, t) for t in each.turns) for each, _, _ in too_long)
    left_out = (
        f"--max-prompt-tokens {least - 1} (of the turns, without template) leaves such prompts out"
    )
    turns = f" in {len(item.turns)} turns" if len(item.turns) > 1 else ""
    choices = ["lower --max-new-tokens", *([left_out] if least > 1 else [])]
    if turns:
        choices.append("--max-turns shortens it")
    raise ValueError(
        f"{told(item)}{more} does not fit: {prompt} tokens and answers of up to {max_new_tokens}"
        f"{turns} come to {needed}, but {name} holds {room}; {', '.join(choices)}"
    )


def text_length(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    """Tokens of a text alone, as prompts are chosen by length."""
    return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
