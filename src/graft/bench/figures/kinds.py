"""Kinds of the retrieved tokens that were accepted: identifiers, punctuation, indentation, ..."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from graft.bench.figures.data import Data, Missing
from graft.bench.figures.style import (
    INK,
    WIDTH,
    legend_below,
    new_figure,
    order_of,
    styles_for,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kinds = Mapping[str, Mapping[str, int]]  # label of a case: tokens per kind


def draw(data: Data, kinds: Kinds) -> Figure:
    """Each kind's share of the accepted retrieved tokens, the most frequent kind first.

    Raises:
        Missing: if no token was counted.
    """
    ordered = sorted(kinds, key=lambda label: order_of(label.split()[0]))
    cases = {label: kinds[label] for label in ordered if sum(kinds[label].values())}
    if not cases:
        raise Missing("no kinds of tokens were counted")
    looks = {**styles_for({label: label for label in cases}), **data.styles}
    totals: dict[str, int] = {}
    for counts in cases.values():
        for kind, count in counts.items():
            totals[kind] = totals.get(kind, 0) + count
    order = sorted(totals, key=lambda kind: (-totals[kind], kind))
    height = 0.8 / len(cases)
    size = 1.4 + len(order) * max(0.34, 0.17 * len(cases))
    title = "Kinds of retrieved tokens that were accepted in code tasks"
    figure, (ax,) = new_figure(title, 1, 1, width=WIDTH, height=size)
    for number, (label, counts) in enumerate(cases.items()):
        total = sum(counts.values())
        shares = [100 * counts.get(kind, 0) / total for kind in order]
        places = [i + (number - (len(cases) - 1) / 2) * height for i in range(len(order))]
        name = f"{label} ({total:,} tokens)"
        bars = ax.barh(places, shares, height, **looks[label].bars, label=name)
        ax.bar_label(bars, fmt="%.0f", padding=3, size=8.5, color=INK)
    ax.set_yticks(range(len(order)), order)
    ax.set_ylim(len(order) - 0.45, -0.55)
    ax.tick_params(axis="y", length=0)
    ax.grid(True, axis="x")
    ax.set_xlabel("part of a method's accepted retrieved tokens (all of them: 100 %)")
    legend_below(figure, [ax], columns=2)
    return figure
