"""The seam of the grafters: whoever makes a round's tree out of a draft and what is retrieved.

`TemplateGrafter` is the paper's: retrieved nodes in the order of a template, from the root on.
`graft.valued` takes what is likeliest, wherever it hangs. Neither sees the draws of the round it
grafts for, so the output stays the same.

It knows drafts and retrieval, not models.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from graft.draft import Draft
from graft.grafting import Dedup, Grafted, graft
from graft.retrieval import MatrixMemory, Observer, Retrieved, Retriever
from graft.verify import Walk


class Grafter(Protocol):
    """Makes trees for the sequences in slots 0 .. B-1."""

    @property
    def matrix(self) -> MatrixMemory | None:
        """The matrix that it retrieves from and teaches, if any."""

    def look_up(self, roots: Tensor) -> Retrieved | None:
        """What can be retrieved while the drafter drafts: roots int64 [B]."""

    def promise(self, history: Tensor, length: Tensor) -> list[float] | None:
        """How likely the best node is that retrieval offers under each root, before anything is
        drafted; None where that is not known, or would have to be waited for."""

    def graft(
        self, draft: Draft, retrieved: Retrieved | None, history: Tensor, length: Tensor
    ) -> Grafted:
        """Trees of up to the budget. `history`: int64 [B, T]. `length`: int64 [B]."""

    def learn(
        self, grafted: Grafted, logits: Tensor, walk: Walk, history: Tensor, length: Tensor
    ) -> Tensor:
        """Learn from verified trees, whose draws stand behind `length` in the history; returns
        the number of matrix rows written (int64 scalar)."""

    def learn_draws(self, walk: Walk, history: Tensor, length: Tensor) -> None:
        """What `learn` learns without logits: all but the matrix."""

    def admit(self, slot: int, tokens: Tensor, known: int = 0) -> Observer | None:
        """A sequence enters a slot; learn from its prompt (int64 [n]) before its prefill, the first
        `known` tokens of which are those of the last sequence there. Where the target's logits are
        wanted for every prompt token, returns the function that takes them, chunk by chunk."""

    def move(self, source: int, target: int) -> None:
        """The sequence of slot `source` now stands in slot `target`."""


class TemplateGrafter:
    """The paper's grafting.

    Args:
        retriever: what is retrieved, and learns.
        budget: K.
        dedup, refill: how drafted and retrieved nodes are put together (`graft.grafting`).
    """

    def __init__(
        self, retriever: Retriever, budget: int, *, dedup: Dedup = "redirect", refill: bool = True
    ) -> None:
        self._retriever = retriever
        self._budget, self._dedup, self._refill = budget, dedup, refill

    @property
    def matrix(self) -> MatrixMemory | None:
        """The retriever's."""
        return self._retriever if isinstance(self._retriever, MatrixMemory) else None

    def look_up(self, roots: Tensor) -> Retrieved | None:
        """The templates below the roots."""
        return self._retriever.look_up(roots)

    def promise(self, history: Tensor, length: Tensor) -> list[float] | None:
        """Not known: templates have no probabilities."""
        return None

    def graft(
        self, draft: Draft, retrieved: Retrieved | None, history: Tensor, length: Tensor
    ) -> Grafted:
        """Kept draft nodes, then retrieved ones in the stage's order."""
        if draft.anchor is not None and retrieved is not None:
            # What was looked up hangs below the root; here it must begin where the draft ends.
            starts = draft.tree.tokens.gather(1, draft.anchor.unsqueeze(1)).squeeze(1)
            retrieved = self._retriever.look_up(starts)
        return graft(draft, retrieved, self._budget, dedup=self._dedup, refill=self._refill)

    def learn(
        self, grafted: Grafted, logits: Tensor, walk: Walk, history: Tensor, length: Tensor
    ) -> Tensor:
        """Every verified node's successors."""
        return self._retriever.update(grafted.tree, logits, walk)

    def learn_draws(self, walk: Walk, history: Tensor, length: Tensor) -> None:
        """Nothing."""

    def admit(self, slot: int, tokens: Tensor, known: int = 0) -> Observer | None:
        """As the retriever does."""
        return self._retriever.admit(slot, tokens)

    def move(self, source: int, target: int) -> None:
        """As the retriever does."""
        self._retriever.move(source, target)
