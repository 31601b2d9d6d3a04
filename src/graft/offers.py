"""Offers: what contexts, matrix and draft have behind the nodes of a level. [ours]

A token that several name is one candidate, named once, with the evidence of all: of the contexts
the longest speaks, else the matrix, and the drafter beside either.

This module knows tensors: no trees to be made, no models.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from graft.contexts import ContextTable
from graft.draft import Draft
from graft.evidence import Cells
from graft.matrix import EMPTY
from graft.rows import rows_at


class Lookups(NamedTuple):
    """What is retrieved from, for B sequences.

    contexts: followers of contexts, or None without. tables: int64 [B, 1], whose.
    matrix: tokens [B, F] -> successors int64 and their probabilities float32 [B, F, k] (negative:
    not known), or None without.
    """

    contexts: ContextTable | None
    matrix: Callable[[Tensor], tuple[Tensor, Tensor]] | None
    tables: Tensor | None = None


class Offers(NamedTuple):
    """What was offered behind the F nodes of a level; the C columns are `Columns`."""

    tokens: Tensor  # int64 [B, F, C]
    cells: Tensor  # int64 [B, F, C]
    valid: Tensor  # bool [B, F, C], false for what is nothing or was named before


class Columns(NamedTuple):
    """How many columns of the offers are whose, in this order; the others are the drafter's."""

    contexts: int
    matrix: int


class Level(NamedTuple):
    """Nodes of one depth, [B, F] each."""

    tokens: Tensor
    values: Tensor
    drafted: Tensor | None  # index in the draft, 0 for none; None: none of them is drafted
    hashes: Tensor | None  # [B, F, L], of contexts; None without
    place: Tensor  # where each stands among all that is offered behind the level before: F * C


# A child in the draft and its column of the cells, as one number: index << _COLUMN_BITS | column.
_COLUMN_BITS = 8


class Below:
    """What a draft has below each of its nodes. Index 0, the root, stands for no node: nothing
    hangs below it, and what hangs below the root is asked for by `depth` 1.

    Attributes:
        beam: children of a node.
        depth: of the draft; nothing is below it.
    """

    def __init__(self, draft: Draft, beam: int, cells: Cells) -> None:
        tree, self.beam, self.depth = draft.tree, beam, draft.tree.max_depth
        if self.depth == 0:
            return
        batch, count = tree.tokens.shape
        index = torch.arange(count, device=tree.tokens.device)
        nodes = tree.used & (index > 0)
        # Rank among the children of one parent.
        before = (tree.parents.unsqueeze(2) == tree.parents.unsqueeze(1)) & nodes.unsqueeze(1)
        rank = (before & (index < index.unsqueeze(1))).sum(2)
        fits = nodes & (rank < beam)
        place = (tree.parents * beam + rank).where(fits, count * beam)
        chance = (draft.scores - draft.scores.gather(1, tree.parents)).exp()
        column = cells.of_drafter(chance, tree.depths)
        packed = torch.zeros(batch, count * beam + 1, dtype=torch.int64, device=index.device)
        tokens = torch.full_like(packed, EMPTY)
        packed.scatter_(1, place, (index << _COLUMN_BITS) + column)
        tokens.scatter_(1, place, tree.tokens)
        children = torch.stack([tokens, packed], 2)[:, :-1].unflatten(1, (count, beam))
        self._first = children[:, :1].clone()  # [B, 1, beam, 2]
        children[:, 0, :, 0], children[:, 0, :, 1] = EMPTY, 0
        self._children = children.flatten(2)  # [B, N, beam * 2]

    def __call__(self, nodes: Tensor | None, depth: int) -> tuple[Tensor, Tensor] | None:
        """Tokens and packed numbers int64 [B, F, beam] of the children of nodes int64 [B, F] at
        `depth`; None where there are none."""
        if nodes is None or depth > self.depth:
            return None
        if depth == 1:
            children = self._first
        else:
            children = rows_at(self._children, nodes).unflatten(2, (self.beam, 2))
        return children[..., 0], children[..., 1]


def offers_behind(
    level: Level, depth: int, below: Below, lookups: Lookups, cells: Cells
) -> tuple[Offers, Tensor, Columns]:
    """What stands behind the nodes of a level; also, [B, F, C], the index in the draft."""
    shape = (*level.tokens.shape, below.beam)
    tokens, numbers = [], []
    by_contexts = by_matrix = 0
    with_context = level.tokens.new_zeros((), dtype=torch.bool)
    if lookups.contexts is not None:
        assert level.hashes is not None
        followers = lookups.contexts.lookup(level.hashes, lookups.tables)
        tokens.append(followers.tokens.flatten(2))
        numbers.append(cells.of_contexts(followers.classes, followers.found).flatten(2))
        by_contexts = tokens[-1].shape[2]
        with_context = followers.found.any(2)
    if lookups.matrix is not None:
        successors, chances = lookups.matrix(level.tokens.clamp(min=0))
        tokens.append(successors)
        numbers.append(cells.of_matrix(chances, with_context))
        by_matrix = successors.shape[2]
    children = below(level.drafted, depth)
    nothing = level.tokens.new_zeros(()).expand(shape)
    tokens.append(nothing + EMPTY if children is None else children[0])
    numbers.append(nothing)
    named, cell = torch.cat(tokens, 2), torch.cat(numbers, 2)
    same = named.unsqueeze(3) == named.unsqueeze(2)  # [B, F, C, C]
    valid = (named != EMPTY) & ~(same & _earlier(named.shape[2], named.device)).any(3)
    columns = Columns(by_contexts, by_matrix)
    if children is None:
        return Offers(named, cell, valid), torch.zeros_like(named), columns
    # A parent's children in the draft are distinct, so at most one number is summed.
    packed = (same[..., -below.beam :] * children[1].unsqueeze(2)).sum(3)
    cell = cells.join(cell, packed & ((1 << _COLUMN_BITS) - 1))
    return Offers(named, cell, valid), packed >> _COLUMN_BITS, columns


@cache
def _earlier(count: int, device: torch.device) -> Tensor:
    """bool [C, C]: true for columns before the one of the row."""
    with torch.inference_mode(False):
        return torch.ones(count, count, dtype=torch.bool, device=device).tril(-1)
