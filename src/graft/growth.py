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
from typing import NamedTuple

import torch
from torch import Tensor

from graft.contexts import Followers
from graft.draft import Draft
from graft.evidence import Cells
from graft.matrix import EMPTY
from graft.rows import rows_at
from graft.tree import Source, TokenTree


class Lookups(NamedTuple):
    """What is retrieved from, for B sequences.

    contexts: (windows [B, F, longest], lengths [B, F]) -> followers, or None without.
    matrix: tokens [B, F] -> successors int64 and their probabilities float32 [B, F, k] (negative:
    not known), or None without.
    """

    contexts: Callable[[Tensor, Tensor], Followers] | None
    matrix: Callable[[Tensor], tuple[Tensor, Tensor]] | None


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
    parents: Tensor  # place in the level before
    values: Tensor
    drafted: Tensor
    columns: Tensor  # among the offers
    cells: Tensor
    windows: Tensor  # [B, F, longest]


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
    batch = len(windows)
    below = _Below(draft, beam)
    zero = windows.new_zeros(batch, 1)
    level = _Level(
        windows[:, -1:],
        zero,
        table.new_ones(batch, 1),
        zero,
        zero,
        zero,
        windows.unsqueeze(1),
    )
    grown, offered = [level], []
    for depth in range(1, levels + 1):
        known = lengths.unsqueeze(1) + (depth - 1)
        offers, drafted, columns = _offers(level, known, depth, below, lookups, cells)
        named = drafted < below.none
        if rules.drafter_first and depth == 1:
            offers = offers._replace(valid=offers.valid & named)
        if not rules.anywhere and depth > 1:
            alone = (level.drafted == below.none).unsqueeze(2)
            offers = offers._replace(valid=offers.valid & (named | alone))
        offered.append(offers)
        count = min(budget, offers.tokens[0].numel())
        level = _best_of(level, offers, drafted, table, count)
        grown.append(level)
        if _settled(grown, budget, least):
            break
    return _tree(grown, offered, columns, draft, budget)


