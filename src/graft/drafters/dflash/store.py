"""ContextStore: the drafter's keys and values of committed positions.

They depend only on the target's features and the positions, so they are computed once, when the
features arrive. Row p of a slot is position p. A block's own rows stand behind them during one
pass and are overwritten by the next.

It does not know how keys and values come about.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graft.attention import Step
from graft.cache import KVCache


class ContextStore(KVCache):
    """A `KVCache` that takes context rows and hides what is stale."""

    def append(
        self, first: int, rows: Sequence[tuple[Tensor, Tensor]], counts: Sequence[int]
    ) -> None:
        """Append to the slots from `first` on.

        Args:
            rows: per layer, keys and values [B, heads, W, dim].
            counts: how many of the W rows count, per sequence; the others are padding, and free
                space at once.
        """
        batch, width = rows[0][0].shape[0], rows[0][0].shape[2]
        starts = self.lengths[first : first + batch]
        device = rows[0][0].device
        anywhere = torch.ones((), dtype=torch.bool, device=device).expand(batch, width, width)
        depths = torch.zeros((), dtype=torch.int64, device=device).expand(batch, width)
        self.begin(Step(first, starts, anywhere, depths))  # where to write; nothing attends
        for index, (keys, values) in enumerate(rows):
            self.update(keys, values, index)
        for slot, count in enumerate(counts, first):
            self.lengths[slot] += count

    def begin_block(self, step: Step) -> None:
        """`begin`, and clear what shorter sequences have between their rows and the last key.

        Those rows are masked, but attention multiplies their values by a weight of zero, and
        zero times a stale infinity is not zero. It costs no more than attention's reading them.
        """
        self.begin(step)
        for slot, start in enumerate(step.starts, step.first):
            for storage in self._storage:
                storage[:, slot, :, start + step.room : step.end] = 0
