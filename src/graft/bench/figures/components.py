"""What each part of Graft is worth: the whole, without pruning, without retrieval, each alone."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graft.bench.figures.data import Data, Missing, Series, estimate, of_task, value
from graft.bench.figures.style import INK, WIDTH, legend_below, new_figure, whiskers
from graft.bench.grouping import tasks_of
from graft.bench.measurement import Measurement
from graft.bench.statistics import Statistic, alone, speed_up, tau

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Policies and what they are: Graft with a part taken away.
PARTS = {
    "graft": "everything",
    "graft-unpruned": "without pruning",
    "pruned": "without retrieval",
    "dense": "drafting alone",
    "eagle3": "drafting alone",
    "retrieval": "retrieval alone",
}
ALL = "all tasks"


def draw(data: Data) -> Figure:
    """Bars of speed-up and of tau per task, with 95 % bootstrap intervals over prompts.

    Of several drafters the one with the most of these methods is drawn. Without plain decoding
    there is tau alone.

    Raises:
        Missing: with fewer than two of the methods.
    """
    plain = data.plain(data.setting)
    series = {
        label: answers
        for label, answers in _components(data).items()
        if not math.isnan(value(answers, alone(tau), plain or None))
    }
    if len(series) < 2:
        raise Missing("no rounds of two of graft, graft-unpruned, pruned, dense and retrieval")
    tasks = tasks_of(m for answers in series.values() for m in answers)
    rows = [*tasks, *([ALL] if len(tasks) > 1 else [])]
    figure, axes = new_figure(
        f"The parts of Graft ({data.setting})",
        1,
        2 if plain else 1,
        width=WIDTH,
        height=1.5 + len(rows) * max(0.42, 0.13 * len(series) + 0.08),
        sharey=True,
    )
    _panel(axes[-1], data, series, rows, alone(tau), plain or None)
    axes[-1].set_xlabel("tau (tokens per round)")
    if plain:
        _panel(axes[0], data, series, rows, speed_up, plain)
        axes[0].set_xlabel("speed-up (times plain decoding)")
        axes[0].axvline(1, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
    axes[0].set_title("Lines: 95 % intervals over prompts", weight="normal")
    axes[0].set_yticks(range(len(rows)), [textwrap.fill(row, 18) for row in rows])
    axes[0].set_ylim(len(rows) - 0.45, -0.55)
    if ALL in rows:
        axes[0].get_yticklabels()[-1].set_fontweight("bold")
    legend_below(figure, axes, columns=2)
    return figure


def _components(data: Data) -> Series:
    """The methods by label: retrieval, and those of one drafter."""
    series = data.series(data.setting)
    names = {label: ms[0].method.rpartition(":") for label, ms in series.items()}
    drafting = [d for d, _, policy in names.values() if policy in PARTS and policy != "retrieval"]
    best = max(drafting, key=lambda d: (drafting.count(d), d == ""), default="")
    return {
        label: series[label]
        for label, (drafter, _, policy) in names.items()
        if policy in PARTS and (drafter == best or policy == "retrieval")
    }


def _panel(
    ax: Axes,
    data: Data,
    series: Series,
    rows: Sequence[str],
    statistic: Statistic,
    base: Sequence[Measurement] | None,
) -> None:
    height = 0.84 / len(series)
    for number, (label, answers) in enumerate(series.items()):
        part = PARTS[answers[0].method.rpartition(":")[2]]
        shift = (number - (len(series) - 1) / 2) * height
        estimates = [
            estimate(answers, statistic, base, macro=True)
            if row == ALL
            else estimate(of_task(answers, row), statistic, base)
            for row in rows
        ]
        places = [i + shift for i in range(len(rows))]
        values = [math.nan if e.value is None else e.value for e in estimates]
        ax.barh(places, values, height, **data.styles[label].bars, label=f"{label} ({part})")
        whiskers(ax.hlines, places, [(e.low, e.high) for e in estimates])
    ax.tick_params(axis="y", length=0)
    ax.grid(True, axis="x")