class _Below:
    """What a draft has below each of its nodes; index N, its width, stands for no node."""

    def __init__(self, draft: Draft, beam: int) -> None:
        tree, batch, self.none = draft.tree, draft.tree.batch, draft.tree.width
        index = torch.arange(self.none, device=tree.tokens.device)
        nodes = tree.used & (index > 0)
        # Rank among the children of one parent.
        before = (tree.parents.unsqueeze(2) == tree.parents.unsqueeze(1)) & nodes.unsqueeze(1)
        rank = (before & (index < index.unsqueeze(1))).sum(2)
        fits = nodes & (rank < beam)
        place = (tree.parents * beam + rank).where(fits, self.none * beam)
        children = torch.full((batch, self.none * beam + 1), self.none, device=index.device)
        children.scatter_(1, place, index.expand(batch, -1).where(fits, self.none))
        children[:, -1] = self.none
        self.children = children[:, :-1].view(batch, self.none, beam)
        self.children = torch.nn.functional.pad(self.children, (0, 0, 0, 1), value=self.none)
        self.tokens = torch.nn.functional.pad(tree.tokens, (0, 1), value=EMPTY)
        chance = (draft.scores - draft.scores.gather(1, tree.parents)).exp()
        self.chances = torch.nn.functional.pad(chance, (0, 1), value=-1.0)

    def __call__(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Children of nodes [B, F]: indices, tokens and probabilities, [B, F, beam] each."""
        batch, size = nodes.shape
        children = rows_at(self.children, nodes)
        flat = children.flatten(1)
        shape = batch, size, -1
        return (
            children,
            self.tokens.gather(1, flat).view(shape),
            self.chances.gather(1, flat).view(shape),
        )


def _offers(
    level: _Level, known: Tensor, depth: int, below: _Below, lookups: Lookups, cells: Cells
) -> tuple[Offers, Tensor, Columns]:
    """What stands behind the nodes of a level; also, [B, F, C], the index in the draft."""
    tokens, rows = [], []
    by_contexts = by_matrix = 0
    with_context = torch.zeros_like(level.tokens, dtype=torch.bool)
    if lookups.contexts is not None:
        followers = lookups.contexts(level.windows, known)
        # Longest first: of several that name a token the longest context speaks.
        ring, seen = followers.tokens.flip(-2), followers.seen.flip(-1)
        same = (ring.unsqueeze(-1) == ring.unsqueeze(-2)).sum(-1)
        with_context = (seen > 0).any(-1)
        tokens.append(ring.flatten(2))
        by_contexts = tokens[-1].shape[2]
        rows.append(cells.of_contexts(same, seen).flatten(2))
    if lookups.matrix is not None:
        successors, chances = lookups.matrix(level.tokens.clamp(min=0))
        tokens.append(successors)
        by_matrix = successors.shape[2]
        rows.append(cells.of_matrix(chances, with_context))
    children, drafted, chances = below(level.drafted)
    tokens.append(drafted)
    rows.append(torch.zeros_like(drafted))
    named, row = torch.cat(tokens, 2), torch.cat(rows, 2)
    same = named.unsqueeze(3) == named.unsqueeze(2)  # [B, F, C, C]
    again = same.tril(-1).any(3)
    valid = (named != EMPTY) & ~again & (level.values > 0).unsqueeze(2)
    by_drafter = same[..., -drafted.shape[2] :]
    spoken, which = by_drafter.any(3), by_drafter.to(torch.uint8).argmax(3)
    chance = chances.gather(2, which).where(spoken, -1.0)
    index = children.gather(2, which).where(spoken, below.none)
    cell = cells.join(row, cells.of_drafter(chance, depth))
    return Offers(named, cell, valid), index, Columns(by_contexts, by_matrix)


def _best_of(level: _Level, offers: Offers, drafted: Tensor, table: Tensor, count: int) -> _Level:
    """The likeliest nodes behind a level."""
    chance = table.gather(1, offers.cells.flatten(1)).view(offers.cells.shape) * offers.valid
    chance = chance / chance.sum(2, keepdim=True).clamp(min=1.0)
    values = (level.values.unsqueeze(2) * chance).flatten(1)
    best, place = values.topk(count, dim=1)
    parents = place // offers.tokens.shape[2]
    tokens = offers.tokens.flatten(1).gather(1, place)
    above = rows_at(level.windows, parents)
    return _Level(
        tokens,
        parents,
        best,
        drafted.flatten(1).gather(1, place),
        place % offers.tokens.shape[2],
        offers.cells.flatten(1).gather(1, place),
        torch.cat([above[:, :, 1:], tokens.unsqueeze(2)], 2),
    )


def _settled(levels: list[_Level], budget: int, least: float) -> bool:
    """Whether no deeper node can be of use and among the likeliest; looked at where looking is
    free."""
    last = levels[-1].values
    if last.device.type != "cpu":
        return False
    values = torch.cat([level.values for level in levels[1:]], 1)
    if values.shape[1] < budget:
        return not bool((last > least).any())
    bound = values.topk(budget, dim=1).values[:, -1]
    return not bool((last[:, 0] > bound.clamp(min=least)).any())


def _tree(
    levels: list[_Level], offered: list[Offers], columns: Columns, draft: Draft, budget: int
) -> Grown:
    starts = [0]
    for level in levels:
        starts.append(starts[-1] + level.tokens.shape[1])
    first = levels[0].tokens
    values = torch.cat([level.values for level in levels], 1)
    parents = torch.cat(
        [level.parents + start for level, start in zip(levels, [0, *starts], strict=False)], 1
    )
    depths = torch.cat(
        [torch.full((n.tokens.shape[1],), d, device=first.device) for d, n in enumerate(levels)]
    )
    # Levels stand in order, so equals keep parents before children.
    best, place = values.sort(dim=1, descending=True, stable=True)
    missing = budget + 1 - place.shape[1]
    if missing > 0:
        best = torch.nn.functional.pad(best, (0, missing))
        place = torch.nn.functional.pad(place, (0, missing))
    best, place = best[:, : budget + 1], place[:, : budget + 1]
    used = best > 0
    slot = torch.arange(budget + 1, device=first.device).expand_as(place)
    where = torch.zeros_like(parents).scatter(1, place.where(used, 0), slot.where(used, 0))
    tokens = torch.cat([level.tokens for level in levels], 1).gather(1, place)
    drafted = torch.cat([level.drafted for level in levels], 1).gather(1, place)
    drafted = drafted.where(used, draft.tree.width)
    column = torch.cat([level.columns for level in levels], 1).gather(1, place)
    cells = torch.cat([level.cells for level in levels], 1).gather(1, place)
    nodes = used & (slot > 0)
    by_context = nodes & (column < columns.contexts)
    retrieved = nodes & (column < columns.contexts + columns.matrix)
    source = torch.where(drafted < draft.tree.width, Source.DRAFT, Source.RETRIEVED)
    source[:, 0] = Source.TARGET
    tree = TokenTree(
        tokens=tokens.where(used, 0),
        parents=where.gather(1, parents.gather(1, place)).where(used, 0),
        depths=depths[place].where(used, 1),
        used=used,
        sources=source.where(used, 0),
        max_depth=min(len(levels) - 1, budget),
    )
    offers = Offers(*(torch.cat(parts, 1) for parts in zip(*offered, strict=True)))
    asked = values[:, : offers.tokens.shape[1]] > 0
    return Grown(tree, best, drafted, retrieved, by_context, cells, asked, offers, place, columns)
