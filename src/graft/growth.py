"""Growth: the tree of the K likeliest nodes that drafter, contexts and matrix offer. [ours]

From the root on, level by level: every node of a level asks contexts and matrix what may follow
it, and the draft what it has below it. A token that several name is one child, with the evidence
of all. Its estimate (`graft.estimates`), scaled so that the children of one parent come to 1 at
most, times its parent's value is its value: the estimated probability that it will be accepted.
The likeliest of a level make the next; at the end the K likeliest of all make the tree. A child
is never worth more than its parent, so they hold their parents.

A level takes as many nodes as the budget at most, so no node of the K likeliest is missed but
where they lie deeper than the levels go.

This module knows tensors: no models, no sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from graft.contexts import ContextTable
from graft.draft import Draft
from graft.evidence import Cells
from graft.matrix import EMPTY
from graft.rows import rows_at
from graft.tree import Source, TokenTree


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


class Rules(NamedTuple):
    """What may hang where.

    anywhere: retrieved nodes hang under drafted ones too; else under the root and each other.
    drafter_first: behind the root only what the drafter names counts.
    """

    anywhere: bool = True
    drafter_first: bool = False


class Grown(NamedTuple):
    """A tree, and what it was chosen from."""

    tree: TokenTree  # [B, K + 1]
    values: Tensor  # float32 [B, K + 1], probability of being accepted; root 1
    drafted: Tensor  # int64 [B, K + 1], index in the draft's tree; its width where there is none
    retrieved: Tensor  # bool [B, K + 1], contexts or matrix name it
    by_context: Tensor  # bool [B, K + 1], of these, a context does
    cells: Tensor  # int64 [B, K + 1], evidence for each node; 0 for the root
    asked: Tensor  # bool [B, A], nodes that were asked about; false where there was no node
    offers: Offers  # [B, A, C], behind them
    place: Tensor  # int64 [B, K + 1], of each node among the A; from A on: not asked about
    columns: Columns


class _Level(NamedTuple):
    """Nodes of one depth, [B, F] each."""

    tokens: Tensor
    values: Tensor
    drafted: Tensor | None  # index in the draft, 0 for none; None: none of them is drafted
    hashes: Tensor | None  # [B, F, L], of contexts; None without
    place: Tensor  # where each stands among all that is offered behind the level before: F * C


def grow(
    windows: Tensor,
    lengths: Tensor,
    draft: Draft,
    lookups: Lookups,
    cells: Cells,
    table: Tensor,
    *,
    budget: int,
    levels: int,
    beam: int,
    rules: Rules = Rules(),  # noqa: B008 (an immutable)
    least: float = 0.0,
) -> Grown:
    """Grow trees.

    Args:
        windows: int64 [B, longest], the last committed tokens, the root last.
        lengths: int64 [B], committed tokens.
        draft: candidates of the drafter.
        table: float32 [B, cells], estimates.
        budget: K. levels: depth at most. beam: children of a node in the draft at most.
        rules: what may hang where.
        least: value below which nodes are of no use; no level is grown for these alone.
    """
    root = windows[:, -1:]
    hashes = None
    if lookups.contexts is not None:
        hashes = lookups.contexts.hashes(windows, lengths).unsqueeze(1)
    below = _Below(draft, beam, cells)
    level = _Level(root, table.new_ones(root.shape), torch.zeros_like(root), hashes, root)
    grown, offered, drafts = [level], list[Offers](), list[Tensor]()
    front = _Front(budget, least)
    for depth in range(1, levels + 1):
        offers, drafted, columns = _offers(level, depth, below, lookups, cells)
        if depth == 1 and rules.drafter_first:
            offers = offers._replace(valid=offers.valid & (drafted > 0))
        if depth > 1 and not rules.anywhere and level.drafted is not None:
            alone = (level.drafted == 0).unsqueeze(2)
            offers = offers._replace(valid=offers.valid & ((drafted > 0) | alone))
        offered.append(offers)
        drafts.append(drafted)
        more = depth < draft.tree.max_depth
        level = _best_of(level, offers, drafted if more else None, table, budget, lookups.contexts)
        grown.append(level)
        if front.settled(level.values):
            break
    return _tree(grown, offered, drafts, columns, draft, budget)


# A child in the draft and its column of the cells, as one number: index << _COLUMN_BITS | column.
_COLUMN_BITS = 8


class _Below:
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


def _offers(
    level: _Level, depth: int, below: _Below, lookups: Lookups, cells: Cells
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


def _best_of(
    level: _Level,
    offers: Offers,
    drafted: Tensor | None,
    table: Tensor,
    budget: int,
    contexts: ContextTable | None,
) -> _Level:
    """The likeliest nodes behind a level."""
    size = offers.tokens.shape[2]
    chance = table.gather(1, offers.cells.flatten(1)).view(offers.cells.shape) * offers.valid
    share = level.values.unsqueeze(2) / chance.sum(2, keepdim=True).clamp(min=1.0)
    values = (chance * share).flatten(1)
    best, place = values.topk(min(budget, values.shape[1]), dim=1)
    tokens = offers.tokens.flatten(1).gather(1, place)
    hashes = None
    if contexts is not None:
        assert level.hashes is not None
        hashes = contexts.follow(rows_at(level.hashes, place // size), tokens)
    if drafted is not None:
        drafted = drafted.flatten(1).gather(1, place)
    return _Level(tokens, best, drafted, hashes, place)


class _Front:
    """The values of the K likeliest nodes so far."""

    def __init__(self, budget: int, least: float) -> None:
        self._budget, self._least = budget, least
        self._best: Tensor | None = None

    def settled(self, values: Tensor) -> bool:
        """Whether no node deeper than those of `values`, [B, F] in falling order, can be of use
        and among the likeliest; looked at where looking is free."""
        if values.device.type != "cpu":
            return False
        best = values if self._best is None else torch.cat([self._best, values], 1)
        best = self._best = best.topk(min(self._budget, best.shape[1]), dim=1).values
        bound = best[:, -1].clamp(min=self._least) if best.shape[1] == self._budget else self._least
        return not bool((values[:, 0] > bound).any())


def _tree(
    levels: list[_Level],
    offered: list[Offers],
    drafts: list[Tensor],
    columns: Columns,
    draft: Draft,
    budget: int,
) -> Grown:
    offers = Offers(*(torch.cat(parts, 1) for parts in zip(*offered, strict=True)))
    asked, size = offers.tokens.shape[1:]
    values = torch.cat([level.values for level in levels], 1)
    # All nodes stand in a row, and so do those that were asked about: the first ones of it.
    # origin: where a node was offered, in the row of all offers; the root nowhere.
    starts = [0]
    for level in levels:
        starts.append(starts[-1] + level.tokens.shape[1])
    parts = [level.place + n * size for level, n in zip(levels[1:], starts, strict=False)]
    origin = torch.cat([torch.zeros_like(levels[0].place), *parts], 1)
    # Levels stand in order, so equals keep parents before children.
    best, place = values.sort(dim=1, descending=True, stable=True)
    missing = budget + 1 - place.shape[1]
    if missing > 0:
        best = torch.nn.functional.pad(best, (0, missing))
        place = torch.nn.functional.pad(place, (0, missing))
    best, place = best[:, : budget + 1], place[:, : budget + 1]
    used = best > 0
    slot = torch.arange(budget + 1, device=place.device).expand_as(place)
    nodes = used & (slot > 0)
    origin = origin.gather(1, place)
    parents, column = origin // size, origin % size
    # Slots of nodes; parents have one.
    slots = torch.zeros_like(values, dtype=torch.int64).scatter(1, place * used, slot * used)
    tokens = offers.tokens.flatten(1).gather(1, origin)
    tokens[:, :1] = levels[0].tokens
    drafted = torch.cat(drafts, 1).flatten(1).gather(1, origin) * nodes
    is_draft = drafted > 0
    source = torch.where(is_draft, Source.DRAFT, Source.RETRIEVED)
    source[:, 0] = Source.TARGET
    tree = TokenTree(
        tokens=tokens * used,
        parents=slots.gather(1, parents) * nodes,
        depths=_depths(tuple(starts), place.device)[place].where(used, 1),
        used=used,
        sources=source * used,
        max_depth=min(len(levels) - 1, budget),
    )
    return Grown(
        tree,
        best,
        drafted.where(is_draft | (slot == 0), draft.tree.width),
        nodes & (column < columns.contexts + columns.matrix),
        nodes & (column < columns.contexts),
        offers.cells.flatten(1).gather(1, origin) * nodes,
        values[:, :asked] > 0,
        offers,
        place,
        columns,
    )


@lru_cache(maxsize=256)
def _depths(starts: tuple[int, ...], device: torch.device) -> Tensor:
    """Depth of each node where levels start at `starts`: int64."""
    with torch.inference_mode(False):
        sizes = torch.tensor(starts).diff()
        return torch.arange(len(sizes)).repeat_interleave(sizes).to(device)
