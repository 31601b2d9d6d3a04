"""Selections: what each setting leaves, in which order they apply, and what is said of mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from graft.bench.item import Item
from graft.bench.selection import select_items


def words(text: str) -> int:
    return len(text.split())


SUITE = [
    Item("chat", "1", ("one", "two three")),
    Item("code", "1", ("one two three four",)),
    Item("chat", "2", ("one two",)),
    Item("code", "2", ("one",)),
    Item("chat", "3", ("one", "two", "three")),
]


def chosen(**settings: Any) -> list[str]:
    return [f"{item.task}{item.id}" for item in select_items(SUITE, **settings)]


def test_without_settings_all_is_chosen() -> None:
    assert select_items(SUITE) == SUITE


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"tasks": ["code"]}, "code1 code2"),
        ({"tasks": ["code", "chat", "code"], "limit": 1}, "chat1 code1"),
        ({"limit": 2}, "chat1 code1 chat2 code2"),
        ({"max_prompt_tokens": 3}, "chat1 chat2 code2 chat3"),
        ({"max_prompt_tokens": 2}, "chat2 code2"),
        ({"min_prompt_tokens": 3}, "chat1 code1 chat3"),
        ({"min_prompt_tokens": 2, "max_prompt_tokens": 3}, "chat1 chat2 chat3"),
        # The limit takes the first of what the others leave; lengths are of the turns that remain.
        ({"max_prompt_tokens": 2, "limit": 1}, "chat2 code2"),
        ({"max_prompt_tokens": 1, "max_turns": 1}, "chat1 code2 chat3"),
    ],
)
def test_settings_choose(settings: dict[str, Any], left: str) -> None:
    assert chosen(count=words, **settings) == left.split()


def test_later_turns_are_dropped_and_items_stay() -> None:
    cut = select_items(SUITE, max_turns=2)
    assert [len(item.turns) for item in cut] == [2, 1, 1, 1, 2]
    assert cut[4] == Item("chat", "3", ("one", "two"))


def test_unknown_tasks_are_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no task 'chta' here: there are chat, code; did you mean"):
        chosen(tasks=["code", "chta"])
    with pytest.raises(ValueError, match=r"no task 'zzz' here: there are chat, code$"):
        chosen(tasks=["zzz"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"limit": 0}, "limit is 0: 1 or more"),
        ({"max_turns": 0}, "max turns is 0: 1 or more"),
        ({"min_prompt_tokens": -1, "count": words}, "min prompt tokens is -1: 0 or more"),
        ({"max_prompt_tokens": 0, "count": words}, "max prompt tokens is 0: 1 or more"),
        (
            {"min_prompt_tokens": 5, "max_prompt_tokens": 4, "count": words},
            "max prompt tokens is 4: 5 or more",
        ),
        ({"max_prompt_tokens": 4}, "pass a function that counts them"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        chosen(**settings)


def test_if_nothing_is_left_it_is_said_what_removed_how_many() -> None:
    with pytest.raises(ValueError, match="no prompt is left") as caught:
        chosen(tasks=["chat"], min_prompt_tokens=4, max_prompt_tokens=9, count=words)
    for said in (
        "the tasks chat removed 2",
        "min prompt tokens 4 removed 3",
        "max prompt tokens 9 removed 0",
        "have 2 to 3 tokens (of their turns, without chat template)",
    ):
        assert said in str(caught.value)
