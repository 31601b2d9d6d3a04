"""Spending: how deep a round drafts and how many nodes it verifies.

`Fixed` does as the plan says. `Paying` goes by what things are worth [ours]: a token is worth the
time in which this engine has made one so far (`Worth.pace`, tokens per second), so a node or a
draft step is bought where it promises more tokens than its seconds would make elsewhere:

    trees    where batches of this size have made clearly more tokens per second than plain ones
             would
    nodes    the n that maximises   sum of the n likeliest values - pace * verify(n + 1 rows)
    draft    where, after like promises of retrieval, drafting has brought more tokens than
             pace * seconds of the draft
    step     where, after like confidences at the same checkpoint, going on has brought
             more tokens than   pace * seconds of a step * steps that were taken

What a draft or a step brings are accepted tokens that would not have been in the tree without it
(`Spent.gain`). Both are learnt from the rounds that went on; now and then one goes on for that
purpose.

No clock is read here: costs are given and seconds are counted by them, so equal states spend alike.
This module knows numbers, not models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from graft.costs import Costs
from graft.pruning import DraftPlan
from graft.worth import Worth

# Among so many rounds one goes on at a checkpoint where it would have stopped.
EXPLORE = 8
# Among so many plain rounds of a batch one has trees, and not one that goes on for nothing else.
EXPLORE_BATCH, LISTEN = 16 * EXPLORE, 3
# The chance of each node of a chain under which batches are given trees to begin with, and how many
# times as many tokens per second as plain rounds trees must make: their costs are more uncertain.
HOPE, SURE = 0.75, 1.05
# Share of what a round takes besides that plain decoding takes too.
PLAIN = 0.3
# Tokens that are not worth a look: where all rows together cost less, all are verified.
TRIFLE = 0.02


# Asks, per sequence, for the chance of the best node that retrieval offers; None: not known.
Promise = Callable[[], Sequence[float] | None]


class Spent(NamedTuple):
    """A round of one sequence, for those who learn what pays."""

    confidence: tuple[float, ...]  # at the checkpoints that were reached
    stage: int
    accepted: int
    # Per accepted node, in path order: its value, and its chance once its parent is accepted, by
    # retrieval alone. Empty where nothing is known.
    values: tuple[float, ...] = ()
    unaided: tuple[float, ...] = ()
    least: float = 0.0  # the lowest value in the tree

    def gain(self, mark: int) -> int:
        """Accepted nodes that this round owes to draft steps behind checkpoint `mark`: all from
        the first one on whose path, with retrieval's word alone for what lies deeper than the
        draft of that checkpoint, would have been worth less than the lowest node in the tree."""
        if mark >= len(self.values):
            return 0
        # Of depth mark + 1, which was there; -1 asks what is owed to the draft as a whole.
        value = self.values[mark] if mark >= 0 else 1.0
        for place in range(mark + 1, len(self.values)):
            value *= self.unaided[place]
            if value < self.least:
                return len(self.values) - place
        return 0


class Spending(Protocol):
    """Decides what rounds spend."""

    budget: int  # nodes per tree at most

    def plan(self, batch: int) -> DraftPlan:
        """How the next round is drafted, for so many sequences."""

    def speculates(self) -> bool:
        """Whether the round that was planned last verifies trees, or is one of plain decoding."""

    def drafts(self, promise: Promise) -> bool:
        """Whether the round that was planned last drafts at all. The promise is asked for only
        where it matters."""

    def least(self) -> float:
        """The value below which a node of this round is of no use."""

    def width(self, used: Tensor, values: Tensor | None, steps: int) -> int:
        """How many nodes of the trees are verified, the root included. Trees stand best first.

        Args:
            used: bool [B, K + 1]. values: float32 [B, K + 1], what each is worth; None: not known.
            steps: draft steps that were taken.
        """

    def settle(self, spent: Sequence[Spent]) -> None:
        """Take in what the round came to."""


class Fixed:
    """Spends as a plan says.

    Args:
        plan: the same for every round.
    """

    def __init__(self, plan: DraftPlan) -> None:
        self._plan, self.budget = plan, plan.budget

    def plan(self, batch: int) -> DraftPlan:
        """The plan."""
        return self._plan

    def speculates(self) -> bool:
        """Always."""
        return True

    def drafts(self, promise: Promise) -> bool:
        """Always."""
        return True

    def least(self) -> float:
        """All are."""
        return 0.0

    def width(self, used: Tensor, values: Tensor | None, steps: int) -> int:
        """All nodes. On a CPU each row of a forward costs time and a look at the tree costs none,
        so slots that are empty in every tree are left out. Elsewhere shapes stay fixed."""
        return int(used.sum(1).max()) if used.device.type == "cpu" else used.shape[1]

    def settle(self, spent: Sequence[Spent]) -> None:
        """Nothing to learn."""


class Paying:
    """Spends where it pays.

    Args:
        plan: whose budget, beam and depth are the most that is spent.
        costs: of this machine.
        worth: what was learnt so far, and learns.
        stops: whether the depth is decided; else the plan's thresholds hold.
        sizes: whether the number of nodes is; else all are verified.
    """

    def __init__(
        self, plan: DraftPlan, costs: Costs, worth: Worth, *, stops: bool = True, sizes: bool = True
    ) -> None:
        self._plan, self.budget = plan, plan.budget
        self._costs, self._worth = costs, worth
        self._fixed = Fixed(plan)
        self._stops, self._sizes = stops, sizes
        self._batch = 1
        self._steps, self._rows = 0, 1
        self._drafted = True
        self._promise: Sequence[float] = []  # none: it was not asked for, or is not known
        self._plainly = False
        self._looking = self._again = False  # at trees where plain rounds were better
        self._curves: dict[int, list[float]] = {}

    def plan(self, batch: int) -> DraftPlan:
        """The plan, with thresholds at which a step begins to pay."""
        self._batch = batch
        marks = self._plan.checkpoints
        if not self._stops or not marks:
            return self._plan
        pace = self._pace()
        price = pace * self._step() / batch
        thresholds = [self._worth.threshold(mark, price) for mark in range(len(marks))]
        rounds = self._worth.rounds
        if rounds % EXPLORE == 0:
            thresholds[min(_twos(rounds // EXPLORE), len(marks) - 1)] = 0.0
        return replace(self._plan, thresholds=tuple(thresholds))

    def speculates(self) -> bool:
        """Where batches of about this size have made clearly more tokens per second with trees than
        plain decoding would have; before there were any, where trees of a good drafter could. Else
        there is a look at trees now and then, and another one as long as they are better. One
        sequence alone decides by its nodes."""
        self._plainly = self._looking = False
        if self._batch == 1 or not self._sizes:
            return True
        found = self._worth.of_batch(self._batch)
        if (self._hope() if found is None else found) > self._plain_pace() * SURE:
            return True
        self._looking = self._again or self._worth.rounds % EXPLORE_BATCH == LISTEN
        self._plainly = not self._looking
        return self._looking

    def drafts(self, promise: Promise) -> bool:
        """Where, after such promises, the draft has brought more tokens than its time is worth."""
        self._drafted = True
        self._promise = promise() or [] if self._stops else []
        if not self._promise or self._worth.rounds % EXPLORE == EXPLORE // 2:
            return True
        found = [self._worth.of_draft(p) for p in self._promise]
        steps = sum(one.steps for one in found) / len(found)
        seconds = self._draft() + steps * self._step()
        self._drafted = sum(one.tokens for one in found) > self._pace() * seconds
        return self._drafted

    def least(self) -> float:
        """Half of what a row costs where rows are cheapest."""
        if not self._sizes:
            return 0.0
        curve = self._curve()
        rise = min((curve[n] - curve[0]) / n for n in range(1, len(curve)))
        return self._pace() * rise / self._batch / 2

    def width(self, used: Tensor, values: Tensor | None, steps: int) -> int:
        """Those that pay."""
        width = self._fixed.width(used, values, steps)
        if self._sizes and values is not None:
            width = min(width, self._paying(values))
        self._steps, self._rows = steps, self._batch * width
        return width

    def settle(self, spent: Sequence[Spent]) -> None:
        """Learn the pace and what steps bring."""
        tokens = sum(one.accepted + 1 for one in spent)
        if self._plainly:
            self._worth.learn_pace(tokens, self._plain_seconds())
            return
        drafting = self._draft() + self._steps * self._step() if self._drafted else 0.0
        seconds = self._round() + drafting + self._costs.of_rows(self._rows)
        if self._batch > 1:
            self._worth.learn_batch(self._batch, tokens, seconds)
            self._again = self._looking and tokens > SURE * self._plain_pace() * seconds
        if self._stops:
            if self._drafted:
                for promise, one in zip(self._promise, spent, strict=False):
                    self._worth.learn_draft(promise, self._owed(one), self._steps)
            for one in spent:
                gained = [one.gain(mark) for mark in range(one.stage)]
                self._worth.learn_steps(one.confidence, gained)
        self._worth.learn_pace(tokens, seconds)

    def _owed(self, one: Spent) -> int:
        """Accepted nodes that a round owes to its draft. A node that is worth its row would have
        been in the tree without it, small as that may be."""
        least = one.least
        if self._sizes:
            curve = self._curve()
            row = (curve[-1] - curve[0]) / (len(curve) - 1) / self._batch
            least = min(least, self._pace() * row)
        return one._replace(least=least).gain(-1)

    def _paying(self, values: Tensor) -> int:
        curve = self._curve()[: values.shape[1]]
        pace = self._pace()
        if pace * (curve[-1] - curve[0]) < TRIFLE:
            return values.shape[1]
        tokens = values.clamp(min=0).sum(0).cumsum(0).double()
        price = torch.tensor(curve, dtype=torch.float64, device=values.device) * pace
        return int((tokens - price).argmax()) + 1

    def _curve(self) -> list[float]:
        """Seconds of verifying trees of 0 to K nodes."""
        batch = self._batch
        if batch not in self._curves:
            self._curves[batch] = self._costs.of_trees(self.budget, batch)
        return self._curves[batch]

    def _pace(self) -> float:
        """Tokens per second; before anything is known, plain decoding's."""
        return self._worth.pace(
            1 / (self._costs.round + self._costs.draft + self._costs.of_rows(1))
        )

    def _hope(self) -> float:
        """Tokens per second of trees whose best paths are chains of likely nodes, at best."""
        tokens, found = 1.0, 0.0
        for nodes, seconds in enumerate(self._curve()[1:], 1):
            tokens += HOPE**nodes
            found = max(found, self._batch * tokens / (self._round() + self._draft() + seconds))
        return found

    def _plain_pace(self) -> float:
        """Tokens per second of plain decoding."""
        return self._batch / self._plain_seconds()

    def _plain_seconds(self) -> float:
        """Of a round of plain decoding, which has little to do besides."""
        return PLAIN * self._costs.round + self._costs.of_rows(self._batch)

    def _draft(self) -> float:
        return self._costs.draft + (self._batch - 1) * self._costs.draft_more

    def _round(self) -> float:
        return self._costs.round + (self._batch - 1) * self._costs.round_more

    def _step(self) -> float:
        """Of the whole batch; where that was not measured it grows with its rows as the target's
        forward does."""
        if self._costs.step_more:
            return self._costs.step + (self._batch - 1) * self._costs.step_more
        rows = self._plan.beam
        growth = self._costs.of_rows(self._batch * rows) / self._costs.of_rows(rows)
        return self._costs.step * growth


def _twos(number: int) -> int:
    """How often 2 divides a number: of all numbers half have 0, a quarter has 1, and so on, as
    the first checkpoint is the one that most rounds come to."""
    return (number & -number).bit_length() - 1 if number else 0
