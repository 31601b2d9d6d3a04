"""Retrieval: looking up likely continuations, by a static template, in the adjacency matrix.

The lookup depends on its start token and the matrix alone, one batched gather per depth [paper],
so it can run while a drafter drafts. Template nodes whose row was never written yield nothing.
Where the retrieved nodes go is not decided here (`graft.grafting`).

This module knows trees, templates and the matrix: no models, no logits but through the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from graft.matrix import EMPTY, AdjacencyMatrix, Best
from graft.slot_tables import SlotTables
from graft.template import Level, Template
from graft.tree import TokenTree
from graft.verify import Walk

if TYPE_CHECKING:
    from graft.settings import PromptLearning

# Takes (tokens [m], logits [m, V]) of a chunk of a prompt.
Observer = Callable[[Tensor, Tensor], None]

SEQUENCES = 6  # of a batch on a CPU, up to which the host's own numbers are faster


class Shape(NamedTuple):
    """The template nodes of all stages together; node 0 is where the lookup starts."""

    parents: Tensor  # int64 [U], the start's is itself
    depths: Tensor  # int64 [U]
    levels: list[Level]
    places: Tensor  # int64 [stages, U] order of value in each stage's template; U: not part of it
    max_depth: int


class Retrieved(NamedTuple):
    """What a lookup found for B sequences."""

    tokens: Tensor  # int64 [B, U], 0 where nothing was found
    found: Tensor  # bool [B, U]; the start counts as found
    shape: Shape


class Retriever(Protocol):
    """A source of retrieved nodes."""

    def look_up(self, starts: Tensor) -> Retrieved | None:
        """Continuations of `starts` (int64 [B], one per running sequence)."""

    def update(self, tree: TokenTree, logits: Tensor, walk: Walk) -> Tensor:
        """Learn from a verified tree; returns the number of rows written (int64 scalar)."""

    def admit(self, slot: int, tokens: Tensor) -> Observer | None:
        """A sequence enters a slot; learn from its prompt (int64 [n]) before its prefill. Where
        the target's logits are wanted for every prompt token, returns the function that takes
        them, chunk by chunk."""

    def move(self, source: int, target: int) -> None:
        """The sequence of slot `source` now stands in slot `target`."""


class NoRetriever:
    """Retrieves nothing: plain decoding, or a drafter alone."""

    def look_up(self, starts: Tensor) -> Retrieved | None:
        """Nothing."""
        return None

    def update(self, tree: TokenTree, logits: Tensor, walk: Walk) -> Tensor:
        """Nothing to learn."""
        return tree.tokens.new_zeros(())

    def admit(self, slot: int, tokens: Tensor) -> Observer | None:
        """Nothing to learn."""
        return None

    def move(self, source: int, target: int) -> None:
        """Nothing is kept by slot."""


class MatrixMemory:
    """What an adjacency matrix knows and learns of the running sequences [paper].

    Args:
        matrix: read before and written after each verification.
        prompt_learning: what prompts teach the matrix. [ours]
        shared: all sequences use its first table; else each slot has its own, cleared when a
            sequence enters.
    """

    def __init__(
        self, matrix: AdjacencyMatrix, prompt_learning: PromptLearning, *, shared: bool = True
    ) -> None:
        self.matrix = matrix
        self.prompt_learning = prompt_learning
        self._tables = SlotTables(matrix.count, matrix.ids.device, shared=shared)

    def successors(self, tokens: Tensor) -> Best:
        """All that the matrix holds behind tokens [B, n] of the running sequences."""
        return self.matrix.row(self._rows(tokens))

    def update(self, tree: TokenTree, logits: Tensor, walk: Walk) -> Tensor:
        """Write the row of every verified node's token."""
        return self.write(tree, self.matrix.best(logits), walk, tree.used)

    def write(self, tree: TokenTree, best: Best, walk: Walk, known: Tensor) -> Tensor:
        """Write the rows of nodes.

        Args:
            best: [B, N, k], successors of each node.
            known: bool [B, N], nodes whose successors these are; the others are left out.

        Where a token stands at several nodes the winner is the deepest accepted one, else the
        last in tree order; across sequences that share the matrix, the last sequence. [ours]
        """
        batch, width = tree.tokens.shape
        device = tree.tokens.device
        flat = Best(*(part.flatten(0, 1) for part in best))
        if device.type == "cpu" and batch <= SEQUENCES:
            winners = _winners(self._rows(tree.tokens), walk, known)
            places = torch.tensor(list(winners.values()), dtype=torch.int64)
            taken = torch.tensor(list(winners), dtype=torch.int64)
            self.matrix.put(taken, Best(*(part[places] for part in flat)))
            return torch.tensor(len(winners))
        order = torch.arange(width, device=device).expand(batch, width)
        level = torch.arange(walk.nodes.shape[1], device=device).expand_as(walk.nodes)
        # Levels past the last accepted one repeat its node; `amax` with a smaller value is void.
        depth = torch.where(level <= walk.accepted.unsqueeze(1), level, -1)
        accepted = torch.full_like(order, -1).scatter_reduce(1, walk.nodes, depth, "amax")
        rank = torch.where(accepted >= 0, width + accepted, order)
        sequence = torch.arange(batch, device=device).unsqueeze(1)
        priority = torch.where(known, sequence * 2 * width + rank, -1)
        rows = self._rows(tree.tokens).flatten()
        return self.matrix.write(rows, flat, priority.flatten())

    def admit(self, slot: int, tokens: Tensor) -> Observer | None:
        """Learn from a prompt as `prompt_learning` says."""
        table = self._tables[slot]
        if not self._tables.shared:
            self.matrix.clear(table)
        if self.prompt_learning == "text":
            self.matrix.learn_text(tokens, table)
        if self.prompt_learning != "logits":
            return None

        def observe(seen: Tensor, logits: Tensor) -> None:
            order = torch.arange(len(seen), device=seen.device)  # the last occurrence wins
            rows = seen + table * self.matrix.token_count
            self.matrix.write(rows, self.matrix.best(logits), order)

        return observe

    def move(self, source: int, target: int) -> None:
        """The slots change their tables."""
        self._tables.move(source, target)

    def first_row(self, slot: int) -> int:
        """The first row of the table of a slot."""
        return self._tables[slot] * self.matrix.token_count

    def _rows(self, tokens: Tensor) -> Tensor:
        """Rows of the matrix for tokens [B, n] of the running sequences."""
        if self._tables.shared:
            return tokens
        return tokens + self._tables.first(len(tokens)).unsqueeze(1) * self.matrix.token_count


