"""From an answer, of an engine or of Transformers, to its measurement.

It adds up and renames; nothing is run or judged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from graft.bench.measurement import Measurement
from graft.bench.outside import Outside
from graft.looping import repeated_8grams
from graft.metrics import LAPS
from graft.request import Result

_COUNTS: Final = (
    *("trimmed", "draft_steps", "kept_draft", "released_slots", "redirected"),
    *("proposed_draft", "proposed_retrieved", "accepted_draft", "accepted_retrieved"),
    *("empty_slots", "unspent_slots", "rows_written"),
    *("proposed_context", "accepted_context"),
)
_LOOKUPS: Final = ("lookups", "hits", "context_lookups", "context_hits")
_SECONDS: Final = ("prefill_seconds", "decode_seconds", "time_to_first_token", "lookup_seconds")


def of_result(identity: dict[str, Any], result: Result) -> Measurement:
    """Of an engine's result.

    Args:
        identity: the fields of a measurement that say what was asked of whom.
    """
    stats, records = result.stats, result.stats.round_records
    return _measurement(
        identity,
        result.usage.prompt_tokens,
        result.token_ids,
        **{name: getattr(stats, name) for name in (*_COUNTS, *_SECONDS)},
        rounds=stats.rounds,
        sources="".join(source.name[0].lower() for source in result.sources),
        finish_reason=result.finish_reason,
        tau=stats.tau or 1.0,
        latency_seconds=stats.time_to_first_token + stats.decode_seconds,
        **{name: sum(getattr(r, name) for r in records) for name in _LOOKUPS},
        seconds={name: sum(getattr(r.times, name) for r in records) for name in LAPS},
        round_tokens=[r.accepted + 1 for r in records],
        round_stages=[r.stage for r in records],
        round_draft=[r.proposed_draft for r in records],
        round_retrieved=[r.proposed_retrieved for r in records],
    )


def of_outside(identity: dict[str, Any], prompt: Sequence[int], found: Outside) -> Measurement:
    """Of an answer by Transformers, which tells no single rounds.

    Args:
        identity: as in `of_result`.
    """
    return _measurement(
        identity,
        len(prompt),
        found.token_ids,
        **dict.fromkeys((*_COUNTS, *_LOOKUPS), 0),
        rounds=found.rounds,
        sources="",
        finish_reason=found.finish_reason,
        tau=found.tau,
        prefill_seconds=found.time_to_first_token,
        decode_seconds=found.latency_seconds - found.time_to_first_token,
        time_to_first_token=found.time_to_first_token,
        latency_seconds=found.latency_seconds,
        lookup_seconds=0.0,
        seconds={},
        round_tokens=[],
        round_stages=[],
        round_draft=[],
        round_retrieved=[],
    )


def _measurement(
    identity: dict[str, Any], prompt_tokens: int, answer: list[int], **fields: Any
) -> Measurement:
    return Measurement(
        **identity,
        prompt_tokens=prompt_tokens,
        completion_tokens=len(answer),
        token_ids=answer,
        repeated_8grams=repeated_8grams(answer),
        **fields,
    )
