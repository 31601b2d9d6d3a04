"""Grafting: the tree of a round, out of what was drafted and what was retrieved.

A fixed budget of K slots goes first to the kept draft nodes, then to retrieved nodes in the order
of their stage's template, then, if wanted, to the best draft candidates that were not kept. A node
is its path: a retrieved node whose path the draft holds already is redirected to that node and
takes no slot; its descendants hang there, and the template's next entries take the slots.

Invariants: no two children of one parent hold the same token; a node's parent is in the tree and
stands before it (each class above is closed under parents, and along a path the order never
falls); draft + retrieved + empty = K.

This module knows trees and templates: no models, no matrix.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from graft.draft import Draft
from graft.retrieval import Retrieved
from graft.tree import Source, TokenTree

# redirect: descendants of a retrieved node that the draft holds hang under the draft's node.
# skip: they are left out with it.
Dedup = Literal["redirect", "skip"]

# Classes of priority: kept draft nodes by their place, then template entries, then the other
# draft candidates; above all of them is no node at all.
_RETRIEVED, _REFILL, _NOTHING = 1 << 20, 1 << 21, 1 << 22


class Grafted(NamedTuple):
    """The tree to verify, and how it came about. [B] int64 unless stated."""

    tree: TokenTree  # [B, K + 1]
    scores: Tensor  # float32 [B, K + 1] log-probability of the path, NaN where nobody drafted it
    shared: Tensor  # bool [B, K + 1] kept draft nodes that were retrieved too
    by_context: Tensor  # bool [B, K + 1] retrieved nodes that a longer context named
    kept: Tensor  # draft nodes, before gaps were filled
    redirected: Tensor  # retrieved nodes that the draft held already: they took no slot
    lookups: Tensor  # nodes whose successors the matrix was asked for
    hits: Tensor  # of these, how many found any
    context_lookups: Tensor  # the same of longer contexts
    context_hits: Tensor
    unspent: Tensor  # nodes that there were and that were not verified
    # Where it is known, float32 [B, K + 1]: the probability that each node will be accepted, and
    # that it will be, once its parent is, by what is retrieved alone.
    values: Tensor | None = None
    unaided: Tensor | None = None

    def narrow(self, width: int) -> Grafted:
        """With the first `width` slots alone."""
        columns = slice(width)
        left_out = self.tree.used[:, width:].sum(1)
        return self._replace(
            tree=self.tree.narrow(width),
            scores=self.scores[:, columns],
            shared=self.shared[:, columns],
            by_context=self.by_context[:, columns],
            unspent=self.unspent + left_out,
            values=None if self.values is None else self.values[:, columns],
            unaided=None if self.unaided is None else self.unaided[:, columns],
        )


def graft(
    draft: Draft,
    retrieved: Retrieved | None,
    budget: int,
    *,
    dedup: Dedup = "redirect",
    refill: bool = True,
) -> Grafted:
    """Fill the tree of each sequence up to `budget` nodes.

    Args:
        draft: candidates, how many are kept, the stage, and the node below which to graft.
        retrieved: None retrieves nothing.
        dedup: what becomes of the descendants of retrieved nodes that the draft holds. [ours]
        refill: give slots that retrieval leaves empty to the draft candidates not kept. [ours]
    """
    entries = _Entries(draft, budget, refill)
    zero = torch.zeros_like(draft.kept)
    if retrieved is None:
        tree, scores = entries.best(budget)
        nobody = torch.zeros_like(tree.used)
        return Grafted(tree, scores, nobody, nobody, draft.kept, *[zero] * 6)
    home, found = _homes(draft, retrieved, dedup)
    asked = retrieved.found[:, retrieved.shape.parents].sum(1) - 1
    redirect = found & (home > 0) & (home <= draft.kept.unsqueeze(1))
    redirect[:, 0] = False
    place = retrieved.shape.places[draft.stage.clamp(max=len(retrieved.shape.places) - 1)]
    entries.add(retrieved, home, found, place)
    tree, scores = entries.best(budget)
    last = entries.last_place.clamp(max=place.shape[1]).unsqueeze(1)  # beyond: not of this stage
    met = redirect & (place < last)
    # Kept draft nodes stand in the tree where they stood in the draft.
    shared = torch.zeros_like(tree.used).scatter(1, home.where(met, 0), True)
    shared[:, 0] = False
    hits = retrieved.found.sum(1) - 1
    by_context = torch.zeros_like(shared)
    return Grafted(
        tree, scores, shared, by_context, draft.kept, shared.sum(1), asked, hits, *[zero] * 3
    )


def _homes(draft: Draft, retrieved: Retrieved, dedup: Dedup) -> tuple[Tensor, Tensor]:
    """Where each template node stands among the entries (draft candidates, then the template's
    own), and which of them are to be had: int64 and bool [B, U]."""
    pool, shape = draft.tree, retrieved.shape
    batch, size = retrieved.tokens.shape
    found = retrieved.found.clone()
    nodes = torch.arange(size, device=found.device)
    home = (pool.width - 1 + nodes).repeat(batch, 1)
    home[:, 0] = 0 if draft.anchor is None else draft.anchor
    if pool.width == 1:
        return home, found
    drafted = pool.used.clone()
    drafted[:, 0] = False  # the root is nobody's child
    for level in shape.levels:
        parent, token = home[:, level.parents], retrieved.tokens[:, level.nodes]
        # [B, n, N]: candidate j is the child of that parent with that token.
        same = (pool.parents.unsqueeze(1) == parent.unsqueeze(2)) & drafted.unsqueeze(1)
        same &= pool.tokens.unsqueeze(1) == token.unsqueeze(2)
        there, twin = same.any(2), same.to(torch.uint8).argmax(2)
        here = found[:, level.nodes]
        if dedup == "skip":
            kept = there & (twin <= draft.kept.unsqueeze(1))
            here = here & found[:, level.parents] & ~kept
            found[:, level.nodes] = here
        home[:, level.nodes] = torch.where(there & here, twin, home[:, level.nodes])
    return home, found


class _Entries:
    """Everything that may take a slot: the root, the draft's candidates, the template's nodes."""

    def __init__(self, draft: Draft, budget: int, refill: bool) -> None:
        pool = draft.tree
        index = torch.arange(pool.width, device=pool.tokens.device)
        rest = _REFILL + index if refill else torch.full_like(index, _NOTHING)
        priority = torch.where(index <= draft.kept.unsqueeze(1), index, rest)
        self.priority = torch.where(pool.used, priority, _NOTHING)
        self.tokens, self.parents, self.depths = pool.tokens, pool.parents, pool.depths
        self.sources, self.scores = pool.sources, draft.scores
        self.max_depth = pool.max_depth
        self.anchor = draft.anchor
        self.last_place = torch.zeros_like(draft.kept)

    def add(self, retrieved: Retrieved, home: Tensor, found: Tensor, place: Tensor) -> None:
        """Add the template's nodes, each at its home."""
        shape = retrieved.shape
        extra = retrieved.tokens[:, 1:]
        depths = shape.depths[1:].expand_as(extra)
        base = self.max_depth if self.anchor is not None else 0
        if self.anchor is not None:
            depths = depths + self.depths.gather(1, self.anchor.unsqueeze(1))
        wanted = torch.where(found & (place < place.shape[1]), _RETRIEVED + place, _NOTHING)
        unset = torch.full_like(extra, _NOTHING)
        priority = torch.cat([self.priority, unset], 1)
        self.priority = priority.scatter_reduce(1, home[:, 1:], wanted[:, 1:], "amin")
        self.tokens = torch.cat([self.tokens, extra], 1)
        self.parents = torch.cat([self.parents, home[:, shape.parents[1:]]], 1)
        self.depths = torch.cat([self.depths, depths], 1)
        self.sources = torch.cat([self.sources, torch.full_like(extra, Source.RETRIEVED)], 1)
        self.scores = torch.cat(
            [self.scores, torch.full_like(extra, torch.nan, dtype=torch.float32)], 1
        )
        self.max_depth = max(self.max_depth, base + shape.max_depth)

    def best(self, budget: int) -> tuple[TokenTree, Tensor]:
        """The root and the `budget` entries that come first."""
        missing = budget + 1 - self.priority.shape[1]
        if missing > 0:
            self._pad(missing)
        order = self.priority.argsort(dim=1, stable=True)[:, : budget + 1]
        rank = self.priority.gather(1, order)
        used = rank < _NOTHING
        template = (rank >= _RETRIEVED) & (rank < _REFILL)
        # Slots that came to nobody or to a refill: the template was gone through to its end.
        reached = torch.where(template, rank - _RETRIEVED, 0)
        self.last_place = reached.where(rank < _REFILL, _REFILL).amax(1)
        slot = torch.arange(budget + 1, device=order.device).expand_as(order)
        # where[e] = slot of entry e; only entries that took one are ever asked for.
        where = torch.zeros_like(self.priority).scatter(1, order, slot)
        parents = where.gather(1, self.parents.gather(1, order))
        sources = self.sources.gather(1, order).where(~template, Source.RETRIEVED)
        tree = TokenTree(
            tokens=self.tokens.gather(1, order).where(used, 0),
            parents=parents.where(used, 0),
            depths=self.depths.gather(1, order).where(used, 1),
            used=used,
            sources=sources.where(used, 0),
            max_depth=min(self.max_depth, budget),
        )
        return tree, self.scores.gather(1, order).where(used, torch.nan)

    def _pad(self, missing: int) -> None:
        def pad(values: Tensor, value: float) -> Tensor:
            return torch.nn.functional.pad(values, (0, missing), value=value)

        self.priority = pad(self.priority, _NOTHING)
        self.tokens, self.parents = pad(self.tokens, 0), pad(self.parents, 0)
        self.depths, self.sources = pad(self.depths, 1), pad(self.sources, 0)
        self.scores = pad(self.scores, torch.nan)
