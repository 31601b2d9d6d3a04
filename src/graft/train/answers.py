"""Answer: what a target said to a prompt, in token ids, and its line in a file.

A line is a JSON object: "task" (or "file"), "id", "turn", "temperature", "prompt_ids" (with chat
template) and "answer_ids" (with the token that ended it, if one did). "turn" and "temperature" may
be absent; other fields are not read. Invariant: prompt and answer each hold a token.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from graft.looping import repeated_8grams

_SUPPORTED = (
    'supported is {"task": TEXT, "id": TEXT, "prompt_ids": [..], "answer_ids": [..]} with token ids'
)
Key = tuple[str, str, int]


@dataclass(frozen=True)
class Answer:
    """An answer to train on.

    Attributes:
        task, id, turn: of the prompt.
        temperature: it was drawn at; 0 is greedy.
        prompt_ids, answer_ids: at least one token each.
    """

    task: str
    id: str
    turn: int
    temperature: float
    prompt_ids: list[int]
    answer_ids: list[int]

    @property
    def key(self) -> Key:
        """No two answers of a data folder share it."""
        return self.task, self.id, self.turn

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.answer_ids)

    @cached_property
    def repeated(self) -> float:
        """Share of repeated 8-grams."""
        return repeated_8grams(self.answer_ids)

    def line(self) -> str:
        """As a line of a file, with its end."""
        fields = {
            "task": self.task,
            "id": self.id,
            "turn": self.turn,
            "temperature": self.temperature,
            "prompt_ids": self.prompt_ids,
            "answer_ids": self.answer_ids,
        }
        return json.dumps(fields, separators=(",", ":")) + "\n"


def parse_answer(line: str, place: str) -> Answer:
    """Read a line.

    Args:
        place: where it stands, for errors.

    Raises:
        ValueError: for a line that is no answer.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not JSON ({error}): {_SUPPORTED}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{place} is not a JSON object: {_SUPPORTED}")
    return Answer(
        task=_text(found, "task" if "task" in found else "file", place),
        id=_text(found, "id", place),
        turn=_number(found, "turn", place, int),
        temperature=_number(found, "temperature", place, float),
        prompt_ids=_ids(found, "prompt_ids", place),
        answer_ids=_ids(found, "answer_ids", place),
    )


def _text(found: dict[str, Any], name: str, place: str) -> str:
    value = found.get(name)
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise ValueError(f'{place}: "{name}" is {_shown(value)}: {_SUPPORTED}')
    return str(value)


def _number(found: dict[str, Any], name: str, place: str, kind: type) -> Any:
    value = found.get(name, 0)
    fine = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not fine or not 0 <= value < 1e9:
        raise ValueError(f'{place}: "{name}" is {_shown(value)}: 0 or more is supported')
    return kind(value)


def _ids(found: dict[str, Any], name: str, place: str) -> list[int]:
    value = found.get(name)
    # bool is an int to Python, and type() tells them apart at the speed this needs.
    if not isinstance(value, list) or not value or {type(i) for i in value} != {int}:
        raise ValueError(f'{place}: "{name}" is {_shown(value)}: {_SUPPORTED}')
    if min(value) < 0:
        raise ValueError(f'{place}: "{name}" holds {min(value)}: token ids are 0 or more')
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return "absent or null" if value is None else text if len(text) < 60 else f"{text[:60]}..."
