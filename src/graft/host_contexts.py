"""HostContexts: a context table in the host's memory, row by row. [ours]

The same table as `graft.contexts` sees, read and written one context at a time: for the handful of
contexts of a round that takes a tenth of what operations over tensors cost. Hashes, keys, rows and
classes are the same numbers.

Invariant: what it holds after learning a text is what `ContextTable.learn` would have left, but
where two contexts of that text want one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graft.contexts import CLASS_BITS, FACTOR, NOBODY, NOTHING, SPREAD, ContextTable
from graft.evidence import class_of

_MASK, _SIGN = (1 << 64) - 1, 1 << 63
_CLASS = (1 << CLASS_BITS) - 1


class Held(NamedTuple):
    """What followed one context."""

    order: int  # place among the orders, the longest first
    followers: list[tuple[int, int]]  # tokens and classes, the newest first


class HostContexts:
    """A context table whose tensors are in the host's memory.

    Args:
        table: whose it reads and writes.
    """

    def __init__(self, table: ContextTable) -> None:
        self._table = table
        self._keys = table.keys.numpy().data
        self._followers = table.followers.numpy()
        self._seen = table.seen.numpy().data
        self._orders = table.orders[::-1]
        self._missing = [number & _MASK for number in table.missing.tolist()]
        self.longest = table.longest

    def hashes(self, tokens: Sequence[int]) -> list[int]:
        """Hashes of the contexts of lengths 0, 1, ... at the end of a text: [longest + 1]."""
        out = [0]
        power = 1
        for token in reversed(tokens[-self.longest :]):
            out.append((out[-1] + (token + 1) * power) & _MASK)
            power = power * FACTOR & _MASK
        return out + self._missing[len(out) - 1 :]

    def follow(self, hashes: Sequence[int], token: int) -> list[int]:
        """Hashes of the contexts that have one more token at their end."""
        return [0, *((token + 1 + FACTOR * h) & _MASK for h in hashes[:-1])]

    def lookup(self, hashes: Sequence[int], table: int = 0) -> list[Held]:
        """The contexts that are held, the longest first."""
        out = []
        for order, length in enumerate(self._orders):
            key, row = self._place(hashes[length], table)
            if self._keys[row] == key:
                packed = self._followers[row].tolist()
                found = [(p >> CLASS_BITS, p & _CLASS) for p in packed if p >= 0]
                out.append(Held(order, found))
        return out

    def learn(self, tokens: Sequence[int], start: int, table: int = 0) -> None:
        """Take in what `tokens[start:]` followed; the tokens before are their contexts."""
        behind = [self.hashes(tokens[:end]) for end in range(start, len(tokens))]
        for length in self._orders:
            for end, hashes in enumerate(behind, start):
                if end >= length:
                    self._put(*self._place(hashes[length], table), tokens[end])

    def _put(self, key: int, row: int, token: int) -> None:
        followers: list[int] = [token]
        seen = 1
        if self._keys[row] == key:
            seen += self._seen[row]
            followers += [p >> CLASS_BITS for p in self._followers[row].tolist() if p >= 0]
        elif self._keys[row] != NOBODY:
            self._table.replaced += 1
        del followers[self._table.ring :]
        packed = [
            (each << CLASS_BITS) + class_of(age, followers.count(each), len(followers))
            for age, each in enumerate(followers)
        ]
        packed += [NOTHING] * (self._table.ring - len(packed))
        self._keys[row], self._seen[row] = key, seen
        self._followers[row] = packed

    def _place(self, hashed: int, table: int) -> tuple[int, int]:
        """Key and row of a context, as `ContextTable` has them: int64 numbers that wrap."""
        signed = _signed(hashed)
        key = _signed((signed ^ (signed >> 31)) * SPREAD & _MASK | 1)
        row = (key ^ (key >> 32)) & (self._table.rows - 1)
        return key, row + (table * self._table.rows if self._table.count > 1 else 0)


def _signed(number: int) -> int:
    return number - (1 << 64) if number & _SIGN else number
