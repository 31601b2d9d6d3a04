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

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from graft.contexts import ContextTable
from graft.draft import Draft
from graft.evidence import Cells
from graft.offers import Below, Columns, Level, Lookups, Offers, offers_behind
from graft.rows import rows_at
from graft.tree import Source, TokenTree


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
    below = Below(draft, beam, cells)
    level = Level(root, table.new_ones(root.shape), torch.zeros_like(root), hashes, root)
    grown, offered, drafts = [level], list[Offers](), list[Tensor]()
    front = _Front(budget, least)
    for depth in range(1, levels + 1):
        offers, drafted, columns = offers_behind(level, depth, below, lookups, cells)
        if depth == 1 and rules.drafter_first:
            offers = offers._replace(valid=offers.valid & (drafted > 0))
        if depth > 1 and not rules.anywhere and level.drafted is not None:
            alone = (level.drafted == 0).unsqueeze(2)
            offers = offers._replace(valid=offers.valid & ((drafted > 0) | alone))
        offered.append(offers)
        drafts.append(drafted)
        known = drafted if depth <= draft.tree.max_depth else None
        level = _best_of(level, offers, known, table, budget, lookups.contexts)
        grown.append(level)
        if front.settled(level.values):
            break
    return _tree(grown, offered, drafts, columns, draft, budget)


def _best_of(
    level: Level,
    offers: Offers,
    drafted: Tensor | None,
    table: Tensor,
    budget: int,
    contexts: ContextTable | None,
) -> Level:
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
    return Level(tokens, best, drafted, hashes, place)


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
    levels: list[Level],
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
