"""Lines of answers: read back as written, or refused with their place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graft.train.answers import parse_answer
from tests.train.making import answer


def test_a_line_is_read_back() -> None:
    made = answer(temperature=0.7, turn=1)
    assert parse_answer(made.line(), "here") == made


def test_the_field_file_stands_for_the_task_and_others_are_not_read() -> None:
    line = {"file": "code", "id": 7, "prompt_ids": [1], "answer_ids": [2, 3], "more": None}
    found = parse_answer(json.dumps(line), "here")
    assert (found.task, found.id, found.turn, found.temperature) == ("code", "7", 0, 0.0)


def test_repeated_8grams_count() -> None:
    assert answer(answer_ids=list(range(16))).repeated == 0
    assert answer(answer_ids=[1] * 16).repeated == pytest.approx(8 / 9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt_ids": []}, '"prompt_ids" is []'),
        ({"answer_ids": None}, '"answer_ids" is absent'),
        ({"answer_ids": [1, True]}, '"answer_ids" is [1, True]'),
        ({"answer_ids": [1, 2.0]}, '"answer_ids" is [1, 2.0]'),
        ({"prompt_ids": [-1]}, "holds -1"),
        ({"id": None}, '"id" is absent'),
        ({"id": ""}, "\"id\" is ''"),
        ({"task": ["a"]}, "\"task\" is ['a']"),
        ({"turn": 1.5}, '"turn" is 1.5'),
        ({"temperature": "hot"}, "\"temperature\" is 'hot'"),
        ({"temperature": -1}, '"temperature" is -1'),
    ],
)
def test_what_is_no_answer_is_refused(change: dict[str, Any], said: str) -> None:
    line = {"task": "t", "id": "1", "prompt_ids": [1], "answer_ids": [2], **change}
    with pytest.raises(ValueError, match=r"x\.jsonl, line 3") as caught:
        parse_answer(json.dumps(line), "x.jsonl, line 3")
    assert said in str(caught.value)


@pytest.mark.parametrize("line", ["{", "[]", '"text"', "[" * 100_000])
def test_what_is_no_object_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="here is not"):
        parse_answer(line, "here")
