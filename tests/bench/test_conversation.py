"""Items that cannot be asked are refused before the run, by name and with a way out."""

from __future__ import annotations

from typing import Any

import pytest

from graft.bench.conversation import check_items, text_length, turn_ids
from graft.bench.item import Item
from graft.bench.selection import select_items
from tests.fakes import CHAT_TEMPLATE, byte_tokenizer

TOKENIZER = byte_tokenizer(CHAT_TEMPLATE)
SHORT = Item("chat", "0", ("hi",))
LONG = Item("chat", "7", ("x" * 50,))
TURNS = Item("chat", "8", ("one", "two", "three"))


def check(*items: Item, tokenizer: Any = TOKENIZER, **changes: Any) -> None:
    options: dict[str, Any] = {"room": 100, "max_new_tokens": 20, "name": "tiny"}
    check_items(items, tokenizer, **{**options, **changes})


def test_what_fits_passes() -> None:
    check(SHORT, LONG)
    check(SHORT, LONG, TURNS, room=None)


def test_to_the_last_token() -> None:
    needed = len(turn_ids(LONG, [], TOKENIZER)) + 20
    check(LONG, room=needed)
    with pytest.raises(ValueError, match="does not fit"):
        check(LONG, room=needed - 1)


def test_answers_of_earlier_turns_count() -> None:
    needed = len(turn_ids(TURNS, [".", "."], TOKENIZER)) + 3 * 20
    check(TURNS, room=needed)
    with pytest.raises(ValueError, match=r"in 3 turns come to .* --max-turns shortens it"):
        check(TURNS, room=needed - 1)


def test_the_flag_that_is_named_leaves_them_out() -> None:
    longer = Item("chat", "9", ("x" * 90,))
    with pytest.raises(ValueError, match=r"prompt '9' of task chat \(and 1 more\)") as caught:
        check(longer, SHORT, LONG, room=60)
    assert "tiny holds 60" in str(caught.value)
    assert "--max-prompt-tokens 49" in str(caught.value)

    def count(text: str) -> int:
        return text_length(TOKENIZER, text)

    kept = select_items([longer, SHORT, LONG], max_prompt_tokens=49, count=count)
    check(*kept, room=60)


def test_where_no_such_flag_helps() -> None:
    with pytest.raises(ValueError, match="lower --max-new-tokens") as caught:
        check(Item("chat", "0", ("x",)), room=10)
    assert "--max-prompt-tokens" not in str(caught.value)


def test_a_template_that_refuses() -> None:
    refusing = byte_tokenizer("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match="prompt '0' of task chat cannot be asked") as caught:
        check(SHORT, tokenizer=refusing)
    assert "roles must alternate" in str(caught.value)
    check(Item("chat", "0", ("hi",), raw=True), tokenizer=refusing)
