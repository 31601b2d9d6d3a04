"""The seam of the drafters: whoever puts draft nodes into a tree before retrieval fills it up.

A new drafter is one file with one class. It never sees the draws of the round it drafts for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from graft.tree import TokenTree


class Drafter(Protocol):
    """Drafts trees for the sequences in slots 0 .. B-1."""

    def draft(self, roots: Tensor, budget: int) -> TokenTree:
        """Trees over `roots` (int64 [B]) with at most `budget` draft nodes each."""

    def commit(self, paths: Sequence[Sequence[int]], features: Tensor | None) -> None:
        """Learn which nodes of the last tree were accepted, per sequence in path order, and the
        target's features [B, N, F] of all of them."""
