"""Replay: rounds over texts whose continuation is known, without the target. [ours]

What a drafter drafts at a position depends on the committed text alone, and so does what the
target says there. So both are recorded once, at every position of an answer (one forward of the
target over the whole text, and a draft of full depth per position); then rounds of any plan can be
played over it at the cost of their grafting. Accepted lengths are those of real decoding, but for
what the matrix would have learnt from nodes off the path, which nobody verified here; time is
counted by given costs.

It knows recordings, plans and grafters: not engines, not what is tuned with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from graft.costs import Costs
from graft.draft import Draft, no_draft, sat_out
from graft.drafters.base import Drafter
from graft.grafter import Grafter
from graft.grafting import Grafted
from graft.matrix import AdjacencyMatrix, Best
from graft.pruning import DraftPlan
from graft.retrieval import MatrixMemory
from graft.spending import Spending, Spent
from graft.target import Target
from graft.tree import TokenTree
from graft.verify import Walk, walk


class Recording(NamedTuple):
    """An answer, and what was drafted and said along it. On the CPU."""

    task: str
    tokens: Tensor  # int64 [n], prompt and answer
    start: int  # tokens of the prompt
    drafts: list[Draft]  # of full depth, with the roots at start, start + 1, ...; [] without
    best: Best  # [n - start, k], the target's best successors of the tokens from start on


@dataclass
class Played:
    """What rounds over recordings came to."""

    tokens: int = 0
    rounds: int = 0
    steps: int = 0
    rows: int = 0
    seconds: float = 0.0  # by costs
    accepted: list[int] = field(default_factory=list)  # per round

    @property
    def tau(self) -> float:
        return self.tokens / max(self.rounds, 1)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def __add__(self, other: Played) -> Played:
        return Played(
            self.tokens + other.tokens,
            self.rounds + other.rounds,
            self.steps + other.steps,
            self.rows + other.rows,
            self.seconds + other.seconds,
            self.accepted + other.accepted,
        )


def every_step(budget: int, beam: int, depth: int) -> DraftPlan:
    """A plan to record with: full depth, with the confidence at every step."""
    marks = tuple(range(depth - 1))
    return DraftPlan(budget, beam, depth, marks, (0.0,) * len(marks), (budget,) * depth)


@torch.inference_mode()
def record(
    target: Target,
    drafter: Drafter | None,
    matrix: AdjacencyMatrix,
    plan: DraftPlan,
    prompt: Sequence[int],
    answer: Sequence[int],
    task: str = "",
) -> Recording:
    """Record an answer of the target. What target and drafter hold is forgotten.

    Args:
        drafter: None records no drafts.
        matrix: says which successors count as best; it learns nothing.
        plan: `every_step`.
    """
    tokens = torch.tensor([*prompt, *answer], device=target.device)
    start, room = len(prompt), len(tokens) + plan.budget + 2
    best: list[Best] = []
    features: list[Tensor] = []
    target.open(1, room)
    target.prefill(
        0,
        tokens,
        lambda _, logits: best.append(matrix.best(logits)),
        features.append if drafter is not None and drafter.feature_layers else None,
    )
    said = Best(*(torch.cat(part)[start:].cpu() for part in zip(*best, strict=True)))
    drafts = []
    if drafter is not None:
        seen = torch.cat(features) if drafter.feature_layers else None
        drafts = list(_drafts(drafter, tokens, start, seen, plan))
    return Recording(task, tokens.cpu(), start, drafts, said)


def _drafts(
    drafter: Drafter, tokens: Tensor, start: int, features: Tensor | None, plan: DraftPlan
) -> Iterator[Draft]:
    drafter.open(1, len(tokens) + plan.budget + 2)
    drafter.prefill(0, tokens[:start], None if features is None else features[:start])
    history = torch.cat([tokens, tokens.new_zeros(plan.budget + 2)]).unsqueeze(0)
    for length in range(start + 1, len(tokens)):
        draft = drafter.draft(history, tokens.new_tensor([length]), plan)
        at = None if features is None else features[length - 1 : length].unsqueeze(0)
        drafter.commit([[]], at)
        yield _to_cpu(draft)


def stage_of(draft: Draft, plan: DraftPlan) -> int:
    """The stage at which a draft of full depth would end under a plan."""
    confidence = draft.confidence[0].tolist()
    marks = zip(plan.checkpoints, plan.thresholds, strict=True)
    below = (
        i
        for i, (mark, least) in enumerate(marks)
        if mark < len(confidence) and confidence[mark] < least
    )
    return next(below, len(plan.checkpoints))


def stopped(draft: Draft, plan: DraftPlan) -> Draft:
    """A draft of full depth as it would be under a plan of as many levels or fewer: where its
    confidence first falls below a threshold it ends.

    Raises:
        ValueError: for a plan with more levels than were recorded.
    """
    confidence = draft.confidence[0].tolist()
    if plan.depth > len(confidence) + 1:
        raise ValueError(f"depth={plan.depth}, but drafts of {len(confidence) + 1} are recorded")
    stage = stage_of(draft, plan)
    full = stage == len(plan.checkpoints)
    steps = plan.depth - 1 if full else plan.checkpoints[stage]
    tree = draft.tree
    inside = tree.used[0] & (tree.depths[0] <= steps + 1)
    keep = inside.nonzero().squeeze(1)[: plan.budget + 1]  # the root, then the best
    place = torch.zeros(tree.width, dtype=torch.int64)
    place[keep] = torch.arange(len(keep))
    cut = TokenTree(
        tokens=tree.tokens[:, keep],
        parents=place[tree.parents[0, keep]].unsqueeze(0),
        depths=tree.depths[:, keep],
        used=tree.used[:, keep],
        sources=tree.sources[:, keep],
        max_depth=min(tree.max_depth, steps + 1),
    )
    reached = [confidence[m] if i <= stage else -1.0 for i, m in enumerate(plan.checkpoints)]
    kept = min(plan.kept[stage], len(keep) - 1)
    return Draft(
        cut,
        draft.scores[:, keep],
        torch.tensor([kept]),
        torch.tensor([stage]),
        torch.tensor([reached]).view(1, -1),
        steps,
        draft.anchor,
    )


@torch.inference_mode()
def play(
    recording: Recording,
    grafter: Grafter,
    spending: Spending,
    costs: Costs,
    *,
    waits: bool = True,
) -> Played:
    """Rounds over one recording, with everything that they learn.

    Args:
        grafter: of one slot.
        waits: the drafter can sit rounds out.
    """
    tokens, end = recording.tokens, len(recording.tokens)
    room = tokens.new_zeros(spending.budget + 2)
    history = torch.cat([tokens, room]).unsqueeze(0)
    grafter.admit(0, tokens[: recording.start])
    out, length = Played(), recording.start + 1
    while length < end:
        at = torch.tensor([length])
        root = tokens[length - 1 : length]
        plan = spending.plan(1)
        number = length - recording.start - 1
        drafting = bool(recording.drafts)
        if drafting and waits:
            drafting = spending.drafts(partial(grafter.promise, history, at))
        draft = stopped(recording.drafts[number], plan) if drafting else None
        if draft is None:
            draft = sat_out(root, plan) if recording.drafts else no_draft(root, plan)
        grafted = grafter.graft(draft, grafter.look_up(root), history, at)
        width = spending.width(grafted.tree.used, grafted.values, draft.steps)
        grafted = grafted.narrow(width)
        path = _follow(grafted.tree, history, at, end)
        if grafter.matrix is not None:
            _write(grafter.matrix, grafted.tree, path, recording, length)
        grafter.learn_draws(path, history, at)
        accepted = int(path.accepted)
        stage = int(draft.stage)
        reached = tuple(c for c in draft.confidence[0].tolist() if c >= 0)
        spending.settle([Spent(reached, stage, accepted, *_worth(grafted, path, accepted))])
        seconds = costs.draft + draft.steps * costs.step if drafting else 0.0
        out.tokens += accepted + 1
        out.rounds += 1
        out.steps += draft.steps
        out.rows += width
        out.seconds += costs.round + seconds + costs.of_rows(width)
        out.accepted.append(accepted)
        length += accepted + 1
    return out


def _follow(tree: TokenTree, history: Tensor, length: Tensor, end: int) -> Walk:
    """The walk whose draws are the text's own, up to its end."""
    text = history[0].clone()
    logits = torch.empty(1, tree.width, 0)

    def choose(_: Tensor, __: Tensor, position: Tensor, ___: Tensor) -> Tensor:
        return text[position]

    def ends(_: Tensor, position: Tensor) -> Tensor:
        return position >= end - 1

    return walk(tree, logits, history, length, choose, ends)


