"""Grafting by value in the host's memory: `graft.valued`, node by node. [ours]

For a few sequences whose tables are in the host's memory. Batches beyond that go the way of
tensors, whose time hardly grows with them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graft.draft import Draft
from graft.grafting import Grafted
from graft.host_contexts import HostContexts
from graft.host_growth import CONTEXT, MATRIX, NOBODY, Child, HostGrower, Tree, children
from graft.retrieval import Retrieved
from graft.tree import Source, TokenTree
from graft.valued import ValuedGrafter
from graft.verify import Walk

SEQUENCES = 6  # up to which it is faster


class HostValuedGrafter(ValuedGrafter):
    """Grafts by value; arguments as for `ValuedGrafter`, with all tables in the host's memory."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._host = None if self._contexts is None else HostContexts(self._contexts)
        self._grower = HostGrower(
            self._cells,
            self._estimates,
            self._host,
            None if self.matrix is None else self.matrix.matrix,
            budget=self._plan.budget,
            levels=self._levels,
            beam=self._plan.beam,
            rules=self._rules,
        )
        self._trees: list[Tree] | None = None
        self._below: list[dict[int, list[Child]]] = []

    def graft(
        self, draft: Draft, retrieved: Retrieved | None, history: Tensor, length: Tensor
    ) -> Grafted:
        """The likeliest nodes."""
        self._trees = None
        if len(length) > SEQUENCES:
            return super().graft(draft, retrieved, history, length)
        self._below = children(draft, self._cells, self._plan.beam)
        least = self._spending.least()
        self._trees = [
            self._grower.grow(
                self._text(history, slot, end),
                self._below[slot],
                slot,
                self._bases(slot),
                least,
            )
            for slot, end in enumerate(length.tolist())
        ]
        return self._grafted(self._trees, draft)

    def promise(self, history: Tensor, length: Tensor) -> list[float] | None:
        """The chance of the likeliest candidate behind each root."""
        if len(length) > SEQUENCES:
            return None
        return [
            self._grower.best_chance(self._text(history, slot, end), slot, self._bases(slot))
            for slot, end in enumerate(length.tolist())
        ]

    def learn_draws(self, walk: Walk, history: Tensor, length: Tensor) -> None:
        """What can be learnt without logits: candidates and contexts."""
        if self._trees is None:
            super().learn_draws(walk, history, length)
            return
        self._judge_trees(self._trees, walk)
        if self._host is None:
            return
        ends, accepted = length.tolist(), walk.accepted.tolist()
        for slot, (end, more) in enumerate(zip(ends, accepted, strict=True)):
            start = max(end - self._longest, 0)
            text = history[slot, start : end + more + 1].tolist()
            self._host.learn(text, end - start, self._tables[slot])

    def _text(self, history: Tensor, slot: int, end: int) -> list[int]:
        """The last committed tokens of a sequence."""
        tokens: list[int] = history[slot, max(end - self._longest, 0) : end].tolist()
        return tokens

    def _bases(self, slot: int) -> tuple[int, int]:
        """Where the tables of a slot begin: of contexts by number, in the matrix by row."""
        return self._tables[slot], 0 if self.matrix is None else self.matrix.first_row(slot)

    def _judge_trees(self, trees: list[Tree], walk: Walk) -> None:
        """Compare what was offered behind visited nodes with the target's draws."""
        rows: list[list[tuple[int, bool]]] = []
        walks = zip(*(part.tolist() for part in walk), strict=True)
        for slot, (tree, (nodes, draws, accepted)) in enumerate(zip(trees, walks, strict=True)):
            row: list[tuple[int, bool]] = []
            for node, draw in zip(nodes[: accepted + 1], draws, strict=False):
                if tree.depths[node] == self._levels:
                    continue
                offers = tree.offers.get(node)
                if offers is None:  # the last nodes of a tree are not asked about to grow it
                    offers = self._grower.ask(tree, node, self._below[slot], self._bases(slot))
                row += [(offer.cell, offer.token == draw) for offer in offers]
            rows.append(row)
        longest = max(len(row) for row in rows)
        padded = [row + [(-1, False)] * (longest - len(row)) for row in rows]
        numbers = torch.tensor(padded, dtype=torch.int64).view(len(rows), longest, 2)
        cells, right = numbers[..., 0], numbers[..., 1] > 0
        self._estimates.learn(cells.clamp(min=0), cells >= 0, right)

    def _grafted(self, trees: list[Tree], draft: Draft) -> Grafted:
        """As tensors."""
        width = self._plan.budget + 1
        none = draft.tree.width
        numbers = torch.tensor([_columns(tree, width, none) for tree in trees])
        tokens, parents, depths, used, sources, drafted, retrieved, by_context = numbers.unbind(1)
        is_draft = sources == Source.DRAFT
        shared = is_draft & (retrieved > 0)
        scores = torch.nn.functional.pad(draft.scores, (0, 1), value=torch.nan)
        asked = torch.tensor([[len(tree.offers), *tree.hits] for tree in trees])
        zero = torch.zeros_like(asked[:, 0])
        return Grafted(
            TokenTree(
                tokens,
                parents,
                depths,
                used > 0,
                sources,
                max(max(max(tree.depths) for tree in trees), 1),
            ),
            scores.gather(1, drafted),
            shared,
            by_context > 0,
            is_draft.sum(1),
            shared.sum(1),
            asked[:, 0] if self.matrix is not None else zero,
            asked[:, 1 + MATRIX],
            asked[:, 0] if self._host is not None else zero,
            asked[:, 1 + CONTEXT],
            zero,
            torch.tensor([_padded(tree.values, width) for tree in trees]),
            torch.tensor([self._alone(tree, slot, width) for slot, tree in enumerate(trees)]),
        )

    def _alone(self, tree: Tree, slot: int, width: int) -> list[float]:
        """What each node would be worth once its parent is accepted, had the drafter not named
        it."""
        return _padded(self._grower.unaided(tree, slot), width)


def _columns(tree: Tree, width: int, none: int) -> list[list[int]]:
    """Tokens, parents, depths, used, sources, places in the draft, whether retrieval names a node
    and whether a context is its source: `width` of each."""
    count = len(tree.tokens)
    sources = [Source.DRAFT if place else Source.RETRIEVED for place in tree.drafted]
    sources[0] = Source.TARGET
    places = [place or none for place in tree.drafted]
    places[0] = 0
    by_context = [
        voice == CONTEXT and not place
        for voice, place in zip(tree.voices, tree.drafted, strict=True)
    ]
    columns: list[list[int]] = [
        _padded(tree.tokens, width),
        _padded(tree.parents, width),
        [*tree.depths, *[1] * (width - count)],
        _padded([1] * count, width),
        _padded(sources, width),
        [*places, *[none] * (width - count)],
        _padded([voice != NOBODY for voice in tree.voices], width),
        _padded(by_context, width),
    ]
    return columns


def _padded(numbers: Any, width: int) -> list[Any]:
    return [*numbers, *[0] * (width - len(numbers))]
