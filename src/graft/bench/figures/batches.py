"""Latency, and what grafting costs, by the number of requests that decode together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graft.bench.figures.data import Data, Missing, value
from graft.bench.figures.style import WIDTH, legend_below, new_figure
from graft.bench.measurement import Measurement
from graft.bench.statistics import alone, mean_latency

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def milliseconds_per_round(answers: Sequence[Measurement], part: str) -> float | None:
    """Time of "graft" or of "lookup" per round; a round serves its whole batch.

    None without rounds that looked anything up.
    """
    rounds = sum(m.rounds for m in answers)
    if not rounds or not any(m.lookups for m in answers):
        return None
    lookup = part == "lookup"
    return 1e3 * sum(m.lookup_seconds if lookup else m.seconds[part] for m in answers) / rounds


def draw(data: Data) -> Figure:
    """Mean latency, and milliseconds of grafting and of the lookup per round.

    The lookup is part of grafting on a CPU and runs beside drafting on a device with streams, so
    the two are never added.

    Raises:
        Missing: with one batch alone.
    """
    settings = [s for s in data.groups if s.temperature == data.setting.temperature]
    if len(settings) < 2:
        raise Missing(f"batch {data.setting.batch} alone was measured")
    figure, axes = new_figure(
        f"Latency and cost of grafting by batch (temperature {data.setting.temperature:g})",
        1,
        2,
        width=WIDTH,
        height=4.2,
    )
    for label in data.styles:
        found = {s.batch: data.series(s)[label] for s in settings if label in data.series(s)}
        marks = data.styles[label].marks
        at = [[s.batch for s in settings].index(batch) for batch in found]
        means = [value(ms, alone(mean_latency)) for ms in found.values()]
        if found:
            axes[0].plot(at, means, **marks, label=label)
        _cost(axes[1], at, [milliseconds_per_round(ms, "graft") for ms in found.values()], marks)
        thin = {**marks, "linestyle": (0, (1, 1.5)), "markersize": 4, "linewidth": 1.0}
        _cost(axes[1], at, [milliseconds_per_round(ms, "lookup") for ms in found.values()], thin)
    for ax in axes:
        ax.set_xticks(range(len(settings)), [str(s.batch) for s in settings])
        ax.set_xlabel("batch (requests decoding together)")
        ax.set_ylim(0, None)
        ax.grid(True, axis="y")
    axes[0].set_ylabel("mean latency of an answer (s)")
    axes[0].set_title("Latency", weight="normal")
    axes[1].set_ylabel("time per round (ms)")
    axes[1].set_title("Grafting; dotted: the lookup alone", weight="normal")
    legend_below(figure, [axes[0]])
    return figure


def _cost(
    ax: Axes, at: Sequence[int], values: Sequence[float | None], marks: Mapping[str, Any]
) -> None:
    known = [(x, y) for x, y in zip(at, values, strict=True) if y is not None]
    if known:
        xs, ys = zip(*known, strict=True)
        ax.plot(xs, ys, **marks)
