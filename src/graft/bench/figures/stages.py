"""Where accepted nodes come from: by stage and source, and how deep rounds go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from graft.bench.figures.data import Data, Missing
from graft.bench.figures.style import WIDTH, legend_below, new_figure
from graft.bench.measurement import Measurement
from graft.pruning import stage_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Round(NamedTuple):
    """A round, with what it accepted before trimming."""

    stage: str
    proposed_draft: int
    proposed_retrieved: int
    accepted_draft: int
    accepted_retrieved: int


def rounds_of(m: Measurement) -> Iterator[Round]:
    """Rounds with what was accepted by source; none if the sources are not known.

    The first token belongs to no round. Of a trimmed round, the last, the answer does not hold all
    tokens: it accepted what the others did not.
    """
    if not m.sources:
        return
    at, left = 1, [m.accepted_draft, m.accepted_retrieved]
    parts = zip(m.round_tokens, m.round_stages, m.round_draft, m.round_retrieved, strict=True)
    for size, stage, draft, retrieved in parts:
        letters = m.sources[at : at + size]
        at += size
        found = [letters.count("d"), letters.count("r")] if at <= len(m.sources) else left
        left = [a - b for a, b in zip(left, found, strict=True)]
        yield Round(stage, draft, retrieved, *found)


def accepted_ratios(answers: Iterable[Measurement], source: str) -> dict[str, float]:
    """Accepted over proposed nodes of a source, per stage that proposed any."""
    proposed: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for r in (r for m in answers for r in rounds_of(m)):
        drafted = source == "draft"
        proposed[r.stage] += r.proposed_draft if drafted else r.proposed_retrieved
        accepted[r.stage] += r.accepted_draft if drafted else r.accepted_retrieved
    return {stage: accepted[stage] / count for stage, count in proposed.items() if count}


def stage_shares(answers: Iterable[Measurement]) -> dict[str, float]:
    """Share of all rounds, per stage."""
    rounds = Counter(stage for m in answers for stage in m.round_stages)
    return {stage: count / rounds.total() for stage, count in rounds.items()}


def draw(data: Data) -> Figure:
    """Accepted ratio of draft and of retrieved nodes, and the share of rounds, by stage.

    Raises:
        Missing: without rounds whose sources are known, or without draft nodes.
    """
    series = {n: ms for n, ms in data.series(data.setting).items() if _proposes(ms)}
    stages = sorted(
        {s for ms in series.values() for m in ms for s in m.round_stages}, key=stage_order
    )
    if not series:
        raise Missing("no rounds with the source of their tokens")
    if not any(r.proposed_draft for ms in series.values() for m in ms for r in rounds_of(m)):
        raise Missing("no method drafts, so there are no stages")
    title = f"Accepted nodes by stage and source ({data.setting})"
    figure, axes = new_figure(title, 3, 1, width=WIDTH, height=7.4, sharex=True)
    for ax, source in zip(axes, ("draft", "retrieved"), strict=False):
        _bars(ax, data, {n: accepted_ratios(ms, source) for n, ms in series.items()}, stages)
        ax.set_title(f"{source} nodes".capitalize(), weight="normal")
        ax.set_ylabel("accepted nodes\n(% of proposed)")
    _bars(axes[2], data, {n: stage_shares(ms) for n, ms in series.items()}, stages)
    axes[2].set_title("Rounds", weight="normal")
    axes[2].set_ylabel("rounds (%)")
    axes[2].set_xlabel("stage: draft steps after which drafting stopped")
    legend_below(figure, axes)
    return figure


def draw_depth(data: Data) -> Figure:
    """Share of rounds that accepted at least d nodes.

    Raises:
        Missing: without rounds that accepted anything.
    """
    accepted = {
        label: [n - 1 for m in chosen for n in m.round_tokens]
        for label, chosen in data.series(data.setting).items()
    }
    accepted = {label: counts for label, counts in accepted.items() if any(counts)}
    if not accepted:
        raise Missing("no rounds that accepted a node")
    deepest = max(max(counts) for counts in accepted.values())
    depths = range(1, deepest + 1)
    figure, (ax,) = new_figure(
        f"Depth reached by rounds ({data.setting})", 1, 1, width=WIDTH, height=4.4
    )
    for label, counts in accepted.items():
        shares = [100 * sum(n >= d for n in counts) / len(counts) for d in depths]
        ax.plot(depths, shares, **data.styles[label].marks, label=label)
    ax.set_ylim(0, None)
    ax.grid(True, axis="y")
    ax.set_xticks(range(1, deepest + 1, 1 + deepest // 16))
    ax.set_xlabel("depth d")
    ax.set_ylabel("rounds that accepted at least d nodes (%)")
    legend_below(figure, [ax])
    return figure


def _proposes(answers: Sequence[Measurement]) -> bool:
    return any(r.proposed_draft + r.proposed_retrieved for m in answers for r in rounds_of(m))


def _bars(
    ax: Axes, data: Data, shares: Mapping[str, Mapping[str, float]], stages: Sequence[str]
) -> None:
    """Bars per stage, side by side, without gaps for methods that never stop there."""
    width = min(0.3, 0.84 / len(shares))
    for at, stage in enumerate(stages):
        here = [(label, s[stage]) for label, s in shares.items() if stage in s]
        for i, (label, share) in enumerate(here):
            place = at + (i - (len(here) - 1) / 2) * width
            ax.bar(place, 100 * share, width, **data.styles[label].bars, label=label)
    ax.set_xticks(range(len(stages)), stages)
    ax.tick_params(axis="x", length=0, labelbottom=True)
    ax.grid(True, axis="y")
