"""Which table belongs to which slot: one for all slots, or one for each.

Tables stay where they are; when a sequence moves to another slot, its table goes with it by name.
It knows numbers alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graft.upload import upload


class SlotTables:
    """Tables of slots.

    Args:
        count: tables.
        shared: all slots share the first; else slot i begins with table i.
        device: where the numbers are wanted.
    """

    def __init__(self, count: int, device: torch.device, *, shared: bool) -> None:
        self.shared = shared
        self._tables = list(range(count))
        self._known = upload(self._tables, device)

    def __getitem__(self, slot: int) -> int:
        """The table of a slot."""
        return 0 if self.shared else self._tables[slot]

    def first(self, batch: int) -> Tensor:
        """int64 [batch]: the tables of the first slots."""
        return self._known[:1].expand(batch) if self.shared else self._known[:batch]

    def move(self, source: int, target: int) -> None:
        """The sequence of slot `source` now stands in slot `target`."""
        if not self.shared:
            tables = self._tables
            tables[source], tables[target] = tables[target], tables[source]
            self._known = upload(tables, self._known.device)
