"""Item: a prompt of a suite, and a digest of what was asked.

Invariant: an item can be asked as it is: it has turns, none is blank, all are valid Unicode. It
does not know files, tokenizers or models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Item", "prompts_hash"]


@dataclass(frozen=True)
class Item:
    """A prompt of a suite.

    Attributes:
        task: what it belongs to. id: its name there.
        turns: the user's texts, in order.
        raw: the text is to be continued as it stands, without a chat template.
        subset, category, group: labels; "" where there are none.

    Raises:
        ValueError: for an item without turns, a blank turn, text that is not Unicode, or several
            turns without a chat template.
    """

    task: str
    id: str
    turns: tuple[str, ...]
    raw: bool = False
    subset: str = ""
    category: str = ""
    group: str = ""

    def __post_init__(self) -> None:
        if not self.turns:
            raise ValueError("there are no turns: give at least one text")
        for number, turn in enumerate(self.turns, 1):
            if not turn.strip():
                raise ValueError(f"turn {number} is empty: give it a text or leave it out")
        for text in (self.task, self.id, *self.turns, self.subset, self.category, self.group):
            _check_unicode(text)
        if self.raw and len(self.turns) > 1:
            raise ValueError(
                f"there are {len(self.turns)} turns, but a prompt without a chat template (raw) "
                "has one"
            )


def prompts_hash(items: Sequence[Item]) -> str:
    """16 hexadecimal digits of SHA-256 over ids, turns and what is raw, in order.

    Two runs with the same digest were asked the same. Files, tasks and labels do not count.
    """
    asked = json.dumps([[item.id, item.raw, *item.turns] for item in items])
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"not valid Unicode at character {error.start} of a text ({error.reason})"
        ) from error
