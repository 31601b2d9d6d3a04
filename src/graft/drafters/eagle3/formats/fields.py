"""Fields: a checkpoint's configuration, read field by field, and what was left unread.

Invariant: a field that nobody read and that could change what the head computes ends in an error,
unless its value is the neutral one. Which fields mean what, the formats know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from graft.drafters.eagle3.errors import HeadError
from graft.drafters.eagle3.formats.known import HARMLESS, NEUTRAL

_NOTHING: tuple[Any, ...] = (None, False, 0, "", [], {})
# What brings tensors of its own (experts, adapters, biases) shows in their names instead.
_SUSPECT = re.compile(
    r"scal|multipl|cap|norm|rope|rotary|window|attn|attention|mask|sink|embed|logit|layer|residual"
    r"|alibi|parallel|head|hidden|clip|quant|eagle"
)


class Fields:
    """A configuration (or a part of one), typed access by name.

    Args:
        values: the JSON object.
        where: how messages call it.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self.values = values
        self.where = where
        self.notes: list[str] = []  # what was assumed, for people
        self._read: set[str] = set()

    def raw(self, name: str) -> Any:
        """A field's value; None if it is not there."""
        self._read.add(name)
        return self.values.get(name)

    def integer(self, name: str) -> int | None:
        """A whole number above zero."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(name, value, "a whole number above 0")
        return value

    def needed(self, name: str) -> int:
        """A whole number that has no default."""
        value = self.integer(name)
        if value is None:
            raise HeadError(
                f"{self.where} has no {name}: the shape of the head is not known; restore the file "
                "that belongs to the weights"
            )
        return value

    def assume(self, name: str, value: float) -> float:
        """A default, with a note."""
        self.notes.append(f"{name} is not stated: {value:g} assumed")
        return value

    def number(self, name: str) -> float | None:
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self._wrong(name, value, "a number above 0")
        return float(value)

    def flag(self, name: str) -> bool | None:
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.raw(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, value, "a text")
        return value

    def part(self, name: str) -> Fields:
        """A nested object; empty if it is not there."""
        value = self.raw(name)
        if value is not None and not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object")
        return Fields(value or {}, f"{self.where}: {name}")

    def layer_ids(self, name: str) -> tuple[int, ...] | None:
        """A list of layer ids as the checkpoint wrote them."""
        value = self.raw(name)
        if value is None or value == []:
            return None
        ok = isinstance(value, list) and all(type(i) is int and i >= 0 for i in value)
        if not ok or len(set(value)) < len(value):
            raise self._wrong(name, value, "a list of distinct layer numbers")
        return tuple(value)

    def refuse_unread(self) -> None:
        """Note the fields that nobody read.

        Raises:
            HeadError: naming those that could change what the head computes.
        """
        left = {k: v for k, v in self.values.items() if k not in self._read | HARMLESS}
        left = {k: v for k, v in left.items() if v not in NEUTRAL.get(k, _NOTHING)}
        left = {k: v for k, v in left.items() if v is not None}
        faults = [f"{k} = {v!r}" for k, v in left.items() if k in NEUTRAL or _SUSPECT.search(k)]
        if faults:
            raise HeadError(
                f"{self.where} asks for what Graft's EAGLE-3 head does not compute: "
                f"{', '.join(faults)}; a head without it is needed (or remove the field, if you "
                "know that it was not used in training)"
            )
        self.notes += [f"{self.where}: {name} is not read" for name in left]

    def _wrong(self, name: str, value: Any, wanted: str) -> HeadError:
        return HeadError(f"{self.where}: {name} is {value!r}, but must be {wanted}; correct it")
