"""Compare: two files of results, case by case on the prompts that both have.

Ratios are B over A, with the paired bootstrap of `statistics`. Two files are two runs: what
slowed one of them as a whole (another load, another clock) is in the ratio and not in its
interval; to compare methods run them side by side in one file.

Invariant: answers are paired by case and prompt, a name with a length; every answer without a
partner is named or counted. It measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from graft.bench.grouping import SETTING, Column, Setting, by_prompt, grouped, prompt_of
from graft.bench.measurement import Measurement
from graft.bench.results import Results, differences
from graft.bench.statistics import (
    Estimate,
    interval,
    mean_latency,
    pair,
    ratio,
    tau,
    tokens_per_second,
)
from graft.bench.tables import counted, escaped, table, with_range

__all__ = ["compare"]

_SHOWN: Final = 10  # prompts that are listed
# Differences in these make times, or tokens, of two files incomparable.
_MATTERS: Final = (
    "prompts_hash",
    "settings max_new_tokens",
    "settings matrix",
    "settings engine",
    "model",
    "drafters",
    "device",
    "threads",
    "cores",
    "dtype",
    "weights",
    "versions",
)

_Case = tuple[Setting, Column]


class _Compared(NamedTuple):
    """One case in both files: B over A."""

    speed: Estimate
    tau: Estimate
    latency: Estimate
    answers: int
    same: int  # with the same tokens
    others: int  # left out: their prompts share a name and have other lengths


def compare(a: Results, b: Results) -> str:
    """What B is, compared with A, as Markdown.

    Raises:
        ValueError: if no case has a prompt in both.
    """
    ours, theirs = _cases(a), _cases(b)
    both = {case: _compared(ours[case], theirs[case]) for case in ours if case in theirs}
    others = sum(found.others for found in both.values())
    both = {case: found for case, found in both.items() if found.answers}
    if not both:
        lengths = "; prompts of one name have other lengths in the two" if others else ""
        raise ValueError(
            "nothing to compare: no case of the one has a prompt in common with the same case of "
            f"the other; the first has {_told(ours)}, the second {_told(theirs)}{lengths}"
        )
    parts = [
        "# B compared with A",
        *_warnings(a, b),
        *_doubts(both, others),
        _table(both),
        *_footnotes(both),
        *_alone(ours, theirs),
    ]
    return "\n\n".join(parts) + "\n"


def _verdict(ratio_of_rates: Estimate) -> str:
    """What the interval of B's tokens per second over A's says of B."""
    if ratio_of_rates.low is None or ratio_of_rates.high is None:
        return "cannot be said"
    if ratio_of_rates.low > 1:
        return "B is faster"
    return "B is slower" if ratio_of_rates.high < 1 else "no difference found"


def _cases(results: Results) -> dict[_Case, list[Measurement]]:
    groups = grouped(results.measurements)
    return {
        (setting, column): m for setting, group in groups.items() for column, m in group.items()
    }


def _compared(a: list[Measurement], b: list[Measurement]) -> _Compared:
    before, after = by_prompt(a), by_prompt(b)
    common = {prompt: (before[prompt], m) for prompt, m in after.items() if prompt in before}
    others = {p for p, (x, y) in common.items() if x.prompt_tokens != y.prompt_tokens}
    own, base = ([m for m in side if prompt_of(m) not in others] for side in (b, a))
    pairs = pair(own, base)
    same = sum(x.token_ids == y.token_ids for p, (x, y) in common.items() if p not in others)
    rate, rounds, latency = (
        interval(pairs, ratio(measure)) for measure in (tokens_per_second, tau, mean_latency)
    )
    return _Compared(rate, rounds, latency, pairs.answers, same, len(others))


def _doubts(both: dict[_Case, _Compared], others: int) -> list[str]:
    """What must be known before any verdict."""
    out = []
    if others:
        out.append(
            f"**Left out: {counted(others, 'pair')} of answers to prompts that share a name and "
            "have other lengths.**"
        )
    answers, same = _sums(both)
    if 2 * same < answers:
        out.append(
            f"**Most answers are not the same ({answers - same} of {answers}): the verdicts are "
            "on other texts.**"
        )
    return out


def _sums(both: dict[_Case, _Compared]) -> tuple[int, int]:
    return sum(c.answers for c in both.values()), sum(c.same for c in both.values())


def _table(both: dict[_Case, _Compared]) -> str:
    rows = [
        [
            *setting.cells,
            str(column),
            _verdict(c.speed),
            with_range(c.speed, 3),
            with_range(c.tau, 3),
            with_range(c.latency, 3),
            str(c.speed.items),
            f"{c.same} of {c.answers}",
        ]
        for (setting, column), c in both.items()
    ]
    header = [*SETTING, "case", "verdict", "tokens/s B/A", "tau B/A", "latency B/A"]
    return table([*header, "prompts", "same answers"], rows, left=4)


def _footnotes(both: dict[_Case, _Compared]) -> list[str]:
    out = [
        "Ratios are B over A with 95 % bootstrap intervals over prompts; for tokens/s more is "
        "better, for latency less. The verdict is whether the interval of tokens/s excludes 1. "
        "What slowed a whole run is in no interval."
    ]
    if len(both) > 1:
        out.append(
            f"{len(both)} cases are compared: of twenty cases without a difference, one is "
            "expected to be called faster or slower."
        )
    answers, same = _sums(both)
    if same < answers:
        out.append(
            "**Some answers are not the same: their times are of other tokens, and their lengths "
            "may differ.**"
        )
    return out


def _warnings(a: Results, b: Results) -> list[str]:
    changed = {
        name: pair_
        for name, pair_ in differences(a.environment, b.environment).items()
        if name.startswith(_MATTERS)
    }
    out = []
    if "prompts_hash" in changed:
        out.append("**A and B were not run on the same prompts; those of both are compared.**")
    if changed:
        told = [f"- {name}: A {_said(one)}, B {_said(two)}" for name, (one, two) in changed.items()]
        out.append("\n".join(["**A and B were not run under the same conditions:**", "", *told]))
    for name, results in (("A", a), ("B", b)):
        if results.broken is not None:
            out.append(f"Line {results.broken} of {name} was half written; left out.")
        if any(differences(results.environments[0], e) for e in results.environments[1:]):
            out.append(f"**{name} was added to under other settings; its last ones are compared.**")
    return out


def _said(value: Any) -> str:
    return "none" if value is None else str(value)


def _alone(
    ours: dict[_Case, list[Measurement]], theirs: dict[_Case, list[Measurement]]
) -> list[str]:
    """What only one of the files holds."""
    out = []
    for name, one, other in (("A", ours, theirs), ("B", theirs, ours)):
        missing = [case for case in one if case not in other]
        if missing:
            out.append(f"Cases only in {name}: {_told(missing)}.")
        for case in one:
            if case in other:
                rest = by_prompt(one[case]).keys() - by_prompt(other[case]).keys()
                out += _listed(f"{case[1]}, {case[0]}: prompts only in {name}", sorted(rest))
    return out


def _listed(what: str, prompts: Sequence[tuple[str, str, int, int]]) -> list[str]:
    if not prompts:
        return []
    lines = [
        f"- {escaped(task)} {escaped(name)} turn {turn} seed {seed}"
        for task, name, turn, seed in prompts[:_SHOWN]
    ]
    if len(prompts) > _SHOWN:
        lines.append(f"- and {len(prompts) - _SHOWN} more")
    return ["\n".join([f"{what} ({len(prompts)}):", "", *lines])]


def _told(cases: Iterable[_Case]) -> str:
    return "; ".join(f"{column} at {setting}" for setting, column in cases) or "no case"
