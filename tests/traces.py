"""Rounds that could have been, and their traces, without any model.

Invariant: what is made here keeps the invariants of `TokenTree`, of records and of requests; texts
come from a real `Request`, so they are held back and cut as in a real generation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import torch

from graft.choice import RowOutcome
from graft.decoder import RoundView
from graft.metrics import RoundRecord, RoundTimes
from graft.pruning import DraftPlan
from graft.request import Drawn, Request, StreamToken
from graft.sampling_params import SamplingParams
from graft.trace import TokenTexts, Trace, Tracer
from graft.tree import Source, TokenTree

WORDS = (
    *(" the", " river", " is", " of", " a", " Europe", ",", ".", " and", " long", " flows", " to"),
    *(" sea", " Danube", " Rhine", " Volga", " through", " Germany", " Black", " North", " its"),
    *(" source", " in", " mountains", "\n", "\n\n", " with", " kilometres", " 2,850", " it", "s"),
    *("河", "流", "很长", "。", " \U0001f30d", " \U0001f3de\ufe0f", " نهر", " طويل", " and\tthen"),
    *(" cross", "es", " cities", " Vienna", " Budapest", " Belgrade", " trade", " route", " water"),
    *(" bor", "der", " coun", "tries", " ten", " more", " than", " any", " other", " on", " Earth"),
)
PLAN = DraftPlan(60, 10, 8, (0, 1, 5), (0.35, 0.25, 0.15), (8, 24, 40, 60))
NOWHERE = math.nan


@dataclass
class Grown:
    """A tree of one sequence while it grows: columns of its nodes, the root first."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [0])
    depths: list[int] = field(default_factory=lambda: [0])
    sources: list[int] = field(default_factory=lambda: [int(Source.TARGET)])
    scores: list[float] = field(default_factory=lambda: [NOWHERE])

    def add(self, parent: int, token: int, source: Source, score: float = NOWHERE) -> bool:
        """A new node, unless a child of `parent` holds the token."""
        if token in [self.tokens[i] for i in self.children(parent)]:
            return False
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.sources.append(int(source))
        self.scores.append(score)
        return True

    def children(self, parent: int) -> list[int]:
        return [i for i in range(1, len(self.tokens)) if self.parents[i] == parent]


def decode(ids: Sequence[int]) -> str:
    return "".join(WORDS[i] for i in ids)


def new_request(limit: int = 40, index: int = 0, stop_ids: Sequence[int] = ()) -> Request:
    """A request whose first token, of the prefill, is still to be taken."""
    params = SamplingParams(max_new_tokens=limit)
    return Request(index, [0], params, 7, index, frozenset(stop_ids), limit, decode)


def as_tree(rows: Sequence[Grown], width: int) -> tuple[TokenTree, torch.Tensor]:
    """Trees and scores, [B, width] each; rows end in empty slots."""

    def column(name: str, empty: float) -> torch.Tensor:
        values = [getattr(row, name) for row in rows]
        return torch.tensor([v + [empty] * (width - len(v)) for v in values])

    used = column("parents", -1) >= 0
    depth = column("depths", 1)
    columns = column("tokens", 0), column("parents", 0), depth, used, column("sources", 0)
    return TokenTree(*columns, max_depth=int(depth.max())), column("scores", NOWHERE).float()


def grow(random: Random, root: int, drafted: int, retrieved: int) -> Grown:
    """A tree of so many nodes; retrieved ones hang on the root and on each other mostly."""
    tree = Grown([root])
    while len(tree.tokens) <= drafted:
        parent = random.choice(range(len(tree.tokens)))
        if tree.depths[parent] > 5:
            continue
        above = 0.0 if parent == 0 else tree.scores[parent]
        score = above + math.log(random.uniform(0.03, 0.8))
        tree.add(parent, random.randrange(len(WORDS)), Source.DRAFT, score)
    while len(tree.tokens) <= drafted + retrieved:
        parent = random.choice([0, 0, *range(len(tree.tokens))])
        if tree.depths[parent] < 8:
            tree.add(parent, random.randrange(len(WORDS)), Source.RETRIEVED)
    return tree


