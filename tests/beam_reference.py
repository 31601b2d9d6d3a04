"""What a beam search should give: one over a dictionary of paths, and a draft model that watches.

The laws here are exact: their logits are multiples of 100, so that log-probabilities come out the
same in whatever order they are summed, and many paths have equal scores.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from graft import beam
from graft import frontier as frontier_module
from graft.draft import Draft
from graft.frontier import Frontier
from graft.pruning import DraftPlan
from graft.ranking import best_scores
from graft.tree import Source
from tests.graft_reference import paths_of

Path = tuple[int, ...]  # tokens of the target from depth 1 on
Law = Callable[[int, Path], Tensor]  # (sequence, path) -> logits [V'] of the draft vocabulary

INF = math.inf
CERTAIN = [0.0, -INF]
RICH = [0.0, 0.0, -100.0, -200.0, -INF]
BROKEN = [0.0, -100.0, -INF, INF, math.nan]


class Drafted(NamedTuple):
    """What a search should give for one sequence."""

    nodes: list[tuple[Path, float]]  # path and score, best first
    stage: int
    confidence: list[float]
    steps: int


def law_of(seed: int, vocab: int, values: list[float], certain: bool = False) -> Law:
    """Random logits, a function of the path alone."""

    @cache
    def law(row: int, path: Path) -> Tensor:
        rng = random.Random(f"{seed} {row} {path}")
        if certain:  # one token has probability 1, and sometimes nobody knows which
            logits = [-INF] * vocab
            logits[rng.randrange(vocab)] = 0.0
            return torch.tensor(logits)
        return torch.tensor([rng.choice(values) for _ in range(vocab)])

    return law


def log_probs(logits: Tensor, beam: int) -> list[tuple[int, float]]:
    """Ids and log-probabilities of the likeliest tokens; none, where a row is no distribution.

    Which of several equals are taken is `best_scores`'s choice.
    """
    top = max(logits.tolist(), default=-INF)
    if torch.isnan(logits).any() or math.isinf(top):
        return []
    total = torch.logsumexp(logits, 0)
    ids = best_scores(logits.unsqueeze(0), beam)[1][0].tolist()
    return [(i, float((logits[i] - total).clamp(max=0))) for i in ids if logits[i] > -INF]


def plus(first: float, second: float) -> float:
    """A sum in single precision."""
    return float(torch.tensor(first) + torch.tensor(second))


def reference(row: int, law: Law, plan: DraftPlan, target_id: Callable[[int], int]) -> Drafted:
    """A beam search over a dictionary of paths, one sequence at a time."""
    beam = min(plan.beam, len(law(row, ())))
    scores: dict[Path, float] = {(): 0.0}
    frontier: list[Path] = [()]
    order: list[Path] = []
    confidence = [-1.0] * len(plan.checkpoints)
    stage, steps = len(plan.checkpoints), 0
    for level in range(plan.depth):
        found = []
        for path in frontier:
            for token, added in log_probs(law(row, path), beam):
                child = (*path, target_id(token))
                scores[child] = plus(scores[path], added)
                found.append(child)
        order += found
        frontier = sorted(found, key=lambda path: -scores[path])[:beam]
        steps = level
        if level in plan.checkpoints:
            mark = plan.checkpoints.index(level)
            best = max((scores[path] for path in frontier), default=-INF)
            confidence[mark] = math.exp(best)
            if float(torch.tensor(best).exp()) < plan.thresholds[mark]:
                stage = mark
                break
    order.sort(key=lambda path: -scores[path])  # stable: by depth, then by index
    return Drafted([(p, scores[p]) for p in order[: plan.budget]], stage, confidence, steps)


class Expander:
    """A draft model that is a law; follows the frontiers by hand and checks what it is shown."""

    def __init__(self, law: Law, batch: int) -> None:
        self.law = law
        self.calls = 0
        self.paths: list[list[Path]] = [[()]] * batch
        self.chains: list[list[set[int]]] = [[set()]] * batch

    def __call__(self, frontier: Frontier) -> Tensor:
        batch, beam = frontier.tokens.shape
        self.calls += 1
        assert frontier.depth == self.calls
        assert frontier.visible.shape == (batch, beam, self.calls * beam)
        parents, tokens = frontier.parents.tolist(), frontier.tokens.tolist()
        for b in range(batch):
            before, chains = self.paths[b], self.chains[b]
            self.paths[b] = [(*before[parents[b][i]], tokens[b][i]) for i in range(beam)]
            own = (self.calls - 1) * beam
            self.chains[b] = [chains[parents[b][i]] | {own + i} for i in range(beam)]
            for i in range(beam):
                seen = frontier.visible[b, i].nonzero().flatten().tolist()
                assert set(seen) == self.chains[b][i], "the mask shows the path and no more"
        rows = [self.law(b, path) for b in range(batch) for path in self.paths[b]]
        return torch.stack(rows).view(batch, beam, -1)


def search_logits(
    roots: Tensor,
    first: Tensor,
    expand: Callable[[Frontier], Tensor],
    plan: DraftPlan,
    target_ids: Callable[[Tensor], Tensor],
) -> Draft:
    """A search by logits: of the roots [B, V'], and of frontiers [B, b, V']."""
    return beam.search(
        roots,
        frontier_module.children_of(first.unsqueeze(1), plan.beam),
        lambda frontier: frontier_module.children_of(expand(frontier), frontier.tokens.shape[1]),
        plan,
        target_ids,
    )


def check(law: Law, plan: DraftPlan, batch: int, swap: Tensor | None = None) -> Draft:
    """Search, and compare everything with the reference."""
    roots = torch.arange(batch) + 3
    first = torch.stack([law(b, ()) for b in range(batch)])
    ids = torch.arange(first.shape[1]) if swap is None else swap
    expand = Expander(law, batch)
    result = search_logits(roots, first, expand, plan, lambda drafted: ids[drafted])
    result.tree.check_integrity()
    assert result.tree.tokens[:, 0].tolist() == roots.tolist()
    assert result.tree.width <= plan.budget + 1
    assert result.steps == expand.calls
    wanted = [reference(b, law, plan, lambda i: int(ids[i])) for b in range(batch)]
    assert result.steps == max(each.steps for each in wanted)
    for b, each in enumerate(wanted):
        paths = paths_of(result.tree, b)
        assert paths == [(), *(path for path, _ in each.nodes)]
        size = len(paths)
        scores = result.scores[b].tolist()
        assert scores[:size] == pytest.approx([0.0, *(score for _, score in each.nodes)])
        assert scores[size:] == [-INF] * (len(scores) - size)
        sources = result.tree.sources[b].tolist()
        assert sources[:size] == [Source.TARGET] + [Source.DRAFT] * (size - 1)
        assert int(result.stage[b]) == each.stage
        assert result.confidence[b].tolist() == pytest.approx(each.confidence)
    return result
