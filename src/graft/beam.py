"""Beam drafting: a tree of a draft model's likeliest paths, with fixed shapes.

From the root the b likeliest tokens make depth 1. Each further level expands the b best nodes of
the level before (the frontier) to b children each; a node's score is the sum of log-probabilities
along its path. All of them are candidates; the best by (score, depth, index) make the draft
[EAGLE-3]. A child's score is never above its parent's and its depth is greater, so every prefix
of that order holds the parents of its nodes, even where all probabilities are 1.

At a plan's checkpoints the frontier's best score is the confidence; sequences below the threshold
stop there (`graft.pruning`). One host read per checkpoint, none otherwise.

This module knows tensors alone: the draft model is a function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from graft.draft import Draft
from graft.frontier import Children, Expand, Frontier
from graft.host_beam import search_on_host
from graft.pruning import DraftPlan
from graft.rows import rows_at
from graft.tree import Source, TokenTree
from graft.upload import upload

SEQUENCES = 4  # of a batch on a CPU, up to which the host's own numbers are faster


class _Level(NamedTuple):
    """Candidates of one depth, [B, n] each."""

    tokens: Tensor
    parents: Tensor  # index among all candidates, the root being 0
    scores: Tensor


def search(
    roots: Tensor,
    first: Children,
    expand: Expand,
    plan: DraftPlan,
    target_ids: Callable[[Tensor], Tensor],
) -> Draft:
    """Draft trees over `roots`.

    Args:
        roots: int64 [B].
        first: of the roots, [B, 1, b]: as many as the plan's beam, or as there are tokens.
        expand: runs the draft model over a frontier; b children of each of its nodes.
        plan: beam, depth, checkpoints.
        target_ids: from ids of the draft vocabulary to the target's.
    """
    batch, device = len(roots), roots.device
    if device.type == "cpu" and batch <= SEQUENCES:
        return search_on_host(roots, first, expand, plan, target_ids)
    beam = first.ids.shape[-1]
    stop = _Stop(plan, batch, device)
    tokens, scores = target_ids(first.ids).squeeze(1), first.scores.squeeze(1)
    level = _Level(tokens, torch.zeros_like(tokens), scores)
    levels = [level]
    rows = torch.arange(beam, device=device).expand(batch, beam)  # of the frontier in its level
    parents = torch.zeros_like(rows)
    visible = torch.zeros(batch, beam, 0, dtype=torch.bool, device=device)
    own = torch.eye(beam, dtype=torch.bool, device=device).expand(batch, -1, -1)
    start = 1  # index of the last level's first candidate
    for steps in range(plan.depth):
        frontier = level.scores.gather(1, rows)
        if stop.look(steps, frontier) or steps == plan.depth - 1:
            break
        visible = torch.cat([visible, own], dim=2)
        tokens = level.tokens.gather(1, rows)
        added, ids = expand(Frontier(steps + 1, tokens, parents, visible))
        # [B, b, b], flat: child j of frontier row i stands at i * b + j.
        scores = (frontier.unsqueeze(2) + added).where(stop.active[:, None, None], -torch.inf)
        above = (start + rows).unsqueeze(2).expand_as(ids)
        start += level.tokens.shape[1]
        level = _Level(target_ids(ids).flatten(1), above.flatten(1), scores.flatten(1))
        levels.append(level)
        rows = _order(level.scores)[:, :beam]
        parents = rows // beam
        visible = rows_at(visible, parents)
    tree, kept_scores = _best(roots, levels, plan.budget)
    kept = upload(plan.kept, device)[stop.stage].minimum(tree.used.sum(1) - 1)
    return Draft(tree, kept_scores, kept, stop.stage, stop.confidence, len(levels) - 1)


class _Stop:
    """Which sequences have stopped drafting, and at which checkpoint."""

    def __init__(self, plan: DraftPlan, batch: int, device: torch.device) -> None:
        marks = len(plan.checkpoints)
        self.plan = plan
        self.active = torch.ones(batch, dtype=torch.bool, device=device)
        self.stage = torch.full((batch,), marks, device=device)
        self.confidence = torch.full((batch, marks), -1.0, device=device)

    def look(self, steps: int, frontier: Tensor) -> bool:
        """Take in a frontier's scores [B, b]; true where nobody goes on."""
        if steps not in self.plan.checkpoints:
            return False
        mark = self.plan.checkpoints.index(steps)
        confidence = frontier.amax(1).exp()
        self.confidence[:, mark] = confidence.where(self.active, -1.0)
        stopped = self.active & (confidence < self.plan.thresholds[mark])
        self.stage = torch.where(stopped, mark, self.stage)
        self.active = self.active & ~stopped
        return not bool(self.active.any())


def _order(scores: Tensor) -> Tensor:
    """Indices [B, n] by score, best first; equals stay in their order."""
    return scores.sort(dim=1, descending=True, stable=True).indices


def _best(roots: Tensor, levels: list[_Level], count: int) -> tuple[TokenTree, Tensor]:
    """The best `count` candidates as a tree, best first, and their scores."""
    batch, device = len(roots), roots.device
    tokens = torch.cat([level.tokens for level in levels], 1)
    parents = torch.cat([level.parents for level in levels], 1)
    scores = torch.cat([level.scores for level in levels], 1)
    depths = torch.cat(
        [
            torch.full((level.tokens.shape[1],), d, device=device)
            for d, level in enumerate(levels, 1)
        ]
    ).expand(batch, -1)
    # Candidates stand by depth and index, so a stable sort breaks ties by them.
    order = _order(scores)[:, :count]
    # place[c] = index of candidate c in the tree; the root is 0 in both.
    place = torch.zeros(batch, tokens.shape[1] + 1, dtype=torch.int64, device=device)
    slots = torch.arange(1, order.shape[1] + 1, device=device).expand_as(order)
    place.scatter_(1, order + 1, slots)
    scores = scores.gather(1, order)
    used = scores > -torch.inf

    def put(root: Tensor, values: Tensor, empty: int) -> Tensor:
        rest = values.where(used, empty)
        return torch.cat([root.unsqueeze(1), rest], 1)

    zero = torch.zeros_like(roots)
    tree = TokenTree(
        tokens=put(roots, tokens.gather(1, order), 0),
        parents=put(zero, place.gather(1, parents.gather(1, order)), 0),
        depths=put(zero, depths.gather(1, order), 1),
        used=torch.cat([used.new_ones(batch, 1), used], 1),
        sources=put(zero + Source.TARGET, torch.full_like(order, Source.DRAFT), 0),
        max_depth=len(levels),
    )
    return tree, torch.cat([scores.new_zeros(batch, 1), scores], 1)
