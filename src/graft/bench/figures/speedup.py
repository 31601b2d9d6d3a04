"""Speed-up against tau: every method on every task, and over all answers, a panel per setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graft.bench.figures.data import Data, Missing, of_task, value
from graft.bench.figures.style import INK, WIDTH, Style, legend_below, new_figure
from graft.bench.grouping import PLAIN, Setting, tasks_of
from graft.bench.measurement import Measurement
from graft.bench.statistics import alone, speed_up, tau

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]  # tau, speed-up

COLUMNS = 3
DASHES = {"hf": (6, 2, 1, 2)}  # beside "hf-lookup"


def draw(data: Data) -> Figure:
    """A small marker per task, a large one for all answers; plain decoding is at (1, 1).

    Methods whose rounds are not known are lines at their speed-up.

    Raises:
        Missing: without plain decoding, or without another method.
    """
    data.require_plain()
    settings = [s for s in data.groups if _compares(data, s)]
    if not settings:
        raise Missing("no method can be compared with plain decoding on the same prompts")
    columns = min(COLUMNS, len(settings))
    rows = -(-len(settings) // columns)
    figure, axes = new_figure(
        "Speed-up and tokens per round"
        + (" (small: one task, large: all tasks)" if len(data.tasks) > 1 else ""),
        rows,
        columns,
        width=WIDTH,
        height=1.6 + (3.6 if columns == 1 else 2.6) * rows,
        sharex=True,
        sharey=True,
    )
    for ax, setting in zip(axes, settings, strict=False):
        _panel(ax, data, setting)
        ax.set_title(str(setting), weight="normal")
    for ax in axes[len(settings) :]:
        ax.set_axis_off()
    for number, ax in enumerate(axes[: len(settings)]):
        if number % columns == 0:
            ax.set_ylabel("speed-up\n(times plain decoding)")
        if number + columns >= len(settings):  # nothing below
            ax.set_xlabel("tau (tokens per round)")
            ax.tick_params(axis="x", labelbottom=True)
    legend_below(figure, axes)
    return figure


def _compares(data: Data, setting: Setting) -> bool:
    """Whether any method has a speed-up."""
    plain = data.plain(setting)
    others = [ms for ms in data.groups[setting].values() if ms[0].method != PLAIN]
    return any(not math.isnan(value(ms, speed_up, plain)) for ms in others)


def _panel(ax: Axes, data: Data, setting: Setting) -> None:
    ax.axhline(1, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
    ax.grid(True)
    plain = data.plain(setting)
    for label, answers in data.series(setting, main=False).items():
        tasks = tasks_of(answers) if answers[0].method != PLAIN else []
        points = [_point(of_task(answers, task), plain) for task in tasks]
        _series(ax, data.styles[label], label, points, _point(answers, plain, macro=True))


def _point(
    answers: Sequence[Measurement], plain: Sequence[Measurement], *, macro: bool = False
) -> Point:
    """tau and speed-up, both over the prompts that plain decoding was asked too."""
    own_tau = value(answers, alone(tau), plain, macro=macro)
    return own_tau, value(answers, speed_up, plain, macro=macro)


def _series(ax: Axes, style: Style, label: str, points: Sequence[Point], total: Point) -> None:
    if math.isnan(total[1]):
        return
    if math.isnan(total[0]):
        dashes = DASHES.get(label, (6, 2))
        ax.axhline(total[1], color=style.color, label=label, linestyle=(0, dashes))
        return
    marks = {**style.marks, "linestyle": "none"}
    if len(points) > 1:
        xs, ys = zip(*points, strict=True)
        ax.plot(xs, ys, **marks, markersize=4.5, alpha=0.55, zorder=2)
    ax.plot(
        *([total[0]], [total[1]]),
        **marks,
        markersize=11,
        markeredgecolor=INK if style.fill == "full" else style.color,
        markeredgewidth=1.0 if style.fill == "full" else 2.4,
        zorder=3,
        label=label,
    )
