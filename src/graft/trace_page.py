"""A trace as one HTML page that needs nothing else: no network, no fonts, no libraries.

The page is `data/trace.html`, written by hand, with the trace as a JSON block inside. Whatever a
model says is data there: no character of it can end the block or begin markup, and the page puts
it on the screen as text alone. The page's policy allows its own script and style, by their hash,
and no connection.

Trees are kept as columns, and the text of each token once, so that a long generation stays small.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any, Final

from graft.metrics import RoundRecord
from graft.pruning import DraftPlan
from graft.trace import Trace, TraceNode, TraceRound
from graft.tree import Source

__all__ = ["is_trace_page", "render", "trace_object"]

FORMAT: Final = 1
MARK: Final = '<meta name="generator" content="graft trace">'  # stands in the template's head
# Script context ends at "</script" and changes at "<!--"; without these three nothing is markup.
_ESCAPED: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}
_DIGITS: Final = 4  # significant ones of a probability


def render(trace: Trace) -> str:
    """The whole page. ASCII wherever text of a model or of a user stands."""
    page = resources.files("graft").joinpath("data/trace.html").read_text(encoding="utf-8")
    data = json.dumps(
        trace_object(trace), ensure_ascii=True, allow_nan=False, separators=(",", ":")
    )
    before, after = _with_policy(page).split("@TRACE@")
    return before + data.translate(_ESCAPED) + after


def is_trace_page(start: bytes) -> bool:
    """Whether a file that begins so (1 KiB is enough) is a page of this module."""
    return MARK.encode() in start[:1024]


def trace_object(trace: Trace) -> dict[str, Any]:
    """The trace as plain data for JSON.

    Nodes are columns (`tokens`, `parents`, `sources` as one digit each, `probabilities`), and
    their texts lie in `texts` by token id. `accepted` lists the nodes of the
    accepted path, `redirected` those that were drafted and retrieved.
    """
    plans = list(dict.fromkeys(r.plan for r in trace.rounds))
    result = trace.result
    return {
        "format": FORMAT,
        "prompt": trace.prompt,
        "model": trace.model,
        "policy": trace.policy,
        "budget": max((plan.budget for plan in plans), default=0),
        "settings": dict(trace.settings),
        "finish_reason": result.finish_reason,
        "stop_reason": result.stop_reason,
        "usage": asdict(result.usage),
        "stats": result.stats.to_dict(),
        "sources": [source.name.lower() for source in Source],
        "texts": {**{n.token: n.text for r in trace.rounds for n in r.nodes}, **trace.alone},
        "plans": [_plan(plan) for plan in plans],
        "first": list(trace.first),
        "rounds": [_round(r, plans.index(r.plan)) for r in trace.rounds],
    }


def _plan(plan: DraftPlan) -> dict[str, Any]:
    return asdict(plan) | {"stages": [plan.stage_name(stage) for stage in range(plan.stages)]}


def _round(traced: TraceRound, plan: int) -> dict[str, Any]:
    nodes = traced.nodes
    return {
        "tokens": [n.token for n in nodes],
        "parents": [n.parent for n in nodes],
        "sources": "".join(str(int(Source[n.source.upper()])) for n in nodes),
        "probabilities": _probabilities(nodes),
        "redirected": [i for i, n in enumerate(nodes) if n.redirected],
        "accepted": [i for i, n in enumerate(nodes) if n.accepted],
        "committed": [list(c) for c in traced.committed],
        "trimmed": traced.trimmed,
        "plan": plan,
        "record": _record(traced.record),
    }


def _probabilities(nodes: Sequence[TraceNode]) -> list[float | None]:
    """Rounded; an empty list where no draft model gave any."""
    values = [None if n.probability is None else _short(n.probability) for n in nodes]
    return values if any(v is not None for v in values) else []


def _record(record: RoundRecord) -> dict[str, Any]:
    out = asdict(record)
    out["times"] = {name: round(seconds, 7) for name, seconds in out["times"].items()}
    out["confidence"] = [_short(c) for c in record.confidence]
    return out


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _with_policy(page: str) -> str:
    """Fill in the hashes of the page's one script and one style."""
    for name in ("script", "style"):
        (body,) = re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        page = page.replace(f"@{name.upper()}_HASH@", f"sha256-{digest}")
    return page
