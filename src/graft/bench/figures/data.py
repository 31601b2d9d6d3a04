"""Measurements in the groups that figures ask for.

A column is a method with its budget and its matrix (`graft.bench.grouping`). A figure that is not
about settings draws the main one, which has the most answers; one that is not about columns draws
the main column of each method likewise. It knows the style of each column, and not how a figure
looks.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

from graft.bench.figures.style import order_of, styles_for
from graft.bench.grouping import Column, Setting, column_of, grouped, plain_of, setting_of, tasks_of
from graft.bench.measurement import Measurement
from graft.bench.statistics import RESAMPLES, Estimate, Statistic, interval, pair

Series = dict[str, list[Measurement]]  # answers by label, in the order of legends


class Missing(Exception):
    """A figure cannot be drawn from these measurements; the message says what is not there."""


class Data:
    """All measurements of a run.

    Attributes:
        tasks: in the order of the measurements.
        groups: the answers by setting and column.
        setting: the main one.
        styles: of each label. A label is the method's name, with budget and matrix where they vary.
    """

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        self.tasks = tasks_of(measurements)
        self.groups = grouped(measurements)
        counts = Counter(map(column_of, measurements))
        self._main = _main_columns(counts)
        self._labels = _labels(counts.keys(), self._main)
        self.styles = styles_for({label: column.method for column, label in self._labels.items()})
        settings = Counter(map(setting_of, measurements))
        self.setting = min(settings, key=lambda s: (-settings[s], s), default=Setting(0.0, 1))

    def series(self, setting: Setting, *, main: bool = True) -> Series:
        """The columns of a setting, by label; `main`: one per method."""
        group = self.groups.get(setting, {})
        chosen = [c for c in self._labels if c in group and (not main or c in self._main)]
        return {self._labels[column]: group[column] for column in chosen}

    def plain(self, setting: Setting) -> list[Measurement]:
        """Plain decoding's answers; none if it was not run."""
        return plain_of(self.groups.get(setting, {}))

    def require_plain(self) -> None:
        """Raise Missing if nothing can be compared with plain decoding."""
        if not any(map(self.plain, self.groups)):
            raise Missing("plain decoding was not run, so there is no speed-up")


def estimate(
    own: Iterable[Measurement],
    statistic: Statistic,
    base: Iterable[Measurement] | None = None,
    *,
    macro: bool = False,
    resamples: int = RESAMPLES,
) -> Estimate:
    """A statistic of some answers of one column.

    `macro` and the pairing with `base` are those of `graft.bench.statistics`. Over all tasks
    figures show the mean over tasks, as reports do.
    """
    pairs = pair(own, base)
    return interval(pairs, statistic, macro=macro, resamples=resamples)


def value(
    own: Iterable[Measurement],
    statistic: Statistic,
    base: Iterable[Measurement] | None = None,
    *,
    macro: bool = False,
) -> float:
    """The statistic alone; NaN, which figures leave out, where there is none."""
    found = estimate(own, statistic, base, macro=macro, resamples=1).value
    return math.nan if found is None else found


def of_task(answers: Iterable[Measurement], task: str) -> list[Measurement]:
    return [m for m in answers if m.task == task]


def _main_columns(counts: Counter[Column]) -> set[Column]:
    """Of each method the column with the most answers, then the larger budget, then warm."""
    ascending = sorted(counts, key=lambda c: (counts[c], c.budget, c.matrix))
    return set({column.method: column for column in ascending}.values())


def _labels(columns: Collection[Column], main: set[Column]) -> dict[Column, str]:
    """A label per column, in the order of legends; of one policy the main columns first."""
    budgets: dict[str, set[int]] = defaultdict(set)
    matrices: dict[str, set[str]] = defaultdict(set)
    for column in columns:
        budgets[column.method].add(column.budget)
        matrices[column.method].add(column.matrix)
    labels = {}
    for c in sorted(columns, key=lambda c: (order_of(c.method)[0], c not in main, *c)):
        budget = f" K={c.budget}" if len(budgets[c.method]) > 1 else ""
        matrix = f" {c.matrix}" if len(matrices[c.method]) > 1 else ""
        labels[c] = f"{c.method}{budget}{matrix}"
    return labels