def _worth(
    grafted: Grafted, path: Walk, accepted: int
) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    if grafted.values is None or grafted.unaided is None:
        return (), (), 0.0
    nodes = path.nodes[0, 1 : accepted + 1]
    least = grafted.values[grafted.tree.used].min()
    return (
        tuple(grafted.values[0, nodes].tolist()),
        tuple(grafted.unaided[0, nodes].tolist()),
        float(least),
    )


def _write(
    matrix: MatrixMemory, tree: TokenTree, path: Walk, recording: Recording, length: int
) -> None:
    """What the target said behind the nodes of the path."""
    accepted = int(path.accepted)
    nodes = path.nodes[:, : accepted + 1]
    first = length - 1 - recording.start
    k = recording.best.ids.shape[1]
    ids = torch.zeros(1, tree.width, k, dtype=torch.int64)
    chances = torch.zeros(1, tree.width, k)
    ids[0, nodes[0]] = recording.best.ids[first : first + accepted + 1]
    chances[0, nodes[0]] = recording.best.chances[first : first + accepted + 1]
    known = torch.zeros_like(tree.used).scatter(1, nodes, True)
    matrix.write(tree, Best(ids, chances), path, known)


def _to_cpu(draft: Draft) -> Draft:
    tree = draft.tree

    def cpu(tensor: Tensor) -> Tensor:
        return tensor.cpu().clone()

    moved = TokenTree(
        tokens=cpu(tree.tokens),
        parents=cpu(tree.parents),
        depths=cpu(tree.depths),
        used=cpu(tree.used),
        sources=cpu(tree.sources),
        max_depth=tree.max_depth,
    )
    return Draft(
        moved,
        cpu(draft.scores),
        cpu(draft.kept),
        cpu(draft.stage),
        cpu(draft.confidence),
        draft.steps,
        None if draft.anchor is None else cpu(draft.anchor),
    )