class MatrixRetriever(MatrixMemory):
    """Retrieval of templates from an adjacency matrix [paper].

    Args:
        templates: one per stage; more paths than slots, so that paths the matrix cannot serve
            have successors.
        matrix, prompt_learning, shared: as in `MatrixMemory`.
    """

    def __init__(
        self,
        matrix: AdjacencyMatrix,
        templates: Sequence[Template],
        prompt_learning: PromptLearning,
        *,
        shared: bool = True,
    ) -> None:
        super().__init__(matrix, prompt_learning, shared=shared)
        ranks = max(template.ranks_used for template in templates)
        if ranks > matrix.k:
            raise ValueError(
                f"the template reads rank {ranks - 1}, but the matrix holds {matrix.k} successors "
                f"per token (ranks 0 to {matrix.k - 1})"
            )
        self.shape = _shape(templates, matrix.ids.device)

    def look_up(self, starts: Tensor) -> Retrieved:
        """Retrieve below `starts`."""
        shape, batch = self.shape, len(starts)
        tokens = starts.new_zeros(batch, len(shape.parents))
        found = torch.zeros_like(tokens, dtype=torch.bool)
        tokens[:, 0], found[:, 0] = starts, True
        rows = self._rows(tokens)
        for nodes, parents, ranks in shape.levels:
            level = self.matrix.lookup(rows[:, parents], ranks.expand(batch, -1))
            there = found[:, parents] & (level != EMPTY)
            found[:, nodes], tokens[:, nodes] = there, level.where(there, 0)
            rows = self._rows(tokens)
        return Retrieved(tokens, found, shape)


def _winners(rows: Tensor, walk: Walk, known: Tensor) -> dict[int, int]:
    """Rows of the matrix and the nodes, counted through the batch, that write them."""
    out: dict[int, int] = {}
    parts = (part.tolist() for part in (rows, known, walk.nodes, walk.accepted))
    for row, (names, is_known, nodes, accepted) in enumerate(zip(*parts, strict=True)):
        # Later ones win: accepted nodes by depth behind all others in tree order.
        path = nodes[: accepted + 1]
        others = [node for node in range(len(names)) if node not in path]
        out |= {names[n]: row * len(names) + n for n in (*others, *path) if is_known[n]}
    return out


def _shape(templates: Sequence[Template], device: torch.device) -> Shape:
    """All templates as one: one template in its own order, several by depth."""
    paths = dict.fromkeys(
        path for t in sorted(templates, key=len, reverse=True) for path in t.paths
    )
    union = Template(tuple(sorted(paths, key=len)) if len(set(templates)) > 1 else tuple(paths))
    size = len(union) + 1
    places = torch.full((len(templates), size), size, dtype=torch.int64)
    index = {path: node for node, path in enumerate(union.paths, 1)}
    for stage, template in enumerate(templates):
        places[stage, 0] = 0
        for place, path in enumerate(template.paths, 1):
            places[stage, index[path]] = place
    return Shape(
        union.parents(device),
        union.depths(device),
        union.levels(device),
        places.to(device),
        union.max_depth,
    )
