"""Growth in the host's memory: the same tree as `graft.growth`, node by node, best first. [ours]

Where the tables are in the host's memory, a tree of some tens of nodes is grown node by node in a
tenth of the time that operations over tensors take there. Every node that is taken asks contexts
and matrix what may follow it and the draft what it has below it; the likeliest candidate of all is
the next node.

Invariant: trees, values and evidence are those of `graft.growth.grow`, up to the order of equals,
and but for nodes that are of no use, which it may leave out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from torch import Tensor

from graft.draft import Draft
from graft.estimates import MOST, Estimates
from graft.evidence import Cells
from graft.growth import Rules
from graft.host_contexts import HostContexts
from graft.matrix import AdjacencyMatrix

# Who names a candidate first: what it is counted as where the drafter does not name it.
CONTEXT, MATRIX, NOBODY = 0, 1, 2


class Offer(NamedTuple):
    """A candidate behind a node."""

    token: int
    cell: int
    drafted: int  # index in the draft; 0 for none
    voice: int  # CONTEXT, MATRIX or NOBODY


class Child(NamedTuple):
    """What a draft has below a node."""

    token: int
    place: int  # in the draft
    column: int  # of its cell


@dataclass
class Tree:
    """A tree of one sequence, as lists over its nodes, the root first, best first."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [0])
    depths: list[int] = field(default_factory=lambda: [0])
    values: list[float] = field(default_factory=lambda: [1.0])
    drafted: list[int] = field(default_factory=lambda: [0])
    cells: list[int] = field(default_factory=lambda: [0])
    voices: list[int] = field(default_factory=lambda: [NOBODY])
    hashes: list[list[int]] = field(default_factory=list)
    offers: dict[int, list[Offer]] = field(default_factory=dict)  # of nodes that were asked about
    hits: list[int] = field(default_factory=lambda: [0, 0])  # nodes that contexts, matrix knew


