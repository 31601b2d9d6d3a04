"""What every round records, and what becomes of it over a generation.

Names are the glossary's. The arithmetic that must hold:

    first token + accepted draft + accepted retrieved + rounds - trimmed = generated tokens
    proposed <= rounds x budget

Times are seconds of wall clock; on a device with streams they are taken by events, so that
measuring waits for nothing. This module knows numbers alone.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

log = logging.getLogger("graft")


@dataclass(frozen=True)
class RoundTimes:
    """Where one round's time went, in seconds. A round serves the whole batch.

    `lookup` is the matrix lookup alone: part of `graft` on a CPU, beside `draft` on a device with
    streams, and therefore no part of the total.
    """

    draft: float = 0.0
    graft: float = 0.0
    verify: float = 0.0  # the target's forward
    commit_update: float = 0.0  # walk, cache commit, matrix update
    other: float = 0.0
    lookup: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(getattr(self, name) for name in LAPS))


LAPS = ("draft", "graft", "verify", "commit_update", "other")


@dataclass(frozen=True)
class RoundRecord:
    """One round of one sequence."""

    stage: str  # checkpoint at which drafting stopped ("d0", "d1", ...), or "full"
    confidence: tuple[float, ...]  # c_d at each checkpoint that was reached
    draft_steps: int  # forwards of the draft model that expanded the tree, for the whole batch
    kept_draft: int  # draft candidates kept at this stage
    released_slots: int  # the rest of the budget
    redirected: int  # template entries that the kept draft held already
    proposed_draft: int  # draft nodes in the tree
    proposed_retrieved: int  # retrieved nodes in the tree
    empty_slots: int  # slots of the budget that nobody filled
    unspent_slots: int  # slots that would not have paid, and were not verified
    accepted_draft: int
    accepted_retrieved: int
    lookups: int  # matrix entries asked for
    hits: int  # of these, how many were written
    context_lookups: int  # nodes whose longer contexts were looked up
    context_hits: int  # of these, how many had been seen
    proposed_context: int  # of the retrieved nodes, those that a longer context named
    accepted_context: int
    rows_written: int  # matrix rows, by the whole batch
    batch: int  # sequences in the round
    context: int  # committed tokens before the round
    times: RoundTimes

    @property
    def accepted(self) -> int:
        return self.accepted_draft + self.accepted_retrieved

    @property
    def proposed(self) -> int:
        return self.proposed_draft + self.proposed_retrieved


class Stopwatch:
    """Splits a round's time into named laps."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._names: list[str] = []
        self._marks: list[Any] = [self._mark()]

    def lap(self, name: str) -> None:
        """The time since the last lap was spent on `name`."""
        self._names.append(name)
        self._marks.append(self._mark())

    def read(self, lookup: float = 0.0) -> RoundTimes:
        """All laps, and the seconds of the lookup. On CUDA the device must have passed the last
        lap (a host read sees to it)."""
        seconds: dict[str, float] = {}
        if self._cuda:
            self._marks[-1].synchronize()
        for name, start, end in zip(self._names, self._marks, self._marks[1:], strict=False):
            spent = start.elapsed_time(end) / 1e3 if self._cuda else end - start
            seconds[name] = seconds.get(name, 0.0) + spent
        return RoundTimes(**seconds, lookup=lookup)

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@dataclass(frozen=True)
class Stats:
    """A generation in numbers. `None` where a ratio has no denominator."""

    rounds: int
    stage_histogram: dict[str, int]  # rounds per stage
    draft_steps: int
    kept_draft: int
    released_slots: int
    redirected: int
    tau: float | None  # mean tokens committed per round, the bonus included, before trimming
    accepted_draft: int
    accepted_retrieved: int
    proposed_draft: int
    proposed_retrieved: int
    empty_slots: int
    unspent_slots: int
    trimmed: int  # tokens committed behind the end of the request
    draft_accept_ratio: float | None
    retrieved_accept_ratio: float | None
    verification_waste: float | None  # 1 - accepted / proposed
    matrix_hit_rate: float | None
    context_hit_rate: float | None
    proposed_context: int
    accepted_context: int
    rows_written: int
    prefill_seconds: float
    decode_seconds: float
    time_to_first_token: float
    tokens_per_second: float | None  # tokens after the first, over decode_seconds
    time_split: dict[str, float]  # share of the rounds' time: draft, graft, verify, ...
    lookup_seconds: float  # of the matrix lookups: in graft on a CPU, beside draft on CUDA
    round_records: tuple[RoundRecord, ...]

    def to_dict(self, *, rounds: bool = False) -> dict[str, Any]:
        """Plain numbers for JSON; the single rounds only on request."""
        out = asdict(self)
        if not rounds:
            del out["round_records"]
        return out


