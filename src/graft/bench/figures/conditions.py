"""tau under other conditions: length of the prompt, temperature, progress of the answer."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from graft.bench.buckets import bucket, bucket_name, bucket_range
from graft.bench.figures.data import (
    Data,
    Missing,
    estimate,
    value,
)
from graft.bench.figures.style import WIDTH, legend_below, new_figure, whiskers
from graft.bench.measurement import Measurement
from graft.bench.statistics import alone, quantiles, tau
from graft.bench.tables import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIRST_CONTEXT = 128  # tokens: buckets of prompts are 0-127, 128-255, 256-511, ...
FIRST_POSITION = 16  # tokens: likewise of positions in an answer
SPREAD = (0.1, 0.9)  # of tau over prompts
TAU = "tau (tokens per round)"
ENOUGH = 100  # answers from which on one in a hundred is one


def draw_context(data: Data) -> Figure:
    """tau by the prompt's length, with 95 % bootstrap intervals.

    Raises:
        Missing: without rounds, or with prompts of one bucket alone.
    """
    series = {n: ms for n, ms in data.series(data.setting).items() if _speculates(ms)}
    starts = bucket_range([m.prompt_tokens for ms in series.values() for m in ms], FIRST_CONTEXT)
    if len(starts) < 2:
        raise Missing("no rounds after prompts of different lengths")
    figure, (ax,) = new_figure(
        f"Tokens per round by prompt length ({data.setting})", 1, 1, width=WIDTH, height=4.4
    )
    for number, (label, answers) in enumerate(series.items()):
        groups = defaultdict(list)
        for m in answers:
            groups[bucket(m.prompt_tokens, FIRST_CONTEXT)].append(m)
        found = [(s, estimate(groups[s], alone(tau))) for s in starts if s in groups]
        at = [starts.index(s) + _dodge(number, len(series)) for s, _ in found]
        values = [math.nan if e.value is None else e.value for _, e in found]
        ax.plot(at, values, **data.styles[label].marks, label=label)
        whiskers(ax.vlines, at, [(e.low, e.high) for _, e in found], data.styles[label].color)
    prompts = _prompts(m for answers in series.values() for m in answers)
    names = [f"{bucket_name(s, FIRST_CONTEXT)}\n{counted(prompts[s], 'prompt')}" for s in starts]
    ax.set_xticks(range(len(starts)), names)
    ax.set_title("Vertical lines: 95 % intervals over prompts", weight="normal")
    _finish(ax, "prompt length (tokens)", TAU)
    legend_below(figure, [ax])
    return figure


def draw_temperature(data: Data) -> Figure:
    """tau by temperature with its spread over prompts, and the P99 of latency; where a case has
    fewer than 100 answers, the slowest one's.

    Raises:
        Missing: with one temperature alone, or without rounds.
    """
    settings = [s for s in data.groups if s.batch == data.setting.batch]
    if len(settings) < 2:
        raise Missing(f"temperature {data.setting.temperature:g} alone was measured")
    series = {
        label: {s: data.series(s)[label] for s in settings if label in data.series(s)}
        for label in data.styles
    }
    series = {n: by for n, by in series.items() if by}
    speculating = {n: by for n, by in series.items() if any(map(_speculates, by.values()))}
    if not speculating:
        raise Missing("no rounds that speculate")
    figure, axes = new_figure(
        f"Tokens per round and latency by temperature (batch {data.setting.batch})",
        1,
        2,
        width=WIDTH,
        height=4.2,
    )
    for number, (label, by_setting) in enumerate(speculating.items()):
        at = [settings.index(s) + _dodge(number, len(speculating)) for s in by_setting]
        values = [value(ms, alone(tau)) for ms in by_setting.values()]
        axes[0].plot(at, values, **data.styles[label].marks, label=label)
        spread = [quantiles(_taus(ms), SPREAD) for ms in by_setting.values()]
        whiskers(axes[0].vlines, at, spread, data.styles[label].color)
    enough = min(len(ms) for by in series.values() for ms in by.values()) >= ENOUGH
    for label, by_setting in series.items():
        slow = [
            quantiles([m.latency_seconds for m in ms], [0.99 if enough else 1])[0]
            for ms in by_setting.values()
        ]
        at = [settings.index(s) for s in by_setting]
        axes[1].plot(at, [v or math.nan for v in slow], **data.styles[label].marks, label=label)
    for ax in axes:
        ax.set_xticks(range(len(settings)), [f"{s.temperature:g}" for s in settings])
    _finish(axes[0], "temperature", TAU)
    axes[0].set_title("Vertical lines: the middle 80 %", weight="normal")
    _finish(axes[1], "temperature", "P99 latency (s)" if enough else "latency (s)")
    title = "Slowest 1 % of answers" if enough else "Slowest answer"
    axes[1].set_title(title, weight="normal")
    legend_below(figure, [axes[1]])
    return figure


def draw_course(data: Data) -> Figure:
    """tau over an answer: what a matrix has learnt shows here.

    Raises:
        Missing: without a matrix, or with answers of one bucket alone.
    """
    series = {
        label: tau_by_position(answers)
        for label, answers in data.series(data.setting, main=False).items()
        if answers[0].matrix != "none"
    }
    starts = bucket_range([s for by in series.values() for s in by], FIRST_POSITION)
    if len(starts) < 2:
        raise Missing("no rounds of methods with a matrix, or answers too short")
    figure, (ax,) = new_figure(
        f"Tokens per round over an answer ({data.setting})", 1, 1, width=WIDTH, height=4.4
    )
    for label, by_start in series.items():
        at = [starts.index(s) for s in sorted(by_start)]
        values = [by_start[s] for s in sorted(by_start)]
        ax.plot(at, values, **data.styles[label].marks, label=label)
    ax.set_xticks(range(len(starts)), [bucket_name(s, FIRST_POSITION) for s in starts])
    _finish(ax, "position in the answer at which a round begins (tokens)", TAU)
    legend_below(figure, [ax])
    return figure


def tau_by_position(answers: Sequence[Measurement]) -> dict[int, float]:
    """tau of the rounds that begin in each bucket; the first token belongs to no round."""
    sizes: dict[int, list[int]] = defaultdict(list)
    for m in answers:
        position = 1
        for size in m.round_tokens:
            sizes[bucket(position, FIRST_POSITION)].append(size)
            position += size
    return {start: sum(found) / len(found) for start, found in sizes.items()}


def _speculates(answers: Sequence[Measurement]) -> bool:
    return any(m.proposed_draft + m.proposed_retrieved and m.rounds for m in answers)


def _prompts(answers: Iterable[Measurement]) -> Counter[int]:
    """Prompts per bucket; one with several turns is in the buckets of all of them."""
    found = {(bucket(m.prompt_tokens, FIRST_CONTEXT), m.task, m.id) for m in answers}
    return Counter(start for start, *_ in found)


def _taus(answers: Sequence[Measurement]) -> list[float]:
    return [m.tau for m in answers if m.rounds]


def _dodge(number: int, count: int) -> float:
    """A small shift, so that intervals of methods stand side by side."""
    return (number - (count - 1) / 2) * min(0.04, 0.2 / count)


def _finish(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    low, high = 1 if y == TAU else 0, ax.get_ylim()[1]  # 1: nothing was accepted
    ax.set_ylim(low, high + 0.03 * (high - low))  # the highest marker stays whole
    ax.grid(True, axis="y")