def outcome(random: Random, tree: Grown, plan: DraftPlan, stage: int, eager: float) -> RowOutcome:
    """A walk that goes on to a child with chance `eager`, and the bonus behind it."""
    path: list[int] = []
    while (children := tree.children(path[-1] if path else 0)) and random.random() < eager:
        path.append(random.choice(children[:3]))
    taken = [tree.tokens[i] for i in tree.children(path[-1] if path else 0)]
    bonus = random.choice([t for t in range(len(WORDS)) if t not in taken])
    block = [Drawn(tree.tokens[i], Source(tree.sources[i]), None) for i in path]
    return RowOutcome(
        path=path,
        block=[*block, Drawn(bonus, Source.TARGET, None)],
        values=(),
        unaided=(),
        least=0.0,
        draft_nodes=tree.sources.count(Source.DRAFT),
        retrieved_nodes=tree.sources.count(Source.RETRIEVED),
        stage=stage,
        kept=plan.kept[stage],
        redirected=random.randrange(4),
        lookups=70,
        hits=61,
        context_lookups=0,
        context_hits=0,
        unspent=0,
        context_nodes=0,
        accepted_context=0,
        rows_written=60,
        confidence=tuple(
            t * 0.6 if i == stage else min(t + 0.3, 1.0)
            for i, t in enumerate(plan.thresholds[: stage + 1])
        ),
    )


def record_of(random: Random, row: RowOutcome, plan: DraftPlan) -> RoundRecord:
    """The numbers of a round with this outcome."""
    accepted = [drawn.source for drawn in row.block[:-1]]
    steps = plan.depth - 1 if row.stage == plan.stages - 1 else plan.checkpoints[row.stage]
    return RoundRecord(
        stage=plan.stage_name(row.stage),
        confidence=row.confidence,
        draft_steps=steps,
        kept_draft=row.kept,
        released_slots=plan.budget - row.kept,
        redirected=row.redirected,
        proposed_draft=row.draft_nodes,
        proposed_retrieved=row.retrieved_nodes,
        empty_slots=plan.budget - row.draft_nodes - row.retrieved_nodes,
        unspent_slots=0,
        accepted_draft=accepted.count(Source.DRAFT),
        accepted_retrieved=accepted.count(Source.RETRIEVED),
        lookups=row.lookups,
        hits=row.hits,
        context_lookups=row.context_lookups,
        context_hits=row.context_hits,
        proposed_context=row.context_nodes,
        accepted_context=row.accepted_context,
        rows_written=row.rows_written,
        batch=1,
        context=100,
        times=RoundTimes(
            draft=0.002 * (1 + steps),
            graft=0.001,
            lookup=0.0007,
            verify=random.uniform(0.02, 0.03),
            commit_update=0.002,
            other=0.0005,
        ),
    )


def one_round(
    random: Random, request: Request, plan: DraftPlan = PLAN, eager: float = 0.75
) -> RoundView:
    """A round of one running request, as an observer is shown it."""
    stage = random.randrange(plan.stages)
    drafted = min(plan.kept[stage], plan.budget * 9 // 10)
    filled = plan.budget - drafted - random.choice([0, 0, 2])
    tree = grow(random, request.context[-1], drafted, max(filled, 0))
    row = outcome(random, tree, plan, stage, eager)
    tensors, scores = as_tree([tree], plan.budget + 1)
    record = record_of(random, row, plan)
    # Any draft nodes will do, as many as the record says.
    nodes = torch.arange(tensors.width)
    shared = ((nodes > 0) & (nodes <= min(row.redirected, drafted))).unsqueeze(0)
    return RoundView(tensors, scores, shared, [row], [request], [record], plan)


def generation(
    limit: int = 40, seed: int = 0, plan: DraftPlan = PLAN
) -> tuple[list[RoundView], list[StreamToken], Request]:
    """All rounds of a request, and the tokens it streamed."""
    random, request = Random(seed), new_request(limit)
    tokens = request.take([Drawn(1, Source.TARGET, None)])
    views = []
    while not request.finished:
        view = one_round(random, request, plan)
        view.requests[0].records += view.records
        tokens += request.take(view.rows[0].block)
        views.append(view)
    return views, tokens, request


def trace_of(
    views: Sequence[RoundView], tokens: Sequence[StreamToken], request: Request, prompt: str = "hi"
) -> Trace:
    """The trace of a finished request."""
    tracer = Tracer(TokenTexts(request.decode))
    for view in views:
        tracer.watch(view)
    return tracer.trace(
        tokens,
        request.result(),
        prompt=prompt,
        model="tiny",
        policy="graft",
        settings={"temperature": 0.8},
    )


def sample(limit: int = 40, seed: int = 0, plan: DraftPlan = PLAN, prompt: str = "hi") -> Trace:
    """A trace of synthetic rounds."""
    return trace_of(*generation(limit, seed, plan), prompt=prompt)
