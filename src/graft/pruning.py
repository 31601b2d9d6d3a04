"""Dynamic-depth pruning: when to stop drafting, and how many draft nodes to keep.

At checkpoint d, after d forwards of the draft model, the confidence is

    c_d = exp(max over the frontier of the summed log-probabilities)

the draft model's probability of its best path. Drafting stops where c_d is below the threshold of
that checkpoint [paper]. The checkpoint at which it stopped is the stage of the round; each stage
keeps its own number of draft nodes and releases the rest of the budget.

This module knows numbers alone: no trees, no models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Second-hand, for K = 60: checkpoints, draft nodes kept there (a round that never stops early
# keeps its whole tree), beam and levels of EAGLE-3.
PAPER_BUDGET = 60
PAPER_CHECKPOINTS = (0, 1, 5)
PAPER_KEPT = (8, 24, 40)
PAPER_BEAM = 10
PAPER_DEPTH = 8
# The paper calibrates its thresholds per model and does not publish them. [ours]
DEFAULT_THRESHOLDS = (0.35, 0.25, 0.15)

NO_DRAFT = -1  # stage of a round without a draft, where there is a drafter


@dataclass(frozen=True)
class DraftPlan:
    """How a drafter spends one round.

    Attributes:
        budget: K, nodes of the tree without the root; also the most candidates handed over.
        beam: nodes expanded per level, and children looked at per node.
        depth: levels of draft nodes; each level after the first costs one forward.
        checkpoints: forwards of the draft model after which it may stop, ascending.
        thresholds: confidence below which it stops, one per checkpoint; 0 never, above 1 always.
        kept: draft nodes kept per stage: one number per checkpoint, and the last for a draft that
            did not stop early.

    Raises:
        ValueError: naming the setting, what was found and what is supported.
    """

    budget: int
    beam: int
    depth: int
    checkpoints: tuple[int, ...] = ()
    thresholds: tuple[float, ...] = ()
    kept: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, low, high in (("beam", 1, 64), ("depth", 1, 32)):
            found = getattr(self, name)
            if not low <= found <= high:
                raise ValueError(f"{name}={found}: an integer from {low} to {high} is supported")
        marks = self.checkpoints
        if list(marks) != sorted(set(marks)) or any(not 0 <= c < self.depth for c in marks):
            raise ValueError(
                f"checkpoints={marks}: distinct ascending numbers of draft steps are supported, "
                f"0 to {self.depth - 1} for depth {self.depth}"
            )
        if len(self.thresholds) != len(marks) or any(not 0 <= t <= 2 for t in self.thresholds):
            raise ValueError(
                f"thresholds={self.thresholds}: one number from 0 (never stop there) to 1 (above: "
                f"always) is supported for each of the {len(marks)} checkpoints {marks}"
            )
        if len(self.kept) != self.stages or any(not 0 <= n <= self.budget for n in self.kept):
            raise ValueError(
                f"kept={self.kept}: {self.stages} numbers from 0 to the budget {self.budget} are "
                "supported, one per checkpoint and one for a draft that does not stop early"
            )

    @property
    def stages(self) -> int:
        """Stages a round can end in: the checkpoints, and "full"."""
        return len(self.checkpoints) + 1

    def stage_name(self, stage: int) -> str:
        """Name of a stage in reports: "d0", "d1", ..., "full"; "none" for a round that the drafter
        sat out (`NO_DRAFT`)."""
        if stage == NO_DRAFT:
            return "none"
        return f"d{self.checkpoints[stage]}" if stage < len(self.checkpoints) else "full"


def stage_order(name: str) -> tuple[bool, int, str]:
    """What stages' names are sorted by: d0, d1, ..., d10, then full, then none."""
    digits = name[1:]
    return (not digits.isdigit(), int(digits) if digits.isdigit() else 0, name)


def dense(budget: int, beam: int, depth: int, kept: int | None = None) -> DraftPlan:
    """A plan that never stops early and keeps `kept` draft nodes (the whole budget if None)."""
    return DraftPlan(budget, beam, depth, kept=(budget if kept is None else kept,))


def scaled_beam(budget: int) -> int:
    """The paper's beam of 10 at K = 60, with the square root of the budget below it. [ours]"""
    return max(1, min(PAPER_BEAM, round(PAPER_BEAM * math.sqrt(budget / PAPER_BUDGET))))


def scaled_depth(budget: int) -> int:
    """The paper's 8 levels at K = 60, with the logarithm of the budget below it. [ours]"""
    return max(1, min(PAPER_DEPTH, round(1 + 1.2 * math.log2(budget))))


def scaled_checkpoints(depth: int) -> tuple[int, ...]:
    """The paper's checkpoints, at the same share of a draft's forwards."""
    share = (depth - 1) / (PAPER_DEPTH - 1)
    marks = {0, 1, round(PAPER_CHECKPOINTS[-1] * share)}
    # A checkpoint after the last forward would save none.
    return tuple(sorted(m for m in marks if m < max(depth - 1, 1)))


def scaled_kept(budget: int, checkpoints: tuple[int, ...]) -> tuple[int, ...]:
    """The paper's kept nodes as shares of the budget, at least one; all of it if it never stops.

    More checkpoints than the paper's keep what its last one keeps.
    """
    shares = (PAPER_KEPT + PAPER_KEPT[-1:] * len(checkpoints))[: len(checkpoints)]
    return (*(max(1, round(n * budget / PAPER_BUDGET)) for n in shares), budget)


def default_thresholds(checkpoints: tuple[int, ...]) -> tuple[float, ...]:
    """`DEFAULT_THRESHOLDS`; checkpoints beyond have that of the last."""
    marks = len(checkpoints)
    return (DEFAULT_THRESHOLDS + DEFAULT_THRESHOLDS[-1:] * marks)[:marks]
