"""Vitals: what a method's rounds came to, in the numbers that a diagnosis looks at.

They come from the statistics of results or from the lines of a benchmark. It knows numbers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from graft.metrics import LAPS, Stats

COUNTS = (
    *("rounds", "draft_steps", "kept_draft", "released_slots"),
    *("proposed_draft", "accepted_draft", "proposed_retrieved", "accepted_retrieved"),
    *("lookups", "hits"),
)


@dataclass(frozen=True)
class Vitals:
    """Of one method on some prompts.

    Attributes:
        name: as reports call it. policy: of it.
        budget, temperature: as they were set; None where not known.
        counts: sums over all rounds, by the names that rounds record.
        stages: per round, where drafting stopped. tokens: per round, what it committed.
        seconds: of the rounds, by part (`graft.metrics.LAPS`).
        speedup: tokens/s over those of plain decoding on the same prompts; None without.
        by_batch: the same by batch size, where there are several.
        answers, looping: answers, and how many of them repeat themselves.
    """

    name: str
    policy: str
    budget: int | None
    temperature: float | None
    counts: Mapping[str, int]
    stages: Sequence[str]
    tokens: Sequence[int]
    seconds: Mapping[str, float]
    speedup: float | None = None
    by_batch: Mapping[int, float] = field(default_factory=dict)
    answers: int = 0
    looping: int = 0

    def __getitem__(self, name: str) -> int:
        return self.counts[name]

    @property
    def rounds(self) -> int:
        return self.counts["rounds"]

    @property
    def tau(self) -> float:
        """Mean tokens per round."""
        return sum(self.tokens) / max(len(self.tokens), 1)

    @property
    def proposed(self) -> int:
        return self["proposed_draft"] + self["proposed_retrieved"]

    @property
    def accepted(self) -> int:
        return self["accepted_draft"] + self["accepted_retrieved"]

    def share_of_time(self, *parts: str) -> float:
        """Of the rounds' time."""
        whole = sum(self.seconds.get(part, 0.0) for part in LAPS)
        return sum(self.seconds.get(part, 0.0) for part in parts) / whole if whole else 0.0

    def in_stage(self, stage: str) -> list[int]:
        """Tokens of the rounds that ended there."""
        return [n for n, s in zip(self.tokens, self.stages, strict=True) if s == stage]


def vitals_of(results: Iterable[Stats], policy: str, *, budget: int | None = None) -> Vitals:
    """Of an engine's results (`Result.stats`) under one policy."""
    records = [record for stats in results for record in stats.round_records]
    counts = {n: sum(getattr(r, n) for r in records) for n in COUNTS if n != "rounds"}
    return Vitals(
        policy,
        policy,
        budget,
        None,
        {"rounds": len(records), **counts},
        [r.stage for r in records],
        [r.accepted + 1 for r in records],
        {lap: sum(getattr(r.times, lap) for r in records) for lap in LAPS},
    )
