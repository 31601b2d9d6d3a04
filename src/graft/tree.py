"""TokenTree: the candidates of one round, for a batch of sequences, as tensors of fixed shape.

Index 0 of every row is the root, the last committed token. A node *is* its path from the root,
never its token alone. Invariants (`check_integrity`): parents stand before their children, used
nodes come first and empty slots last, a parent's children hold different tokens.

This module knows tensors alone: not where the nodes come from, nor how they are verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor


class Source(IntEnum):
    """Where a committed token came from."""

    TARGET = 0  # drawn by the target itself: the first token, and each round's bonus
    DRAFT = 1
    RETRIEVED = 2


@dataclass(frozen=True)
class TokenTree:
    """Trees of B sequences with room for N nodes each (root + budget).

    Attributes:
        tokens: int64 [B, N], token of each node; 0 in empty slots.
        parents: int64 [B, N], index of each node's parent; 0 for the root and for empty slots.
        depths: int64 [B, N], distance from the root; 1 in empty slots, so that their position is
            a legal one.
        used: bool [B, N], false in empty slots.
        sources: int64 [B, N], a `Source`.
        max_depth: bound on `depths`, known without looking at them.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    used: Tensor
    sources: Tensor
    max_depth: int

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        """N: the root and the slots of the budget."""
        return self.tokens.shape[1]

    def ancestors(self) -> Tensor:
        """Visibility inside the tree: bool [B, N, N], true where column j is on the path of row i.

        Every node sees itself and the root; an empty slot sees these two alone, so that no row
        of an attention mask is empty.
        """
        return ancestors(self.parents, self.max_depth)

    def narrow(self, width: int) -> TokenTree:
        """The first `width` columns; the caller knows that the rest are empty slots."""
        if width == self.width:
            return self
        return TokenTree(
            self.tokens[:, :width],
            self.parents[:, :width],
            self.depths[:, :width],
            self.used[:, :width],
            self.sources[:, :width],
            self.max_depth,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError where an invariant does not hold. Reads the device: for tests."""
        index = torch.arange(self.width, device=self.tokens.device)
        assert bool(self.used[:, 0].all()), "the root is always used"
        assert bool((self.depths[:, 0] == 0).all()), "the root has depth 0"
        assert bool((self.used[:, 1:] <= self.used[:, :-1]).all()), "used nodes come first"
        nodes = self.used & (index > 0)
        assert bool((self.parents < index)[nodes].all()), "a parent stands before its children"
        up = self.depths.gather(1, self.parents) + 1
        assert bool((up == self.depths)[nodes].all()), "depth is the parent's depth plus one"
        assert int(self.depths.max()) <= max(self.max_depth, 1), "max_depth is a bound"
        twins = (self.parents.unsqueeze(2) == self.parents.unsqueeze(1)) & (
            self.tokens.unsqueeze(2) == self.tokens.unsqueeze(1)
        )
        twins &= nodes.unsqueeze(2) & nodes.unsqueeze(1) & (index[:, None] != index)
        assert not bool(twins.any()), "children of one parent hold different tokens"


def ancestors(parents: Tensor, max_depth: int) -> Tensor:
    """bool [B, N, N] of parents int64 [B, N]: true where column j is on the path of row i, which is
    no longer than `max_depth`."""
    batch, width = parents.shape
    node = torch.arange(width, device=parents.device).expand(batch, width)
    visible = torch.zeros(batch, width, width, dtype=torch.bool, device=parents.device)
    for _ in range(max_depth + 1):
        visible.scatter_(2, node.unsqueeze(2), True)
        node = parents.gather(1, node)
    visible[:, :, 0].fill_(True)
    return visible


def root_tree(roots: Tensor) -> TokenTree:
    """A tree of the root alone (plain decoding). `roots`: int64 [B]."""
    tokens = roots.unsqueeze(1)
    zero = torch.zeros_like(tokens)
    return TokenTree(tokens, zero, zero, torch.ones_like(tokens, dtype=torch.bool), zero, 0)
