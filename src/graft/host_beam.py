"""Beam drafting in the host's memory: `graft.beam`, candidate by candidate. [ours]

For a few sequences on a CPU, where a search by tensors is some hundred operations on a handful of
numbers. Scores are summed in single precision as there, so both give the same trees.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graft.draft import Draft
from graft.frontier import Children, Expand, Frontier
from graft.pruning import DraftPlan
from graft.tree import Source, TokenTree

NEVER = float("-inf")


class _Search:
    """One sequence's candidates, and the frontier of the last level."""

    def __init__(self, tokens: list[int], scores: list[float], plan: DraftPlan) -> None:
        beam = len(tokens)
        self.tokens, self.scores = list(tokens), list(scores)
        self.parents, self.depths = [0] * beam, [1] * beam  # of candidates, the root being 0
        self.active, self.stage = True, len(plan.checkpoints)
        self.confidence = [-1.0] * len(plan.checkpoints)
        self.rows = list(range(1, beam + 1))  # of the frontier among the candidates
        self.above = [0] * beam  # row of each one's parent in the frontier before
        self.paths: list[list[int]] = [[] for _ in range(beam)]  # rows of frontiers in front of it

    def frontier(self) -> tuple[list[int], list[float]]:
        """Tokens and scores of the frontier."""
        places = [row - 1 for row in self.rows]
        return [self.tokens[i] for i in places], [self.scores[i] for i in places]

    def visible(self, depth: int) -> list[list[bool]]:
        """Rows of all frontiers so far that each row of this one sees, itself among them."""
        beam = len(self.rows)
        out = [[False] * (depth * beam) for _ in range(beam)]
        for i, path in enumerate(self.paths):
            path.append((depth - 1) * beam + i)
            for row in path:
                out[i][row] = True
        return out

    def add(self, tokens: list[int], scores: list[float], depth: int) -> None:
        """Take in the frontier's children; the best of them are the next frontier."""
        if not self.active:
            scores = [NEVER] * len(scores)
        beam, start = len(self.rows), len(self.tokens) + 1
        self.tokens += tokens
        self.scores += scores
        self.parents += [row for row in self.rows for _ in range(beam)]
        self.depths += [depth] * len(tokens)
        best = _order(scores)[:beam]
        self.above = [child // beam for child in best]
        self.paths = [list(self.paths[parent]) for parent in self.above]
        self.rows = [start + child for child in best]

    def best(self, count: int) -> tuple[list[list[int]], list[float]]:
        """The best candidates behind the root: tokens, parents, depths, whether there is one and
        sources; and scores."""
        order = _order(self.scores)[:count]
        place = {0: 0} | {candidate + 1: slot for slot, candidate in enumerate(order, 1)}
        columns: list[list[int]] = [[], [], [], [], []]
        for i in order:
            used = self.scores[i] > NEVER
            node = (
                self.tokens[i],
                place.get(self.parents[i], 0),
                self.depths[i],
                1,
                int(Source.DRAFT),
            )
            for column, value in zip(columns, node if used else (0, 0, 1, 0, 0), strict=True):
                column.append(value)
        return columns, [self.scores[i] for i in order]


def search_on_host(
    roots: Tensor,
    first: Children,
    expand: Expand,
    plan: DraftPlan,
    target_ids: Callable[[Tensor], Tensor],
) -> Draft:
    """As `graft.beam.search`, where reading a number does not wait."""
    tokens, scores = target_ids(first.ids).flatten(1).tolist(), first.scores.flatten(1).tolist()
    searches = [_Search(t, s, plan) for t, s in zip(tokens, scores, strict=True)]
    steps = 0
    while True:
        frontier = [one.frontier() for one in searches]
        values = torch.tensor([score for _, score in frontier])
        if _stops(searches, values, plan, steps) or steps == plan.depth - 1:
            break
        steps += 1
        asked = Frontier(
            steps,
            torch.tensor([token for token, _ in frontier]),
            torch.tensor([one.above for one in searches]),
            torch.tensor([one.visible(steps) for one in searches]),
        )
        added, ids = expand(asked)
        # Single precision, as tensors sum.
        sums = (values.unsqueeze(2) + added).flatten(1).tolist()
        for one, new, score in zip(
            searches, target_ids(ids).flatten(1).tolist(), sums, strict=True
        ):
            one.add(new, score, steps + 1)
    return _draft(roots, searches, plan, steps)


def _stops(searches: list[_Search], values: Tensor, plan: DraftPlan, steps: int) -> bool:
    """Take in the frontiers' scores [B, b] at a checkpoint; true where nobody goes on."""
    if steps not in plan.checkpoints:
        return False
    mark = plan.checkpoints.index(steps)
    confidence = values.amax(1).exp()
    stopped = (confidence < plan.thresholds[mark]).tolist()
    for one, sure, ends in zip(searches, confidence.tolist(), stopped, strict=True):
        if one.active:
            one.confidence[mark] = sure
            if ends:
                one.active, one.stage = False, mark
    return not any(one.active for one in searches)


def _draft(roots: Tensor, searches: list[_Search], plan: DraftPlan, steps: int) -> Draft:
    found = [one.best(plan.budget) for one in searches]
    zero = roots.new_zeros(len(roots), 1)
    numbers = torch.tensor([columns for columns, _ in found], dtype=torch.int64)
    tokens, parents, depths, used, sources = numbers.unbind(1)
    tree = TokenTree(
        torch.cat([roots.unsqueeze(1), tokens], 1),
        torch.cat([zero, parents], 1),
        torch.cat([zero, depths], 1),
        torch.cat([zero + 1, used], 1) > 0,
        torch.cat([zero + Source.TARGET, sources], 1),
        max_depth=steps + 1,
    )
    kept = [min(plan.kept[s.stage], sum(c[3])) for s, (c, _) in zip(searches, found, strict=True)]
    return Draft(
        tree,
        torch.tensor([[0.0, *scores] for _, scores in found]),
        torch.tensor(kept),
        torch.tensor([one.stage for one in searches]),
        torch.tensor([one.confidence for one in searches]).view(len(searches), -1),
        steps,
    )


def _order(scores: list[float]) -> list[int]:
    """Places by score, best first; equals stay in their order."""
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
