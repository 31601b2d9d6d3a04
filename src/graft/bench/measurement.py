"""Measurement: one answer by one method, as a line of results.jsonl.

Everything that reports, figures and comparisons say comes from these lines alone. Names are the
glossary's; times are seconds of wall clock. It knows no engine and no statistics.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Final

from graft.looping import LOOPING

_SHOWN: Final = 3  # names of fields in a message
# Letters in `Measurement.sources`.
SOURCES = {"t": "target", "d": "draft", "r": "retrieved"}


@dataclass(frozen=True)
class Measurement:
    """One answer.

    Attributes:
        task, id, turn: the prompt; turns of one item count from 0 and are not independent.
        method: a policy, with its drafter in front where it is not the default ("model:graft"),
            or "hf", "hf-lookup" for Transformers' own.
        budget: K; 0 where the method has none. batch: requests that decoded together.
        matrix: "cold" (empty at the start of every answer), "warm" (kept over the run), "none".
        token_ids: the answer. sources: a letter of `SOURCES` per token; "" where not known.
        tau: mean tokens committed per round; 1 for methods without rounds of their own.
        decode_seconds: from the first token to the last; in a batch, of this request.
        time_to_first_token: from the request's start. latency_seconds: to its last token.
        repeated_8grams: share of the answer's 8-grams that occurred in it before.
        draft_steps: forwards of the draft model that expanded trees.
        round_tokens: tokens committed per round, before trimming.
        round_stages, round_draft, round_retrieved: stage and nodes proposed by source, per round.
        seconds: of the rounds, by part: draft, graft, verify, commit_update, other.
        difference: first position at which the answer differs from plain decoding's by more than
            the margin rule excuses; None if there is none or plain was not run.
        excused: near-ties that were excused on the way.
    """

    task: str
    id: str
    turn: int
    method: str
    budget: int
    temperature: float
    batch: int
    seed: int
    matrix: str
    prompt_tokens: int
    completion_tokens: int
    token_ids: list[int]
    sources: str
    finish_reason: str
    tau: float
    rounds: int
    trimmed: int
    prefill_seconds: float
    decode_seconds: float
    time_to_first_token: float
    latency_seconds: float
    repeated_8grams: float
    draft_steps: int
    kept_draft: int
    released_slots: int
    redirected: int
    proposed_draft: int
    proposed_retrieved: int
    accepted_draft: int
    accepted_retrieved: int
    empty_slots: int
    lookups: int
    hits: int
    rows_written: int
    lookup_seconds: float
    seconds: dict[str, float]
    round_tokens: list[int]
    round_stages: list[str]
    round_draft: list[int]
    round_retrieved: list[int]
    difference: int | None = None
    excused: int = 0
    unspent_slots: int = 0
    proposed_context: int = 0
    accepted_context: int = 0
    context_lookups: int = 0
    context_hits: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """What was asked of whom: no two lines of a run share it."""
        return (self.task, self.id, self.turn, *self.case)

    @property
    def case(self) -> tuple[Any, ...]:
        """The method with its settings."""
        return (self.method, self.budget, self.temperature, self.batch, self.seed, self.matrix)

    @property
    def looping(self) -> bool:
        return self.repeated_8grams > LOOPING

    def to_line(self) -> str:
        """A line of JSON, without the line end."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str) -> Measurement:
        """The reverse.

        Raises:
            ValueError: saying what is wrong with the line.
        """
        try:
            found = json.loads(line)
        except ValueError as error:
            raise ValueError(f"not JSON ({error})") from error
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        known = {f.name for f in fields(cls)}
        needed = {f.name for f in fields(cls) if f.default is MISSING}
        if missing := sorted(needed - found.keys()):
            raise ValueError(f"fields missing: {_first(missing)}")
        if unknown := sorted(found.keys() - known):
            raise ValueError(f"unknown fields: {_first(unknown)}")
        return cls(**found)


def _first(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
