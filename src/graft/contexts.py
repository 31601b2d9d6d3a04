"""ContextTable: what followed longer contexts, in a hashed table on the model's device. [ours]

A context is the last n tokens, for each of a few orders n. Its row is a ring of the tokens that
followed it the last few times, so that how often a token stands there says how likely it is. Rows
of all orders share one table of fixed size: where two contexts want one row, the newer has it, so
memory is bounded and old contexts give way. A row carries the key of its context, and no other
context reads it.

Learnt from committed text alone: prompts and outputs. Whatever it holds, the output of decoding
does not change. Shapes depend on the numbers of contexts alone; nothing waits for the device.

This module knows tokens alone: no trees, no models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graft.matrix import EMPTY

ORDERS = (2, 3, 4, 8)
ROWS = 1 << 18
RING = 4
_NOBODY = 0  # key of a row that was never written
_SPREAD = -7046029254386353131  # odd: spreads keys over rows


class Followers(NamedTuple):
    """What followed contexts [..., orders]."""

    tokens: Tensor  # int64 [..., orders, ring], newest first, EMPTY behind the last
    seen: Tensor  # int64 [..., orders], times that the context was seen


class ContextTable:
    """Followers of contexts of several lengths.

    Args:
        token_count: V, tokens that exist.
        device: where it lives: beside the model.
        orders: lengths of contexts, ascending.
        rows: of each table, a power of two.
        ring: followers that a row holds.
        count: tables side by side; sequences that share nothing have one each.

    Attributes:
        replaced: int64 scalar on the device, rows that were taken from another context so far.
    """

    def __init__(
        self,
        token_count: int,
        device: torch.device,
        *,
        orders: Sequence[int] = ORDERS,
        rows: int = ROWS,
        ring: int = RING,
        count: int = 1,
    ) -> None:
        self.token_count, self.orders, self.rows, self.ring = token_count, tuple(orders), rows, ring
        self.count = count
        self.longest = self.orders[-1]
        with torch.inference_mode(False):  # it can be written in and out of that mode
            size = count * rows + 1  # the last row takes what is written nowhere; nothing reads it
            self.keys = torch.full((size,), _NOBODY, device=device)
            self.ids = torch.full((size, ring), EMPTY, dtype=torch.int32, device=device)
            self.seen = torch.zeros(size, dtype=torch.int32, device=device)
            self.replaced = torch.zeros((), dtype=torch.int64, device=device)
            self._factors = _factors(self.orders).to(device)  # [orders, longest]
            self._orders = torch.tensor(self.orders, device=device)
            self._back = torch.arange(1, ring + 1, device=device)

    @property
    def bytes(self) -> int:
        """Memory held."""
        return self.keys.nbytes + self.ids.nbytes + self.seen.nbytes

    def lookup(self, windows: Tensor, lengths: Tensor, tables: Tensor | None = None) -> Followers:
        """What followed contexts.

        Args:
            windows: int64 [..., longest], the last tokens of each, the newest last.
            lengths: int64 [...] or broadcast, tokens of the window that there are.
            tables: int64 [...] or broadcast, whose; None where there is one.
        """
        keys, rows = self._place(windows, tables)
        there = (self.keys[rows] == keys) & (lengths.unsqueeze(-1) >= self._orders)
        seen = self.seen[rows].where(there, 0).long()
        # The newest stands at seen - 1, around the ring.
        slots = (seen.unsqueeze(-1) - self._back) % self.ring
        tokens = self.ids[rows.unsqueeze(-1), slots].long()
        return Followers(tokens.where(self._back <= seen.unsqueeze(-1), EMPTY), seen)

    def learn(
        self, windows: Tensor, followers: Tensor, lengths: Tensor, tables: Tensor | None = None
    ) -> None:
        """Take in what followed contexts, in the order in which it did.

        Args:
            windows: int64 [E, longest]. followers: int64 [E]; negative ones are left out.
            lengths: int64 [E], tokens of each window that there are.
            tables: int64 [E] or broadcast, whose; None where there is one.
        """
        keys, rows = self._place(windows, tables)
        known = (lengths.unsqueeze(1) >= self._orders) & (followers >= 0).unsqueeze(1)
        spare = len(self.keys) - 1
        # By order and time: no two contexts of one order share a row by nature.
        keys, rows = keys.T.flatten(), rows.where(known, spare).T.flatten()
        tokens = followers.repeat(len(self.orders))
        # Of contexts that want one row, the last has it.
        size = len(rows)
        time = torch.arange(size, device=rows.device)
        order = rows.argsort(stable=True)
        row = rows[order]
        ends = torch.cat([row[1:] != row[:-1], row.new_ones(1, dtype=torch.bool)])
        last = time.where(ends, size).flip(0).cummin(0).values.flip(0)  # end of each one's run
        winner = keys[order[last]]
        stands = keys[order] == winner
        # Places in the run, of those that stand.
        upto = stands.cumsum(0)
        total = upto[last]
        starts = torch.cat([ends.new_ones(1), ends[:-1]])
        before = (upto - stands.long()).where(starts, 0).cummax(0).values
        place, count = upto - 1 - before, total - before
        taken = self.keys[row] != winner
        self.replaced += (taken & ends & (row < spare) & (self.keys[row] != _NOBODY)).sum()
        seen = self.seen[row].where(~taken, 0)
        # Of more than fit, the last ones are written.
        written = stands & (place >= count - self.ring)
        target = row.where(written, spare)
        self.ids[target, (seen + place) % self.ring] = tokens[order].to(torch.int32)
        done = row.where(ends, spare)
        self.keys[done] = winner
        self.seen[done] = (seen + count).to(torch.int32)

    def learn_text(self, tokens: Tensor, table: int = 0, known: int = 0) -> None:
        """Take in a text: int64 [n], but for its first `known` tokens, which it has taken in."""
        count, start = len(tokens), max(known, 1)
        if count <= start:
            return
        padded = torch.cat([tokens.new_zeros(self.longest - 1), tokens])
        windows = padded.unfold(0, self.longest, 1)[start - 1 : -1]
        lengths = torch.arange(start, count, device=tokens.device)
        self.learn(windows, tokens[start:], lengths, lengths.new_tensor(table))

    def clear(self, table: int | None = None) -> None:
        """Forget everything, or what one table holds."""
        first = 0 if table is None else table * self.rows
        last = len(self.keys) if table is None else first + self.rows
        self.keys[first:last] = _NOBODY
        self.seen[first:last] = 0

    def tensors(self) -> dict[str, Tensor]:
        """What is held, by name."""
        return {"keys": self.keys, "ids": self.ids, "seen": self.seen}

    def check_integrity(self) -> None:
        """Raise AssertionError where what is held makes no sense."""
        held = self._back <= self.seen[:-1].unsqueeze(1)
        ids = self.ids[:-1][held]
        assert not len(ids) or 0 <= int(ids.min()) <= int(ids.max()) < self.token_count
        assert bool(((self.seen[:-1] > 0) == (self.keys[:-1] != _NOBODY)).all()), "rows have keys"

    def _place(self, windows: Tensor, tables: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and rows int64 [..., orders] of the contexts at the end of each window."""
        keys = ((windows.unsqueeze(-2) + 1) * self._factors).sum(-1)
        keys = (keys ^ (keys >> 31)) * _SPREAD
        keys = keys.where(keys != _NOBODY, 1)
        rows = (keys ^ (keys >> 32)) & (self.rows - 1)
        if tables is not None and self.count > 1:
            rows = rows + (tables * self.rows).unsqueeze(-1)
        return keys, rows


def _factors(orders: Sequence[int]) -> Tensor:
    """Odd int64 [orders, longest], 0 before the context: key = sum of factor * token, wrapping."""
    made = torch.Generator().manual_seed(0)
    longest = orders[-1]
    drawn = torch.randint(-(1 << 62), 1 << 62, (len(orders), longest), generator=made) * 2 + 1
    place = torch.arange(longest)
    inside = place >= longest - torch.tensor(orders).unsqueeze(1)
    return drawn.where(inside, 0)
