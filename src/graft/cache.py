"""KVCache: preallocated keys and values of all layers, for several sequences of uneven length.

Rows are written in place and a verified path is committed by moving its own rows only, so the
cost of a round does not depend on the context length. Storage doubles when it is full.

Each slot holds one sequence:

    [0 .. length)               committed rows
    [length .. length + N)      rows of the current step: the root, then the tree's nodes
    [length + N .. capacity)    free

This module knows neither tokens nor models; a model writes through `update` during a forward,
under the `Step` that `begin` announced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from graft.attention import FixedStep, Step
from graft.upload import upload

BLOCK = 256  # capacities are multiples of this many rows


class RowShape(NamedTuple):
    """What one layer stores per position, for its keys or for its values."""

    heads: int
    dim: int
    dtype: torch.dtype
    device: torch.device


class LayerShape(NamedTuple):
    keys: RowShape
    values: RowShape


class KVCache(Cache):
    """Keys and values of `slots` sequences.

    Args:
        layers: shapes of each layer; equal row shapes share one tensor, so that a commit is one
            gather and one scatter for all of them.
        slots: sequences held at once.
        capacity: rows per sequence to begin with.
    """

    def __init__(self, layers: Sequence[LayerShape], slots: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.lengths = [0] * slots  # committed rows per slot
        self.capacity = -(-capacity // BLOCK) * BLOCK
        self._step: Step | None = None
        # Of the step, per group: where each sequence's new rows go, and what its rows see.
        self._places: list[list[tuple[Tensor, ...]]] = []
        self._seen: list[tuple[Tensor, ...]] = []
        # Of a fixed step in place of these: slots [B, 1] and rows [B, N], on the device.
        self._fixed: tuple[Tensor, Tensor] | None = None
        rows = [shape for layer in layers for shape in layer]  # keys and values in turn
        self._group = [list(dict.fromkeys(rows)).index(shape) for shape in rows]
        self._place = [self._group[:i].count(group) for i, group in enumerate(self._group)]
        # One tensor [count, slots, heads, capacity, dim] per distinct row shape.
        self._storage = [
            _zeros((rows.count(s), slots, s.heads, self.capacity, s.dim), s.dtype, s.device)
            for s in dict.fromkeys(rows)
        ]

    @property
    def slots(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        """Memory held."""
        return sum(t.numel() * t.element_size() for t in self._storage)

    @property
    def row_bytes(self) -> int:
        """Memory that a token takes."""
        return self.bytes // (self.slots * self.capacity)

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where its memory is: others after it has grown."""
        return tuple(t.data_ptr() for t in self._storage)

    def bound(self, rows: int) -> int:
        """Room for `rows` rows per slot, made if there is none, in one of few sizes: a half more
        than the one before or a third, and the capacity at most."""
        self.reserve(rows)
        size = BLOCK
        while size < rows:
            size += size // 2 if size & (size - 1) == 0 else size // 3
        return min(size, self.capacity)

    def serves(self, slots: int, capacity: int) -> bool:
        """Whether it has room for `slots` sequences of `capacity` rows; if so, all rows are
        forgotten and the same storage begins anew."""
        if self.slots != slots or self.capacity < capacity:
            return False
        self.lengths = [0] * slots
        return True

    def begin(self, step: Step) -> None:
        """Announce the rows of the next forward; makes room for them."""
        self.reserve(step.end)
        self._step = step
        # Views of all layers at once: a layer's own cost as much as the rows that it writes.
        self._fixed = None
        if isinstance(step, FixedStep):
            self._fixed = step.places(self._storage[0].device)
        else:
            slots = range(step.first, step.first + step.batch)
            ends = [start + step.offset for start in step.starts]
            self._places = [
                [
                    s[:, slot, :, end : end + step.width].unbind()
                    for slot, end in zip(slots, ends, strict=True)
                ]
                for s in self._storage
            ]
        self._seen = [
            s[:, step.first : step.first + step.batch, :, : step.end].unbind()
            for s in self._storage
        ]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's new rows [B, H, N, D]; returns views [B, H, T, D] of what they see."""
        keys = self._write(2 * layer_idx, key_states)
        return keys, self._write(2 * layer_idx + 1, value_states)

    def commit(self, first: int, paths: Sequence[Sequence[int]]) -> None:
        """Keep the root and the accepted nodes of the last step, row by row.

        Args:
            first: slot of the first row.
            paths: per row, the accepted nodes' indices in the step, in path order (root left out).
        """
        for slot, path in enumerate(paths, first):
            length = self.lengths[slot] + 1
            # Nodes that already stand where they belong need no move.
            moves = [(n, j) for j, n in enumerate(path, 1) if n != j]
            if moves:
                self._move(slot, length - 1, moves)
            self.lengths[slot] = length + len(path)

    def truncate(self, slot: int, length: int) -> None:
        """Forget all but the first `length` rows of a slot."""
        self.lengths[slot] = min(length, self.lengths[slot])

    def move(self, source: int, target: int) -> None:
        """Put the sequence of one slot into another."""
        used = self.lengths[source]
        for storage in self._storage:
            storage[:, target, :, :used] = storage[:, source, :, :used]
        self.lengths[target] = used

    def reserve(self, rows: int) -> None:
        """Grow to hold `rows` rows per slot, by doubling."""
        if rows <= self.capacity:
            return
        while self.capacity < rows:
            self.capacity *= 2
        for i, old in enumerate(self._storage):
            shape = (*old.shape[:3], self.capacity, old.shape[4])
            new = _zeros(shape, old.dtype, old.device)
            # Uncommitted rows too: a draft grows its cache between two of its own steps.
            new[:, :, :, : old.shape[3]] = old
            self._storage[i] = new

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Longest committed length; models ask, but positions are always given to them."""
        return max(self.lengths)

    def _write(self, index: int, rows: Tensor) -> Tensor:
        step = self._step
        assert step is not None, "begin() comes first"
        assert rows.shape[::2] == (step.batch, step.width), "the rows are those announced"
        group, place = self._group[index], self._place[index]
        if rows.dtype == torch.float16:
            # A rejected row that overflowed stays in the storage; hidden, its weight is 0, and
            # 0 times NaN would spoil a longer sequence beside it.
            rows = rows.nan_to_num()
        if self._fixed is not None:
            # [slots, capacity, heads, dim]
            self._storage[group][place].transpose(1, 2)[self._fixed] = rows.transpose(1, 2)
            return self._seen[group][place]
        for places, own in zip(self._places[group], rows.unbind(), strict=True):
            places[place].copy_(own)
        return self._seen[group][place]

    def _move(self, slot: int, base: int, moves: Sequence[tuple[int, int]]) -> None:
        for storage in self._storage:
            rows = storage[:, slot]  # [count, heads, capacity, dim]
            index = upload(moves, rows.device) + base
            rows.index_copy_(2, index[:, 1], rows.index_select(2, index[:, 0]))


@torch.inference_mode(False)
def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Storage that can be written to in and out of inference mode, wherever it was made."""
    return torch.zeros(shape, dtype=dtype, device=device)
