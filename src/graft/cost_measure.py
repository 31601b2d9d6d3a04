"""Measuring costs: some short rounds, once, over nothing of interest. [ours]

Of every part the shortest time counts: what a busy machine adds is not what a round costs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from graft.costs import Costs
from graft.decoder import BatchDecoder
from graft.draft import Draft, no_draft
from graft.drafters.base import Drafter
from graft.drafters.none import NoDrafter
from graft.grafter import Grafter, TemplateGrafter
from graft.metrics import RoundTimes
from graft.pruning import DraftPlan, dense
from graft.request import Request
from graft.retrieval import NoRetriever
from graft.spending import Fixed
from graft.target import Target
from graft.tree import Source, TokenTree

log = logging.getLogger("graft")

PROMPT_TOKENS = 128
REPEATS, FINE_REPEATS = 3, 5
# Nodes that are verified, as far as the budget goes. Times rise in steps, since kernels take rows
# by blocks; where there is time, small trees are measured one by one.
EVERY = 17
# Of batches: the largest that is measured, its nodes at most and the tokens of its prompts.
BATCH, BATCH_NODES, BATCH_PROMPT = 8, 63, 16
NODES = (0, 1, 3, 7, 11, 15, 23, 31, 47, 63, 95, 127, 191, 255)
# Tokens of an answer that never ends while things are measured.
ANSWER_TOKENS = 128

# Makes a request of a prompt's ids and the length of its answer.
MakeRequest = Callable[[list[int], int], Request]
MakeGrafter = Callable[[int], Grafter]  # of so many slots


def measure_costs(
    target: Target,
    drafter: Drafter,
    grafter: MakeGrafter,
    plan: DraftPlan,
    request: MakeRequest,
    token_count: int,
    *,
    fine: bool = False,
    batch: int = 1,
) -> Costs:
    """The costs of rounds on this machine. What target and drafter hold is forgotten.

    Args:
        grafter: what it makes learns from these rounds, so it should be nobody's.
        plan: its budget is the most that is verified, its beam and depth the draft's.
        fine: measure every number of nodes up to `EVERY`.
        batch: sequences that decode together at most; their forwards have more rows.
    """
    rounds = _Rounds(target, request, token_count)
    wanted = {*NODES, *range(EVERY)} if fine else NODES
    most = plan.budget if batch == 1 else max(plan.budget, min(batch * plan.budget, BATCH_NODES))
    nodes = sorted({n for n in wanted if n < most} | {plan.budget, most})
    times: dict[int, list[RoundTimes]] = {n: [] for n in nodes}
    rounds.begin(_Star(token_count), TemplateGrafter(NoRetriever(), most), dense(most, 1, 1))
    rounds.once(dense(nodes[-1], 1, 1))
    for _ in range(FINE_REPEATS if fine else REPEATS):
        for n in nodes:
            times[n].append(rounds.once(dense(n, 1, 1)))
    rounds.begin(drafter, grafter(1), plan)
    shallow, deep = (dense(plan.budget, plan.beam, depth) for depth in (1, plan.depth))
    rounds.once(deep)
    draft, step, besides = _drafting(rounds, shallow, deep)
    costs = Costs(
        tuple(n + 1 for n in nodes),
        _smooth([min(t.verify for t in times[n]) for n in nodes]),
        draft=draft,
        step=step,
        round=besides,
    )
    if batch > 1:
        rounds.begin(drafter, grafter(batch), plan, batch)
        rounds.once(deep)
        many = zip(_drafting(rounds, shallow, deep), (draft, step, besides), strict=True)
        more = [max(of_batch - of_one, 0.0) / (batch - 1) for of_batch, of_one in many]
        costs = replace(costs, draft_more=more[0], step_more=more[1], round_more=more[2])
    log.info("costs of a round here: %s", costs)
    return costs


def _smooth(seconds: Sequence[float]) -> tuple[float, ...]:
    """Fewer rows take no longer than more of them: what is above that is the machine's doing."""
    return tuple(min(seconds[i:]) for i in range(len(seconds)))


def _drafting(rounds: _Rounds, shallow: DraftPlan, deep: DraftPlan) -> tuple[float, float, float]:
    """Seconds of a draft of one level, of each step after that, and of all besides draft and
    verification."""
    both = [(rounds.once(shallow), rounds.once(deep)) for _ in range(REPEATS)]
    draft = min(one.draft for one, _ in both)
    steps = max(min(other.draft for _, other in both) - draft, 0.0)
    besides = min(t.total - t.draft - t.verify for pair in both for t in pair)
    return draft, steps / max(deep.depth - shallow.depth, 1), besides


class _Rounds:
    """Rounds of endless answers, one after another or side by side."""

    def __init__(self, target: Target, request: MakeRequest, token_count: int) -> None:
        self._target, self._request, self._token_count = target, request, token_count
        room = target.max_context or PROMPT_TOKENS + ANSWER_TOKENS
        self._answer = min(ANSWER_TOKENS, max(room // 2, 1))
        length = max(min(PROMPT_TOKENS, room - self._answer), 1)
        self._prompt = [token % token_count for token in range(1, length + 1)]

    def begin(self, drafter: Drafter, grafter: Grafter, plan: DraftPlan, batch: int = 1) -> None:
        """Rounds of these from here on."""
        self._batch = batch
        if batch > 1:
            self._prompt = self._prompt[:BATCH_PROMPT]
        capacity = len(self._prompt) + self._answer + plan.budget + 1
        self._target.open(batch, capacity)
        drafter.open(batch, capacity)
        self._decoder = BatchDecoder(
            self._target, drafter, grafter, spending=Fixed(plan), token_count=self._token_count
        )

    def once(self, plan: DraftPlan) -> RoundTimes:
        """The times of a round."""
        decoder = self._decoder
        # An answer of one token is over when it is admitted.
        while len(decoder.running) < self._batch:
            decoder.admit(self._request(self._prompt, self._answer))
        decoder.spending = Fixed(plan)
        decoder.round()
        return decoder.last_records[0].times


class _Star(NoDrafter):
    """As many children of the root as the budget has."""

    def __init__(self, token_count: int) -> None:
        self._tokens = token_count

    def draft(self, history: Tensor, length: Tensor, plan: DraftPlan) -> Draft:
        """Tokens that follow the root's in number."""
        roots = history.gather(1, (length - 1).unsqueeze(1)).squeeze(1)
        draft, tree = no_draft(roots, plan), star(roots, plan.budget, self._tokens)
        scores = -torch.arange(tree.width, device=roots.device).float().unsqueeze(0)
        return draft._replace(tree=tree, scores=scores, kept=draft.kept + plan.budget)


def star(roots: Tensor, size: int, token_count: int) -> TokenTree:
    """A tree for one sequence, its root int64 [1], of `size` nodes under the root."""
    place = torch.arange(size + 1, device=roots.device)
    zero = torch.zeros_like(place).unsqueeze(0)
    sources = torch.full_like(zero, Source.DRAFT)
    sources[:, 0] = Source.TARGET
    return TokenTree(
        tokens=(roots.unsqueeze(1) + place) % token_count,
        parents=zero,
        depths=(place > 0).long().unsqueeze(0),
        used=torch.ones_like(zero, dtype=torch.bool),
        sources=sources,
        max_depth=1,
    )
