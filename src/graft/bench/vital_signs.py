"""Vitals of every case of a benchmark, from its lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graft.bench.grouping import Column, Setting, grouped, plain_of
from graft.bench.measurement import Measurement
from graft.bench.methods import OUTSIDE, split_method
from graft.bench.statistics import interval, pair, ratio, tokens_per_second
from graft.metrics import LAPS
from graft.vitals import COUNTS, Vitals


def vitals_of_cases(measurements: Iterable[Measurement]) -> list[Vitals]:
    """One per case of a policy of ours that has rounds with trees."""
    groups = grouped(measurements)
    speedups = {
        (setting, column): _speedup(answers, plain_of(group))
        for setting, group in groups.items()
        for column, answers in group.items()
    }
    return [
        _vitals(setting, column, answers, speedups)
        for setting, group in groups.items()
        for column, answers in group.items()
        if column.method not in (*OUTSIDE, "plain")
    ]


def _vitals(
    setting: Setting,
    column: Column,
    answers: Sequence[Measurement],
    speedups: dict[tuple[Setting, Column], float | None],
) -> Vitals:
    _, policy, _ = split_method(column.method)
    by_batch = {
        s.batch: value
        for (s, c), value in speedups.items()
        if c == column and s.temperature == setting.temperature and value is not None
    }
    return Vitals(
        f"{column}, {setting}",
        policy,
        column.budget,
        setting.temperature,
        {name: sum(getattr(m, name) for m in answers) for name in COUNTS},
        [stage for m in answers for stage in m.round_stages],
        [tokens for m in answers for tokens in m.round_tokens],
        {lap: sum(m.seconds.get(lap, 0.0) for m in answers) for lap in LAPS},
        speedups[setting, column],
        by_batch,
        len(answers),
        sum(m.looping for m in answers),
    )


def _speedup(answers: Sequence[Measurement], plain: Sequence[Measurement]) -> float | None:
    if not plain:
        return None
    return interval(pair(answers, plain), ratio(tokens_per_second), resamples=1).value
