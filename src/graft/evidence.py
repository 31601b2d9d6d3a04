"""Evidence: what speaks for a candidate, as the number of a cell. [ours]

A candidate is a token behind a node. A context may name it (how long, how often it was seen, how
often this token followed), the matrix may (rank and stored probability), and a drafter may (its
probability, how deep). Candidates with like evidence share a cell, and how often those of a cell
were right is what the next one is worth (`graft.estimates`).

This module knows numbers alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Context: for each order whether it is the longest found (2), times seen (3), share of them (3),
# and whether the token is the newest (2).
_PER_ORDER = 2 * 3 * 3 * 2
# Matrix: whether a context was found at all (2), rank (4), probability (5).
_PER_MATRIX = 2 * 4 * 5
_RANKS = (0, 1, 2, 2, 3)  # class of each rank; beyond, the last
_MATRIX_BOUNDS = (0.05, 0.2, 0.5)
# Drafter: probability (15) by depth (3), or none.
_HEAD_BOUNDS = (
    *(0.003, 0.01, 0.02, 0.035, 0.06, 0.1, 0.16, 0.25),
    *(0.35, 0.5, 0.65, 0.8, 0.9, 0.97),
)
_HEAD_DEPTHS = 3
_PER_HEAD = 1 + _HEAD_DEPTHS * (len(_HEAD_BOUNDS) + 1)
# Who speaks for a candidate: columns of `Estimates`.
VOICES = ("context", "matrix", "drafter", "drafter+context", "drafter+matrix")


class Cells:
    """Numbers of cells.

    Args:
        orders: how many orders of contexts there are.

    Attributes:
        count: cells. voice: int64 [count], index into VOICES of who speaks.
    """

    def __init__(self, orders: int, device: torch.device) -> None:
        self.orders = orders
        self._matrix_first = 1 + orders * _PER_ORDER
        retrieved = self._matrix_first + _PER_MATRIX
        self.count = retrieved * _PER_HEAD
        self._matrix_bounds = torch.tensor(_MATRIX_BOUNDS, device=device)
        self._head_bounds = torch.tensor(_HEAD_BOUNDS, device=device)
        self._ranks = torch.tensor(_RANKS, device=device)
        cell = torch.arange(self.count, device=device)
        row, drafted = cell // _PER_HEAD, cell % _PER_HEAD > 0
        matrix = row >= self._matrix_first
        self.voice = torch.where(drafted, 3 + matrix.long(), matrix.long()).where(row > 0, 2)

    def of_contexts(self, same: Tensor, seen: Tensor) -> Tensor:
        """Rows of a cell table for followers of contexts, longest order first.

        Args:
            same: int64 [..., orders, ring], times that a follower's token stands in the ring.
            seen: int64 [..., orders], times that the context was seen; 0 where it was not.

        Returns:
            int64 [..., orders, ring].
        """
        orders, ring = same.shape[-2:]
        found = seen > 0
        longest = found & (found.cumsum(-1) == 1)
        held = seen.clamp(max=ring)
        times = (held.clamp(min=1, max=3) - 1).unsqueeze(-1)
        always = same == held.unsqueeze(-1)
        often = 2 * same >= held.unsqueeze(-1)
        share = torch.where(always, 0, torch.where(often, 1, 2))
        newest = torch.arange(ring, device=same.device) > 0
        order = torch.arange(orders, device=same.device).unsqueeze(-1)
        cell = order * 2 + longest.long().unsqueeze(-1)
        return 1 + ((cell * 3 + times) * 3 + share) * 2 + newest.long()

    def of_matrix(self, probability: Tensor, with_context: Tensor) -> Tensor:
        """Rows for successors of the matrix: probability [..., k] by rank, negative if unknown;
        with_context bool [...], whether a context was found too."""
        k = probability.shape[-1]
        rank = self._ranks[torch.arange(k, device=probability.device).clamp(max=len(_RANKS) - 1)]
        known = 1 + torch.bucketize(probability, self._matrix_bounds)
        bound = known.where(probability >= 0, 0)
        cell = (with_context.long().unsqueeze(-1) * 4 + rank) * 5 + bound
        return self._matrix_first + cell

    def of_drafter(self, probability: Tensor, depth: int) -> Tensor:
        """Columns for a drafter's probabilities [...]; negative where it says nothing."""
        bound = torch.bucketize(probability, self._head_bounds)
        column = 1 + min(depth - 1, _HEAD_DEPTHS - 1) * (len(_HEAD_BOUNDS) + 1) + bound
        return column.where(probability >= 0, 0)

    def join(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Cells of rows (retrieval; 0 is none) and columns (drafter; 0 is none)."""
        return rows * _PER_HEAD + columns

    def without_drafter(self, cells: Tensor) -> Tensor:
        """The cells of the same retrieval, had the drafter said nothing; 0: nothing is left."""
        return cells // _PER_HEAD * _PER_HEAD

    def at_face_value(self) -> Tensor:
        """What evidence says by itself, float32 [count]: a follower's share of the times that its
        context was seen, or the drafter's probability, whichever is more."""
        row, column = self.parts()
        share = torch.tensor([0.95, 0.6, 0.3], device=row.device)[(row - 1).clamp(min=0) // 2 % 3]
        retrieved = share.where((row > 0) & (row < self._matrix_first), 0.0)
        bounds = torch.tensor([0.0, *_HEAD_BOUNDS, 1.0], device=row.device)
        middles = (bounds[1:] + bounds[:-1]) / 2
        drafted = middles[(column - 1).clamp(min=0) % len(middles)].where(column > 0, 0.0)
        return torch.maximum(retrieved, drafted)

    def parts(self) -> tuple[Tensor, Tensor]:
        """Row and column of every cell, int64 [count] each."""
        cell = torch.arange(self.count, device=self.voice.device)
        return cell // _PER_HEAD, cell % _PER_HEAD
