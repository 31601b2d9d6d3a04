"""ContextTable: what followed longer contexts, in a hashed table on the model's device. [ours]

A context is the last n tokens, for each of a few orders n. Its row holds the tokens that followed
it the last few times, newest first, each with its class (`graft.evidence.follower_class`): how
often it stands there says how likely it is. Rows of all orders share one table of fixed size:
where two contexts want one row, the newer has it, so memory is bounded and old contexts give way.
A row carries the key of its context, and no other context reads it.

    hash of the n newest tokens = token + 1 + FACTOR * (hash of the n - 1 before it)

so the contexts behind a child follow from its parent's in two operations.

Learnt from committed text alone: prompts and outputs. Whatever it holds, the output of decoding
does not change. Shapes depend on the numbers of contexts alone; nothing waits for the device.

This module knows tokens alone: no trees, no models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graft.evidence import follower_class
from graft.matrix import EMPTY

ORDERS = (2, 4, 8)
ROWS = 1 << 18
RING = 4
NOBODY = 0  # key of a row that was never written
SPREAD = -7046029254386353131  # odd: spreads keys over rows
FACTOR = 6364136223846793005  # odd: of the hash
CLASS_BITS = 5
NOTHING = EMPTY << CLASS_BITS  # a follower that there is not, of class 0


class Followers(NamedTuple):
    """What followed contexts [..., orders], the longest first."""

    tokens: Tensor  # int64 [..., orders, ring], newest first, EMPTY behind the last
    classes: Tensor  # int64 [..., orders, ring], of `graft.evidence`
    found: Tensor  # bool [..., orders], whether the context is held


class ContextTable:
    """Followers of contexts of several lengths.

    Args:
        token_count: V, tokens that exist.
        device: where it lives: beside the model.
        orders: lengths of contexts, ascending.
        rows: of each table, a power of two.
        ring: followers that a row holds; 2 or more.
        count: tables side by side; sequences that share nothing have one each.

    Attributes:
        replaced: int64 scalar on the device, rows that were taken from another context so far.
        missing: int64 [longest], hashes of contexts that are longer than the text.
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
            self.keys = torch.full((size,), NOBODY, device=device)
            # Token and class, packed: a lookup reads one number for both.
            self.followers = torch.full((size, ring), NOTHING, dtype=torch.int32, device=device)
            self.seen = torch.zeros(size, dtype=torch.int32, device=device)
            self.replaced = torch.zeros((), dtype=torch.int64, device=device)
            self._orders = torch.tensor(self.orders[::-1], device=device)
            self._age = torch.arange(ring, device=device)
            self._lengths = torch.arange(1, self.longest + 1, device=device)
            powers = [pow(FACTOR, n, 1 << 64) for n in range(self.longest)]
            self._powers = torch.tensor([_signed(power) for power in powers], device=device)
            # What stands for a context that is longer than the text: no text has these hashes.
            self.missing = _drawn(self.longest).to(device)

    @property
    def bytes(self) -> int:
        """Memory held."""
        return self.keys.nbytes + self.followers.nbytes + self.seen.nbytes

    def hashes(self, windows: Tensor, lengths: Tensor) -> Tensor:
        """Hashes of the contexts of lengths 0, 1, ... at the end of windows: int64
        [..., longest + 1].

        Args:
            windows: int64 [..., longest], the last tokens of each, the newest last.
            lengths: int64 [...] or broadcast, tokens of the window that there are.
        """
        sums = ((windows.flip(-1) + 1) * self._powers).cumsum(-1)
        sums = sums.where(self._lengths <= lengths.unsqueeze(-1), self.missing)
        return torch.nn.functional.pad(sums, (1, 0))

    def follow(self, hashes: Tensor, tokens: Tensor) -> Tensor:
        """Hashes of the contexts that have one more token at their end, int64 [...]."""
        longer = torch.add((tokens + 1).unsqueeze(-1), hashes[..., :-1], alpha=FACTOR)
        return torch.cat([hashes[..., :1], longer], -1)

    def lookup(self, hashes: Tensor, tables: Tensor | None = None) -> Followers:
        """What followed contexts.

        Args:
            hashes: int64 [..., longest + 1], of `hashes` or `follow`.
            tables: int64 [...] or broadcast, whose; None where there is one.
        """
        keys, rows = self._place(hashes, tables)
        found = self.keys[rows] == keys
        packed = self.followers[rows].where(found.unsqueeze(-1), NOTHING).long()
        return Followers(packed >> CLASS_BITS, packed & ((1 << CLASS_BITS) - 1), found)

    def learn(
        self, windows: Tensor, followers: Tensor, lengths: Tensor, tables: Tensor | None = None
    ) -> None:
        """Take in what followed contexts, in the order in which it did.

        Args:
            windows: int64 [E, longest]. followers: int64 [E]; negative ones are left out.
            lengths: int64 [E], tokens of each window that there are.
            tables: int64 [E] or broadcast, whose; None where there is one.
        """
        keys, rows = self._place(self.hashes(windows, lengths), tables)
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
        # How many of the run stand, and all that do, in order.
        upto = stands.cumsum(0)
        starts = torch.cat([ends.new_ones(1), ends[:-1]])
        before = (upto - stands.long()).where(starts, 0).cummax(0).values
        count = upto - before
        place = (upto - 1).where(stands, size)
        standing = tokens.new_zeros(size + 1).scatter(0, place, tokens[order])
        # The rows as they will be: what is new, the newest first, then what was there.
        taken = self.keys[row] != winner
        self.replaced += (taken & ends & (row < spare) & (self.keys[row] != NOBODY)).sum()
        seen = self.seen[row].where(~taken, 0) + count
        fresh = standing[(upto.unsqueeze(1) - 1 - self._age).clamp(min=0)]
        old = (self.followers[row] >> CLASS_BITS).where(~taken.unsqueeze(1), EMPTY).long()
        old = old.gather(1, (self._age - count.unsqueeze(1)).clamp(min=0))
        merged = fresh.where(self._age < count.unsqueeze(1), old)
        done = row.where(ends, spare)
        self.keys[done] = winner
        self.seen[done] = seen.to(torch.int32)
        self.followers[done] = self._packed(merged)

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
        self.keys[first:last] = NOBODY
        self.seen[first:last] = 0
        self.followers[first:last] = NOTHING

    def tensors(self) -> dict[str, Tensor]:
        """What is held, by name."""
        return {"keys": self.keys, "followers": self.followers, "seen": self.seen}

    def check_integrity(self) -> None:
        """Raise AssertionError where what is held makes no sense."""
        followers, seen = self.followers[:-1], self.seen[:-1]
        tokens = (followers >> CLASS_BITS).long()
        held = self._age < seen.unsqueeze(1)
        assert torch.equal(tokens != EMPTY, held), "as many followers as were seen"
        assert not bool(((tokens < EMPTY) | (tokens >= self.token_count)).any())
        assert torch.equal(self._packed(tokens), followers), "classes are those of the tokens"
        assert bool(((seen > 0) == (self.keys[:-1] != NOBODY)).all()), "rows have keys"

    def _packed(self, tokens: Tensor) -> Tensor:
        """Tokens [n, ring] with their classes: int32."""
        packed = (tokens << CLASS_BITS) + follower_class(tokens)
        return packed.where(tokens != EMPTY, NOTHING).to(torch.int32)

    def _place(self, hashes: Tensor, tables: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and rows int64 [..., orders] of contexts, the longest first."""
        keys = hashes[..., self._orders]
        keys = (keys ^ (keys >> 31)) * SPREAD | 1  # never NOBODY
        rows = (keys ^ (keys >> 32)) & (self.rows - 1)
        if tables is not None and self.count > 1:
            rows = rows + (tables * self.rows).unsqueeze(-1)
        return keys, rows


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _drawn(count: int) -> Tensor:
    """Numbers int64 [count] that nothing else is made of."""
    made = torch.Generator().manual_seed(0)
    return torch.randint(-(1 << 62), 1 << 62, (count,), generator=made)
