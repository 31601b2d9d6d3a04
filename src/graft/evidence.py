"""Evidence: what speaks for a candidate, as the number of a cell. [ours]

A candidate is a token behind a node. A context may name it (how long, how often it was seen, how
often this token followed), the matrix may (rank and stored probability), and a drafter may (its
probability, how deep). Candidates with like evidence share a cell, and how often those of a cell
were right is what the next one is worth (`graft.estimates`).

This module knows numbers alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Follower of a context: times seen (3), share of them (3), whether it is not the newest (2).
_CLASSES = 3 * 3 * 2
# Context: for each order whether it is the longest found (2), and the follower's class.
_PER_ORDER = 2 * _CLASSES
# Matrix: whether a context was found at all (2), rank (4), probability (5).
_PER_MATRIX = 2 * 4 * 5
_RANKS = (0, 1, 2, 2, 3)  # class of each rank; beyond, the last
_MATRIX_BOUNDS = (-0.5, 0.05, 0.2, 0.5)  # below the first: unknown
# Drafter: probability (15) by depth (3), or none.
_HEAD_BOUNDS = (
    *(0.003, 0.01, 0.02, 0.035, 0.06, 0.1, 0.16, 0.25),
    *(0.35, 0.5, 0.65, 0.8, 0.9, 0.97),
)
_HEAD_DEPTHS = 3
_PER_HEAD = 1 + _HEAD_DEPTHS * (len(_HEAD_BOUNDS) + 1)
# Who speaks for a candidate: columns of `Estimates`.
VOICES = ("context", "matrix", "drafter", "drafter+context", "drafter+matrix")


def follower_class(tokens: Tensor) -> Tensor:
    """Classes of what followed a context: int64 [n, ring].

    Args:
        tokens: int64 [n, ring], the newest first, negative behind the last.
    """
    same = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).sum(2)
    held = (tokens >= 0).sum(1, keepdim=True)
    share = torch.where(same == held, 0, torch.where(2 * same >= held, 1, 2))
    older = torch.arange(tokens.shape[1], device=tokens.device) > 0
    return ((held.clamp(min=1, max=3) - 1) * 3 + share) * 2 + older.long()


def class_of(age: int, same: int, held: int) -> int:
    """The class of one follower: its place from the newest on, how often its token is among those
    held, and how many these are."""
    share = 0 if same == held else 1 if 2 * same >= held else 2
    return ((min(held, 3) - 1) * 3 + share) * 2 + (age > 0)


class Numbers(NamedTuple):
    """What cells are numbered by, for those who count on the host: a follower's cell is that of its
    order, of being the longest found, and its class times the columns; a successor's that of its
    rank, of a context being found, and its class of probability times the columns."""

    columns: int
    orders: list[int]
    longest: int
    ranks: list[int]
    with_context: int
    bounds: list[float]


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
        # First cell of each order, the longest first; and of each rank of the matrix.
        order = torch.arange(orders, device=device)
        self._orders = (1 + order.unsqueeze(1) * _PER_ORDER) * _PER_HEAD
        self._ranks = torch.tensor(_RANKS, device=device) * 5 + self._matrix_first
        self._ranks *= _PER_HEAD
        cell = torch.arange(self.count, device=device)
        row, drafted = cell // _PER_HEAD, cell % _PER_HEAD > 0
        matrix = row >= self._matrix_first
        self.voice = torch.where(drafted, 3 + matrix.long(), matrix.long()).where(row > 0, 2)

    def of_contexts(self, classes: Tensor, found: Tensor) -> Tensor:
        """Cells of followers of contexts, where no drafter speaks: int64 [..., orders, ring].

        Args:
            classes: int64 [..., orders, ring], longest order first.
            found: bool [..., orders], whether the context is held.
        """
        longest = (found & (found.cumsum(-1) == 1)).unsqueeze(-1)
        cells = torch.add(self._orders, classes, alpha=_PER_HEAD)
        return torch.add(cells, longest, alpha=_CLASSES * _PER_HEAD)

    def of_matrix(self, probability: Tensor, with_context: Tensor) -> Tensor:
        """Cells of successors of the matrix, where no drafter speaks.

        Args:
            probability: float32 [..., k] by rank, negative if unknown.
            with_context: bool [...], whether a context was found too.
        """
        k = probability.shape[-1]
        bound = torch.bucketize(probability, self._matrix_bounds)
        cells = torch.add(self._rank_cells(k), bound, alpha=_PER_HEAD)
        return torch.add(cells, with_context.unsqueeze(-1), alpha=4 * 5 * _PER_HEAD)

    def of_drafter(self, probability: Tensor, depth: Tensor) -> Tensor:
        """Columns for a drafter's probabilities [...] of nodes of `depth` int64 [...]; 0 where it
        says nothing: where they are negative."""
        bound = torch.bucketize(probability, self._head_bounds)
        row = (depth - 1).clamp(min=0, max=_HEAD_DEPTHS - 1)
        column = 1 + row * (len(_HEAD_BOUNDS) + 1) + bound
        return column.where(probability >= 0, 0)

    def join(self, cells: Tensor, columns: Tensor) -> Tensor:
        """Cells of what retrieval says (0: nothing) with what a drafter says (0: nothing)."""
        return cells + columns

    def numbers(self, k: int) -> Numbers:
        """For the host; k: successors of the matrix."""
        return Numbers(
            _PER_HEAD,
            self._orders.flatten().tolist(),
            _CLASSES * _PER_HEAD,
            self._rank_cells(k).tolist(),
            4 * 5 * _PER_HEAD,
            self._matrix_bounds.tolist(),
        )

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

    def _rank_cells(self, k: int) -> Tensor:
        """First cell of each of k ranks; beyond those that are told apart, the last one's."""
        missing = k - len(self._ranks)
        if missing > 0:
            self._ranks = torch.cat([self._ranks, self._ranks[-1:].expand(missing)])
        return self._ranks[:k]

    def parts(self) -> tuple[Tensor, Tensor]:
        """Row and column of every cell, int64 [count] each."""
        cell = torch.arange(self.count, device=self.voice.device)
        return cell // _PER_HEAD, cell % _PER_HEAD
