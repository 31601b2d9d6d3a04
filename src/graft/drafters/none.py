"""No drafter: the tree is the root alone, and retrieval has the whole budget."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from graft.drafters.base import Draft, no_draft
from graft.footprint import Part
from graft.pruning import DraftPlan


class NoDrafter:
    """Drafts nothing."""

    name = "none"
    stepwise = False
    waits = True
    feature_layers: tuple[int, ...] = ()

    def open(self, slots: int, capacity: int) -> None:
        """Nothing to make room for."""

    def reusable(self, slot: int, common: int) -> int:
        """All of it."""
        return common

    def prefill(self, slot: int, context: Tensor, features: Tensor | None) -> None:
        """Nothing to learn."""

    def draft(self, history: Tensor, length: Tensor, plan: DraftPlan) -> Draft:
        """Trees of the root alone."""
        return no_draft(history.gather(1, length.unsqueeze(1) - 1).squeeze(1), plan)

    def keep_up(self, history: Tensor, length: Tensor) -> None:
        """Nothing to do."""

    def commit(self, paths: Sequence[Sequence[int]], features: Tensor | None) -> None:
        """Nothing to learn."""

    def truncate(self, slot: int, length: int) -> None:
        """Nothing to forget."""

    def move(self, source: int, target: int) -> None:
        """Nothing to move."""

    def footprint(self) -> list[Part]:
        """Nothing."""
        return []
