"""Grafting: filling the free slots of a tree with retrieved continuations.

The lookup depends on the root and the matrix alone, one batched gather per depth. Template nodes
whose row was never written yield nothing, and the template's next paths take their slots, so that
the budget is filled whenever the matrix knows enough.

This module knows trees, templates and the matrix: no models, no logits but through the matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from graft.matrix import EMPTY, AdjacencyMatrix
from graft.template import Template
from graft.tree import Source, TokenTree
from graft.verify import Walk

if TYPE_CHECKING:
    from graft.settings import PromptLearning

# Takes (tokens [m], logits [m, V]) of a chunk of a prompt.
Observer = Callable[[Tensor, Tensor], None]


class Lookups(NamedTuple):
    """What retrieval asked for, int64 [B] each."""

    asked: Tensor  # template nodes whose parent was there
    found: Tensor  # of these, how many found a successor


class Retriever(Protocol):
    """A source of retrieved nodes."""

    def fill(self, tree: TokenTree, budget: int) -> tuple[TokenTree, Lookups]:
        """Fill the tree up to `budget` nodes."""

    def update(self, tree: TokenTree, logits: Tensor, walk: Walk) -> Tensor:
        """Learn from a verified tree; returns the number of rows written (int64 scalar)."""

    def learn_prompt(self, tokens: Tensor) -> Observer | None:
        """Learn from a prompt (int64 [n]) before its prefill. Where the target's logits are
        wanted for every prompt token, returns the function that takes them, chunk by chunk."""


class NoRetriever:
    """Retrieves nothing: plain decoding, or a drafter alone."""

    def fill(self, tree: TokenTree, budget: int) -> tuple[TokenTree, Lookups]:
        """The tree as it is."""
        zero = torch.zeros_like(tree.tokens[:, 0])
        return tree, Lookups(zero, zero)

    def update(self, tree: TokenTree, logits: Tensor, walk: Walk) -> Tensor:
        """Nothing to learn."""
        return tree.tokens.new_zeros(())

    def learn_prompt(self, tokens: Tensor) -> Observer | None:
        """Nothing to learn."""
        return None


class MatrixRetriever:
    """Retrieval from an adjacency matrix by a static template, starting at the root [paper].

    Args:
        matrix: shared by whoever holds it; read before and written after each verification.
        template: paths in order of value; more of them than the budget, so that paths the matrix
            cannot serve have successors.
        prompt_learning: what prompts teach the matrix. [ours]
    """

    def __init__(
        self, matrix: AdjacencyMatrix, template: Template, prompt_learning: PromptLearning
    ) -> None:
        if template.ranks_used > matrix.k:
            raise ValueError(
                f"the template reads rank {template.ranks_used - 1}, but the matrix holds "
                f"{matrix.k} successors per token (ranks 0 to {matrix.k - 1})"
            )
        device = matrix.ids.device
        self.matrix = matrix
        self.template = template
        self.prompt_learning = prompt_learning
        self._parents = template.parents(device)
        self._depths = template.depths(device)
        self._levels = template.levels(device)

    def fill(self, tree: TokenTree, budget: int) -> tuple[TokenTree, Lookups]:
        """Retrieve a tree below the root of `tree`, which must have no other node yet."""
        batch, size = tree.batch, len(self.template) + 1
        tokens = tree.tokens.new_zeros(batch, size)
        found = torch.zeros_like(tokens, dtype=torch.bool)
        tokens[:, 0], found[:, 0] = tree.tokens[:, 0], True
        for nodes, parents, ranks in self._levels:
            level = self.matrix.lookup(tokens[:, parents], ranks.expand(batch, -1))
            found[:, nodes] = found[:, parents] & (level != EMPTY)
            tokens[:, nodes] = level.clamp(min=0)
        asked = found[:, self._parents].sum(1) - 1
        return self._compact(tokens, found, budget), Lookups(asked, found.sum(1) - 1)

    def update(self, tree: TokenTree, logits: Tensor, walk: Walk) -> Tensor:
        """Write the row of every verified node's token.

        Where a token stands at several nodes the winner is the deepest accepted one, else the
        last in tree order; across sequences that share the matrix, the last sequence. [ours]
        """
        batch, width = tree.tokens.shape
        order = torch.arange(width, device=logits.device).expand(batch, width)
        level = torch.arange(walk.nodes.shape[1], device=logits.device).expand_as(walk.nodes)
        # Levels past the last accepted one repeat its node; `amax` with a smaller value is void.
        depth = torch.where(level <= walk.accepted.unsqueeze(1), level, -1)
        accepted = torch.full_like(order, -1).scatter_reduce(1, walk.nodes, depth, "amax")
        rank = torch.where(accepted >= 0, width + accepted, order)
        sequence = torch.arange(batch, device=logits.device).unsqueeze(1)
        priority = torch.where(tree.used, sequence * 2 * width + rank, -1)
        successors = self.matrix.best(logits).flatten(0, 1)
        return self.matrix.write(tree.tokens.flatten(), successors, priority.flatten())

    def learn_prompt(self, tokens: Tensor) -> Observer | None:
        """Learn from a prompt as `prompt_learning` says."""
        if self.prompt_learning == "text":
            self.matrix.learn_text(tokens)
        return self._observe if self.prompt_learning == "logits" else None

    def _observe(self, tokens: Tensor, logits: Tensor) -> None:
        order = torch.arange(len(tokens), device=tokens.device)  # the last occurrence wins
        self.matrix.write(tokens, self.matrix.best(logits), order)

    def _compact(self, tokens: Tensor, found: Tensor, budget: int) -> TokenTree:
        """The first `budget` found nodes of the template, moved together."""
        place = found.cumsum(1) - 1  # root 0, kept nodes 1, 2, ...
        kept = found & (place <= budget)
        # Slots are scattered to; what is not kept goes to one column more, cut off at the end.
        slot = torch.where(kept, place, budget + 1)
        empty = tokens.new_zeros(tokens.shape[0], budget + 2)

        def put(values: Tensor, start: Tensor) -> Tensor:
            return start.scatter(1, slot, values)[:, : budget + 1]

        used = put(kept, torch.zeros_like(empty, dtype=torch.bool))
        depths = put(self._depths.expand_as(tokens), torch.ones_like(empty))
        parents = put(place[:, self._parents], empty)
        source = torch.full_like(tokens, Source.RETRIEVED)
        source[:, 0] = Source.TARGET
        max_depth = min(self.template.max_depth, budget)
        return TokenTree(put(tokens, empty), parents, depths, used, put(source, empty), max_depth)
