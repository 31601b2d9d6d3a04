"""Records of rounds with everything filled in, for tests that care about a few numbers."""

from __future__ import annotations

from typing import Any

from graft.metrics import RoundRecord, RoundTimes


def make_record(**changes: Any) -> RoundRecord:
    """A round at K = 8 in which nothing was drafted; `changes` are fields of the record."""
    numbers: dict[str, Any] = {
        "stage": "full",
        "confidence": (),
        "draft_steps": 0,
        "kept_draft": 0,
        "released_slots": 8,
        "redirected": 0,
        "proposed_draft": 0,
        "proposed_retrieved": 8,
        "empty_slots": 0,
        "unspent_slots": 0,
        "accepted_draft": 0,
        "accepted_retrieved": 0,
        "lookups": 10,
        "hits": 8,
        "context_lookups": 0,
        "context_hits": 0,
        "proposed_context": 0,
        "accepted_context": 0,
        "rows_written": 9,
        "batch": 1,
        "context": 50,
        "times": RoundTimes(),
    }
    return RoundRecord(**{**numbers, **changes})