class HostGrower:
    """Grows the tree of one sequence.

    Args:
        cells, estimates: what candidates are worth.
        contexts, matrix: retrieved from; None leaves one out.
        budget: K. levels: depth at most. beam: children of a node in the draft at most.
        rules: what may hang where.
    """

    def __init__(
        self,
        cells: Cells,
        estimates: Estimates,
        contexts: HostContexts | None,
        matrix: AdjacencyMatrix | None,
        *,
        budget: int,
        levels: int,
        beam: int,
        rules: Rules,
    ) -> None:
        self._numbers = cells.numbers(0 if matrix is None else matrix.k)
        self._voice = cells.voice.tolist()
        self._estimates, self._contexts = estimates, contexts
        self._matrix = None if matrix is None else (matrix.ids.numpy(), matrix.chances.numpy())
        self._budget, self._levels, self._beam, self._rules = budget, levels, beam, rules

    def grow(
        self,
        text: Sequence[int],
        below: dict[int, list[Child]],
        slot: int,
        tables: tuple[int, int],
        least: float,
    ) -> Tree:
        """Grow a tree.

        Args:
            text: committed tokens, the last ones at least, the root last.
            below: what the draft has, by the index of the parent (`children`).
            slot: of the sequence, among the estimates.
            tables: of contexts, and the first row in the matrix.
            least: value up to which nodes are of no use.
        """
        tree = self._root(text)
        waiting: list[tuple[float, int, int, Offer]] = []  # negative value, number, parent
        rates, factors = self._rates(slot)
        node = number = 0
        while True:
            if tree.depths[node] < self._levels:
                offers = self.ask(tree, node, below, tables)
                chances = self._chances(offers, rates, factors)
                share = tree.values[node] / max(sum(chances), 1.0)
                for offer, chance in zip(offers, chances, strict=True):
                    value = chance * share
                    if value > least:
                        number += 1
                        heappush(waiting, (-value, number, node, offer))
            if not waiting or len(tree.tokens) > self._budget:
                return tree
            value, _, parent, offer = heappop(waiting)
            node = self._take(tree, parent, offer, -value)
            if node == self._budget:
                return tree

    def best_chance(self, text: Sequence[int], slot: int, tables: tuple[int, int]) -> float:
        """The chance of the likeliest candidate that is retrieved behind the root."""
        rates, factors = self._rates(slot)
        offers = self.ask(self._root(text), 0, {}, tables)
        return max(self._chances(offers, rates, factors), default=0.0)

    def ask(
        self, tree: Tree, node: int, below: dict[int, list[Child]], tables: tuple[int, int]
    ) -> list[Offer]:
        """What stands behind a node; of several that name a token the longest context speaks."""
        n = self._numbers
        named: dict[int, tuple[int, int]] = {}
        found = False
        if self._contexts is not None:
            for held in self._contexts.lookup(tree.hashes[node], tables[0]):
                first = n.orders[held.order] + (0 if found else n.longest)
                found = True
                for token, kind in held.followers:
                    if token not in named:
                        named[token] = first + kind * n.columns, CONTEXT
            tree.hits[CONTEXT] += found
        if self._matrix is not None:
            row = tree.tokens[node] + tables[1]
            successors, chances = self._matrix[0][row].tolist(), self._matrix[1][row].tolist()
            first = n.with_context if found else 0
            for rank, token in enumerate(successors):
                if token >= 0 and token not in named:
                    bound = bisect_left(n.bounds, chances[rank]) * n.columns
                    named[token] = first + n.ranks[rank] + bound, MATRIX
            tree.hits[MATRIX] += any(token >= 0 for token in successors)
        drafted = tree.drafted[node]
        children = below.get(drafted, ()) if drafted or node == 0 else ()
        offers = self._joined(named, children, node, bool(drafted))
        tree.offers[node] = offers
        return offers

    def unaided(self, tree: Tree, slot: int) -> list[float]:
        """What each node would be worth once its parent is accepted, by retrieval alone."""
        columns = self._numbers.columns
        rates, factors = self._rates(slot)
        cells = [cell // columns * columns for cell in tree.cells]
        return [min(rates[c] * factors[self._voice[c]], MOST) if c else 0.0 for c in cells]

    def _root(self, text: Sequence[int]) -> Tree:
        tree = Tree([text[-1]])
        tree.hashes.append([] if self._contexts is None else self._contexts.hashes(text))
        return tree

    def _rates(self, slot: int) -> tuple[Sequence[float], Sequence[float]]:
        """Estimates by cell, and what corrects them for a sequence, by voice."""
        estimates = self._estimates
        return estimates.rates.numpy().data, estimates.factors[slot].tolist()

    def _joined(
        self,
        named: dict[int, tuple[int, int]],
        children: Sequence[Child],
        node: int,
        drafted: bool,
    ) -> list[Offer]:
        """What retrieval names, with the word of the drafter."""
        own = {child.token: child for child in children}
        alone = (node == 0 and self._rules.drafter_first) or (drafted and not self._rules.anywhere)
        offers = [
            Offer(token, cell + (own[token].column if token in own else 0), own[token].place, voice)
            if token in own
            else Offer(token, cell, 0, voice)
            for token, (cell, voice) in named.items()
            if token in own or not alone
        ]
        more = [Offer(c.token, c.column, c.place, NOBODY) for c in children if c.token not in named]
        return offers + more

    def _chances(
        self, offers: Sequence[Offer], rates: Sequence[float], factors: Sequence[float]
    ) -> list[float]:
        """Estimates of candidates."""
        return [min(rates[offer.cell] * factors[self._voice[offer.cell]], MOST) for offer in offers]

    def _take(self, tree: Tree, parent: int, offer: Offer, value: float) -> int:
        """Make a candidate a node."""
        tree.tokens.append(offer.token)
        tree.parents.append(parent)
        tree.depths.append(tree.depths[parent] + 1)
        tree.values.append(value)
        tree.drafted.append(offer.drafted)
        tree.cells.append(offer.cell)
        tree.voices.append(offer.voice)
        contexts = self._contexts
        hashes = tree.hashes[parent]
        tree.hashes.append([] if contexts is None else contexts.follow(hashes, offer.token))
        return len(tree.tokens) - 1


def children(draft: Draft, cells: Cells, beam: int) -> list[dict[int, list[Child]]]:
    """What a draft has below each of its nodes, per sequence."""
    tree = draft.tree
    if tree.max_depth == 0:
        return [{} for _ in range(tree.batch)]
    chance = (draft.scores - draft.scores.gather(1, tree.parents)).exp()
    columns = cells.of_drafter(chance, tree.depths)
    parts: list[Tensor] = [tree.tokens, tree.parents, columns, tree.used]
    out = []
    for tokens, parents, column, used in zip(*(part.tolist() for part in parts), strict=True):
        below: dict[int, list[Child]] = {}
        for index in range(1, len(tokens)):
            siblings = below.setdefault(parents[index], []) if used[index] else None
            if siblings is not None and len(siblings) < beam:
                siblings.append(Child(tokens[index], index, column[index]))
        out.append(below)
    return out