def summarise(
    records: Iterable[RoundRecord],
    *,
    generated: int,
    trimmed: int,
    prefill_seconds: float,
    decode_seconds: float,
    time_to_first_token: float,
) -> Stats:
    """Add up the rounds of one request."""
    records = tuple(records)

    def total(name: str) -> int:
        return sum(getattr(r, name) for r in records)

    def ratio(part: float, whole: float) -> float | None:
        return part / whole if whole else None

    spent = {name: sum(getattr(r.times, name) for r in records) for name in LAPS}
    everything = sum(spent.values())
    accepted, proposed = total("accepted"), total("proposed")
    waste = ratio(accepted, proposed)
    return Stats(
        rounds=len(records),
        stage_histogram=dict(Counter(r.stage for r in records)),
        draft_steps=total("draft_steps"),
        kept_draft=total("kept_draft"),
        released_slots=total("released_slots"),
        redirected=total("redirected"),
        tau=ratio(accepted + len(records), len(records)),
        accepted_draft=total("accepted_draft"),
        accepted_retrieved=total("accepted_retrieved"),
        proposed_draft=total("proposed_draft"),
        proposed_retrieved=total("proposed_retrieved"),
        empty_slots=total("empty_slots"),
        unspent_slots=total("unspent_slots"),
        trimmed=trimmed,
        draft_accept_ratio=ratio(total("accepted_draft"), total("proposed_draft")),
        retrieved_accept_ratio=ratio(total("accepted_retrieved"), total("proposed_retrieved")),
        verification_waste=None if waste is None else 1 - waste,
        matrix_hit_rate=ratio(total("hits"), total("lookups")),
        context_hit_rate=ratio(total("context_hits"), total("context_lookups")),
        proposed_context=total("proposed_context"),
        accepted_context=total("accepted_context"),
        rows_written=total("rows_written"),
        prefill_seconds=prefill_seconds,
        decode_seconds=decode_seconds,
        time_to_first_token=time_to_first_token,
        tokens_per_second=ratio(generated - 1, decode_seconds),
        time_split={k: v / everything for k, v in spent.items()} if everything else {},
        lookup_seconds=sum(r.times.lookup for r in records),
        round_records=records,
    )


class CollapseAlarm:
    """Says once, in the log, that trees have stopped to pay.

    Args:
        rounds: length of the window that is looked at.
        least: accepted nodes per round below which a window counts as collapsed.
    """

    def __init__(self, rounds: int = 200, least: float = 0.05) -> None:
        self._window: deque[int] = deque(maxlen=rounds)
        self._least = least
        self.raised = False

    def look(self, records: Iterable[RoundRecord]) -> None:
        """Take in the records of a round (of those that proposed anything)."""
        self._window.extend(r.accepted for r in records if r.proposed)
        full = len(self._window) == self._window.maxlen
        if self.raised or not full or sum(self._window) >= self._least * len(self._window):
            return
        self.raised = True
        log.warning(
            "tau was %.2f over the last %d rounds: drafted and retrieved tokens are not being "
            "accepted, so decoding is slower than plain. Likely causes: very high temperature, "
            "text without repetition, a matrix from other text, a head made for another model. The "
            "output is not affected.",
            1 + sum(self._window) / len(self._window),
            len(self._window),
        )
