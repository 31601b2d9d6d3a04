"""The seam of the drafters: whoever proposes draft nodes before retrieval fills the tree up.

A new drafter is one file with one class. It never sees the draws of the round it drafts for, so
whatever it proposes, the output stays the same.

Positions count from 0. A sequence's history holds `length` committed tokens; the last one, at
position length - 1, is the root, which the target has not seen yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from graft.draft import Draft, no_draft
from graft.footprint import Part
from graft.pruning import DraftPlan

__all__ = ["Draft", "Drafter", "no_draft"]


class Drafter(Protocol):
    """Drafts trees for the sequences in slots 0 .. B-1."""

    name: str  # "eagle3", "model", ...
    stepwise: bool  # drafts level by level, so that it can stop on the way
    waits: bool  # can sit rounds out: commit() tells it all that it needs to know of them
    feature_layers: tuple[int, ...]  # target layers whose inputs it reads; () if none

    def open(self, slots: int, capacity: int) -> None:
        """Forget everything and make room for `slots` sequences of `capacity` tokens."""

    def reusable(self, slot: int, common: int) -> int:
        """How many tokens need no new prefill, where a new sequence in a slot begins with the
        same `common` tokens as the last one there."""

    def prefill(self, slot: int, context: Tensor, features: Tensor | None) -> None:
        """Take in the target's features [m, F] of the next m positions of a sequence.

        `context`: int64 [n], the sequence's known tokens from position 0 on, these positions and
        more. Called chunk by chunk, without gaps; once, with None, for a drafter that reads no
        features.
        """

    def draft(self, history: Tensor, length: Tensor, plan: DraftPlan) -> Draft:
        """Draft over the roots. `history`: int64 [B, T]. `length`: int64 [B]."""

    def keep_up(self, history: Tensor, length: Tensor) -> None:
        """In place of `draft`, for a drafter that waits, in a round that it sits out."""

    def commit(self, paths: Sequence[Sequence[int]], features: Tensor | None) -> None:
        """Take in the target's features [B, N, F] of the verified tree's nodes, and which of them
        were accepted: per sequence the node indices in path order, the root left out."""

    def truncate(self, slot: int, length: int) -> None:
        """Forget what a slot knows of positions from `length` on, where new tokens will stand
        from position `length` + 1 on at the earliest (`reusable` said so)."""

    def move(self, source: int, target: int) -> None:
        """Put the sequence of slot `source` into slot `target`."""

    def footprint(self) -> list[Part]:
        """What it holds in memory."""
