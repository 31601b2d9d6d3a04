"""Costs: what the parts of a round take on this machine. [ours]

Measured once for an engine (`graft.cost_measure`); what is done with them is decided elsewhere
(`graft.spending`), where no clock is read. This module knows numbers alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Seconds.

    Attributes:
        rows, verify: numbers of rows, ascending from 1, and the target's forward over each.
        draft: the drafter's work before its first step.
        step: each step after that, for one sequence.
        round: what a round takes besides: grafting, the walk, learning.
        draft_more, step_more, round_more: what each further sequence of a batch adds to these.

    Raises:
        ValueError: for numbers that cannot be.
    """

    rows: tuple[int, ...]
    verify: tuple[float, ...]
    draft: float = 0.0
    step: float = 0.0
    round: float = 0.0
    draft_more: float = 0.0
    step_more: float = 0.0
    round_more: float = 0.0

    def __post_init__(self) -> None:
        ascending = list(self.rows) == sorted(set(self.rows)) and self.rows[:1] == (1,)
        if not ascending or len(self.rows) != len(self.verify):
            raise ValueError(
                f"rows={self.rows}, verify={self.verify}: ascending numbers of rows from 1 on are "
                "supported, and a time for each"
            )
        rest = (self.draft, self.step, self.round, self.draft_more, self.step_more, self.round_more)
        finite = all(math.isfinite(seconds) for seconds in (*self.verify, *rest))
        if not finite or min(self.verify) <= 0 or min(rest) < 0:
            raise ValueError(f"{self}: seconds above 0 are supported")

    def of_rows(self, rows: int) -> float:
        """The target's forward over so many rows: in straight lines between those measured, and
        never less than over fewer rows. Beyond them it goes on as over their upper half: times
        rise in steps, so the last two may say nothing."""
        last = len(self.rows) - 1
        if last == 0:
            return self.verify[0]
        right = next((i for i in range(1, last) if rows <= self.rows[i]), last)
        left = right - 1
        if rows > self.rows[last]:
            left = max((i for i in range(last) if self.rows[i] <= self.rows[last] // 2), default=0)
        low, high = max(self.verify[: left + 1]), max(self.verify[: right + 1])
        start, end = self.rows[left], self.rows[right]
        return low + (high - low) * (rows - start) / (end - start)

    def of_trees(self, budget: int, batch: int) -> list[float]:
        """The target's forward over `batch` trees of 0 to `budget` nodes below the root."""
        return [self.of_rows(batch * (nodes + 1)) for nodes in range(budget + 1)]
