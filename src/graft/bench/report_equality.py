"""The report's part on equality: whether each case said what plain decoding said.

An answer is the same if its tokens are plain decoding's; excused if they differ and the margin
rule of `graft.exactness` explains it, as the run found out; else it is different, also where
nobody judged it. It decodes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from graft.bench.grouping import PLAIN, SETTING, Column, Group, Setting, by_prompt, plain_of
from graft.bench.measurement import Measurement
from graft.bench.methods import comparable
from graft.bench.tables import NOTHING, escaped, table
from graft.exactness import PRECISIONS, Precision

_SHOWN: Final = 10  # differences that are listed


@dataclass
class _Verdict:
    """Answers of a case beside plain decoding's."""

    compared: int = 0
    same: int = 0
    excused: int = 0
    tokens: int = 0  # output positions compared: up to the first difference of an answer
    excuses: int = 0  # near-ties
    different: list[str] = field(default_factory=list)  # where

    def look(self, m: Measurement, plain: Measurement) -> None:
        """Count one answer."""
        same = m.token_ids == plain.token_ids
        parted = m.difference
        if parted is None:
            parted = _first_difference(m.token_ids, plain.token_ids)
        self.compared += 1
        self.excuses += m.excused
        self.tokens += min(parted + 1, len(plain.token_ids))
        if m.difference is not None or not (same or m.excused):
            where = f"{m.task} {m.id} turn {m.turn} at token {parted}"
            self.different.append(escaped(where))
        elif same:
            self.same += 1
        else:
            self.excused += 1


def sections(groups: Mapping[Setting, Group], environment: Mapping[str, Any]) -> list[str]:
    """The section, as Markdown blocks."""
    precision = _precision(environment)
    rows, notes = [], []
    for setting, column, verdict in _verdicts(groups):
        allowed = None if precision is None else _allowed(precision, verdict.tokens)
        rows.append(_row(setting, column, verdict, allowed))
        notes += _notes(setting, column, verdict, allowed)
    if not rows:
        return ["## The same tokens as plain decoding", "Nothing was compared."]
    header = [*SETTING, "case", "answers", "same", "excused", "different"]
    header += ["tokens", "near-ties", "allowed"]
    return [
        "## The same tokens as plain decoding",
        _rule(environment, precision),
        table(header, rows, left=3),
        "\n".join(notes) if notes else "**No answer differs.**",
    ]


def _verdicts(groups: Mapping[Setting, Group]) -> Iterator[tuple[Setting, Column, _Verdict]]:
    for setting, group in groups.items():
        plain = by_prompt(plain_of(group))
        for column, answers in group.items():
            if column.method == PLAIN or not comparable(column.method, setting.temperature):
                continue
            verdict = _Verdict()
            for prompt, m in by_prompt(answers).items():
                if prompt in plain:
                    verdict.look(m, plain[prompt])
            if verdict.compared:
                yield setting, column, verdict


def _row(setting: Setting, column: Column, v: _Verdict, allowed: int | None) -> list[str]:
    counts = [v.compared, v.same, v.excused, len(v.different), v.tokens, v.excuses]
    return [
        *setting.cells,
        str(column),
        *map(str, counts),
        NOTHING if allowed is None else str(allowed),
    ]


def _notes(setting: Setting, column: Column, v: _Verdict, allowed: int | None) -> list[str]:
    out = []
    if allowed is not None and v.excuses > allowed:
        out.append(f"- **{column}, {setting}: more near-ties than allowed.**")
    if v.different:
        out.append(f"- **{column}, {setting}: different answers ({len(v.different)}):**")
        out += [f"  - {where}" for where in v.different[:_SHOWN]]
        if len(v.different) > _SHOWN:
            out.append(f"  - and {len(v.different) - _SHOWN} more")
    return out


def _first_difference(a: list[int], b: list[int]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _precision(environment: Mapping[str, Any]) -> Precision | None:
    """The margin rule of the run's dtype; None where the dtype is not known."""
    kind = getattr(torch, str(environment.get("dtype")), None)
    return PRECISIONS.get(kind) if isinstance(kind, torch.dtype) else None


def _allowed(precision: Precision, tokens: int) -> int:
    return max(1, -(-tokens // precision.tokens_per_excuse))


def _rule(environment: Mapping[str, Any], precision: Precision | None) -> str:
    if precision is None:
        return "The dtype of the run is not known, so the number of near-ties is not judged."
    return (
        f"In {environment['dtype']} a difference is excused where plain decoding's choice hung by "
        f"less than {precision.margin:g} (over the temperature): once per "
        f"{precision.tokens_per_excuse:,} tokens at most, rounded up."
    )
