"""The report's part on rounds: the work per token, where time and rounds went, which source was
right, and latency.

All numbers are over all tasks together, per setting and case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from graft.bench.grouping import SETTING, Column, Group, Setting
from graft.bench.measurement import Measurement
from graft.bench.statistics import (
    Measure,
    Pairs,
    alone,
    context_hit_rate,
    draft_accept_ratio,
    draft_steps_per_token,
    hit_rate,
    interval,
    pair,
    quantiles,
    retrieved_accept_ratio,
    time_share,
    token_intervals,
    tokens_per_second,
    verified_rows_per_token,
    waste,
)
from graft.bench.tables import (
    NOTHING,
    milliseconds,
    number,
    share,
    share_with_range,
    table,
    with_range,
)
from graft.metrics import LAPS
from graft.pruning import stage_order

_CASE: Final = (*SETTING, "case")
_NODES: Final = (
    *("proposed_draft", "accepted_draft", "proposed_retrieved", "accepted_retrieved"),
    *("proposed_context", "accepted_context"),
)
_SLOTS: Final = (
    "kept_draft",
    "released_slots",
    "redirected",
    "empty_slots",
    "unspent_slots",
    "trimmed",
)
_AT: Final = (0.5, 0.99)


def sections(groups: Mapping[Setting, Group]) -> list[str]:
    """The sections, as Markdown blocks."""
    cases = [(s, c, answers) for s, group in groups.items() for c, answers in group.items()]
    sums = [(s, c, pair(answers)) for s, c, answers in cases]
    return [
        "## Work per token",
        _table(
            sums,
            {
                "tokens/s": tokens_per_second,
                "draft steps/token": draft_steps_per_token,
                "rows/token": verified_rows_per_token,
            },
        ),
        "## Time split of the rounds",
        _table(sums, {name: time_share(name) for name in LAPS}, shares=True),
        "## Where drafting stopped",
        "Accepted ratio: accepted over proposed nodes of the rounds of a stage.",
        _stages(cases),
        "## Accepted by source",
        _table(
            sums,
            {
                "draft": draft_accept_ratio,
                "retrieved": retrieved_accept_ratio,
                "waste": waste,
                "hit rate": hit_rate,
                "context hit rate": context_hit_rate,
            },
            shares=True,
        ),
        _counts(cases, _NODES),
        _counts(cases, _SLOTS),
        "## Latency in milliseconds",
        "Of answers: the whole answer, its first token, and each token after it.",
        _latency(cases),
    ]


_Cases = Sequence[tuple[Setting, Column, list[Measurement]]]
_Sums = Sequence[tuple[Setting, Column, Pairs]]


def _table(sums: _Sums, measures: Mapping[str, Measure], *, shares: bool = False) -> str:
    """A measure per column with its interval, a case per row."""
    rows = []
    for setting, column, pairs in sums:
        found = [interval(pairs, alone(measure)) for measure in measures.values()]
        cells = [share_with_range(e) if shares else with_range(e) for e in found]
        rows.append([*setting.cells, str(column), *cells])
    return table([*_CASE, *measures], rows, left=3)


def _stages(cases: _Cases) -> str:
    """Rounds by the stage at which drafting stopped."""
    rows = []
    for setting, column, answers in cases:
        rounds: Counter[str] = Counter()
        proposed: Counter[str] = Counter()
        accepted: Counter[str] = Counter()
        for stage, nodes, committed in _rounds(answers):
            rounds[stage] += 1
            proposed[stage] += nodes
            accepted[stage] += committed - 1  # the bonus is no node
        for stage in sorted(rounds, key=stage_order):
            n, p, a = rounds[stage], proposed[stage], accepted[stage]
            numbers = [str(n), share(n / rounds.total()), number(p / n), number(a / n)]
            ratio = share(a / p) if p else NOTHING
            rows.append([*setting.cells, str(column), stage, *numbers, ratio])
    header = ["stage", "rounds", "share", "proposed/round", "accepted/round", "accepted ratio"]
    return table([*_CASE, *header], rows, left=4) if rows else "No rounds were recorded."


def _rounds(answers: Sequence[Measurement]) -> Iterator[tuple[str, int, int]]:
    """Stage, proposed nodes and committed tokens of each round."""
    for m in answers:
        nodes = map(sum, zip(m.round_draft, m.round_retrieved, strict=True))
        yield from zip(m.round_stages, nodes, m.round_tokens, strict=True)


def _counts(cases: _Cases, names: Sequence[str]) -> str:
    """Counters, added up."""
    rows = [
        [*setting.cells, str(column), *(str(sum(getattr(m, n) for m in answers)) for n in names)]
        for setting, column, answers in cases
    ]
    return table([*_CASE, *(n.replace("_", " ") for n in names)], rows, left=3)


def _latency(cases: _Cases) -> str:
    rows = []
    for setting, column, answers in cases:
        kinds = (
            [m.latency_seconds for m in answers],
            [m.time_to_first_token for m in answers],
            token_intervals(answers),
        )
        cells = [milliseconds(v) for kind in kinds for v in quantiles(kind, _AT)]
        rows.append([*setting.cells, str(column), str(len(answers)), *cells])
    header = ["answers"] + [
        f"{kind} {at}" for kind in ("answer", "first token", "token") for at in ("P50", "P99")
    ]
    return table([*_CASE, *header], rows, left=3)
