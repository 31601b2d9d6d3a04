"""AdjacencyMatrix: the k best successors of every token, on the model's device.

Row u holds, best first, the tokens that the target last held most likely after u. Rows are
learnt online, from every verified node, accepted or not [paper], and from the prompt. A row that
was never written yields nothing; 0 is a legal token, so entries that hold none are -1.

Whatever the matrix holds, the output of decoding does not change: it is looked up before a
round's verification and written after it.

This module knows tokens and ranks alone: no trees, no models.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from graft.ranking import best_scores

EMPTY = -1
UNKNOWN = -1.0


class Best(NamedTuple):
    """The k best successors of tokens, best first: int64 [..., k], and float32 [..., k], the
    probability of each among them (the k, not the vocabulary), UNKNOWN where nobody said it."""

    ids: Tensor
    chances: Tensor


class AdjacencyMatrix:
    """Successor table of a vocabulary, or several of them side by side.

    Args:
        token_count: V, tokens that exist; ids beyond (padding of the logits) are never stored.
        k: successors per token. Token Recycling and the paper's re-implementation use 8.
        device: where it lives: beside the model.
        count: tables. Row u of table i stands at i * V + u, and methods that take tokens take
            these row numbers; successors are always tokens.
    """

    def __init__(self, token_count: int, k: int, device: torch.device, count: int = 1) -> None:
        if not 1 <= k <= token_count:
            raise ValueError(f"k={k}: the matrix holds 1 to {token_count} successors per token")
        self.token_count = token_count
        self.k = k
        self.count = count
        # The last row takes the writes that lost to another write of the same row; nothing reads
        # it.
        shape = (count * token_count + 1, k)
        with torch.inference_mode(False):  # it can be written in and out of that mode
            self.ids = torch.full(shape, EMPTY, dtype=torch.int32, device=device)
            self.chances = torch.full(shape, UNKNOWN, dtype=torch.float16, device=device)

    @property
    def bytes(self) -> int:
        """Memory held."""
        return self.ids.nbytes + self.chances.nbytes

    def lookup(self, tokens: Tensor, ranks: Tensor) -> Tensor:
        """Successors int64 [...] at `ranks` of `tokens` (same shape); EMPTY where none is held."""
        return self.ids[tokens, ranks].long()

    def row(self, tokens: Tensor) -> Best:
        """All that is held behind tokens int64 [...]."""
        return Best(self.ids[tokens].long(), self.chances[tokens].float())

    def best(self, logits: Tensor) -> Best:
        """The successors that logits [..., V'] name."""
        rows = logits[..., : self.token_count].flatten(0, -2)
        values, ids = best_scores(rows, self.k)
        shape = (*logits.shape[:-1], self.k)
        return Best(ids.view(shape), values.float().softmax(1).view(shape))

    def write(self, tokens: Tensor, best: Best, priority: Tensor) -> Tensor:
        """Set whole rows.

        Args:
            tokens: int64 [E], rows to write.
            best: [E, k], what to write.
            priority: int64 [E], distinct where `tokens` repeats; the highest wins, negative ones
                are not written. (A scatter with repeated indices has no defined winner on CUDA.)

        Returns:
            int64 scalar, rows written.
        """
        same = tokens.unsqueeze(1) == tokens
        beaten = (same & (priority > priority.unsqueeze(1))).any(1) | (priority < 0)
        rows = torch.where(beaten, len(self.ids) - 1, tokens)
        self.put(rows, best)
        return (~beaten).sum()

    def put(self, rows: Tensor, best: Best) -> None:
        """Set whole rows int64 [E] to best [E, k]."""
        self.ids[rows] = best.ids.to(self.ids.dtype)
        self.chances[rows] = best.chances.to(self.chances.dtype)

    def learn_text(self, tokens: Tensor, table: int = 0) -> None:
        """Put what followed each token of a text in front of its row: most recent first. [ours]

        `tokens`: int64 [n], plain ids, learnt by one table. Costs no logits. The rest of each row
        moves back.
        """
        if len(tokens) < 2:
            return
        size = self.token_count
        pairs = tokens[:-1] * size + tokens[1:]
        distinct, where = torch.unique(pairs, return_inverse=True)
        latest = torch.zeros_like(distinct).scatter_reduce_(
            0, where, torch.arange(len(pairs), device=pairs.device), "amax"
        )
        # Newest pair first within each row: sort by time, then stably by row.
        order = latest.argsort(descending=True)
        order = order[(distinct[order] // size).argsort(stable=True)]
        row, successor = distinct[order] // size, distinct[order] % size
        rows, counts = torch.unique_consecutive(row, return_counts=True)
        start = counts.cumsum(0) - counts
        group = torch.repeat_interleave(counts)
        rank = torch.arange(len(row), device=row.device) - start[group]
        fresh = torch.full((len(rows), self.k), EMPTY, device=row.device)
        kept = rank < self.k
        fresh[group[kept], rank[kept]] = successor[kept]
        rows = rows + table * size
        self.ids[rows] = _merge(fresh, self.ids[rows].long()).to(self.ids.dtype)
        self.chances[rows] = UNKNOWN

    def clear(self, table: int | None = None) -> None:
        """Forget everything, or what one table holds."""
        first = 0 if table is None else table * self.token_count
        last = len(self.ids) if table is None else first + self.token_count
        self.ids[first:last] = EMPTY
        self.chances[first:last] = UNKNOWN

    def copy(self) -> AdjacencyMatrix:
        """Another matrix that holds the same."""
        out = AdjacencyMatrix(self.token_count, self.k, self.ids.device, self.count)
        out.ids.copy_(self.ids)
        out.chances.copy_(self.chances)
        return out

    def check_integrity(self) -> None:
        """Raise AssertionError where a row repeats a token, has a gap or an illegal id."""
        ids = self.ids[:-1]
        assert int(ids.max()) < self.token_count, "ids are tokens"
        assert int(ids.min()) >= EMPTY, "ids are tokens or EMPTY"
        held = ids != EMPTY
        assert bool((held[:, 1:] <= held[:, :-1]).all()), "entries are packed to the front"
        twins = (ids.unsqueeze(2) == ids.unsqueeze(1)) & held.unsqueeze(2)
        assert int(twins.sum()) == int(held.sum()), "a row holds each token once"


def _merge(first: Tensor, second: Tensor) -> Tensor:
    """Rows [R, k]: the entries of `first`, then those of `second` not in it, then EMPTY."""
    repeated = (second.unsqueeze(2) == first.unsqueeze(1)).any(2)
    both = torch.cat([first, torch.where(repeated, EMPTY, second)], dim=1)
    packed = (both == EMPTY).to(torch.uint8).argsort(dim=1, stable=True)
    return both.gather(1, packed)[:, : first.shape[1]]
