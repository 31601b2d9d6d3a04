"""No drafter: the tree is the root alone, and retrieval has the whole budget."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from graft.tree import TokenTree, root_tree


class NoDrafter:
    """Drafts nothing."""

    def draft(self, roots: Tensor, budget: int) -> TokenTree:
        """Trees of the root alone, for any budget."""
        return root_tree(roots)

    def commit(self, paths: Sequence[Sequence[int]], features: Tensor | None) -> None:
        """Nothing to learn."""
