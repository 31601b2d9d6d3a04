"""How every figure looks: one style per method, and the way to a file.

A method has one colour, one marker and one hatch in all figures, so that they can be read in grey
and by the colour-blind; its second and third variant (another budget, another matrix) differ in
fill and line. Colours follow Okabe and Ito.

matplotlib is an extra: it is imported when a figure is made, never with this module. No global
state of it is changed. What is drawn is not known here.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graft.atomic import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#333333"
FAINT = "#D9D9D9"
WIDTH = 7.2  # inches; a figure is shown about as wide as it is made
DPI = 150

# In the order of legends: colour, marker, hatch.
LOOKS: Mapping[str, tuple[str, str, str]] = {
    "graft": ("#0072B2", "o", ""),
    "graft-unpruned": ("#7CC4EE", "v", "...."),
    "pruned": ("#009E73", "^", "////"),
    "dense": ("#E69F00", "s", "\\\\\\\\"),
    "eagle3": ("#D55E00", "D", "----"),
    "retrieval": ("#DDA0C0", "P", "xxxx"),
    "lookup": ("#8A8A2B", "X", "||||"),
    "plain": ("#555555", "p", "++++"),
    "hf-lookup": ("#6B4C9A", "<", "////...."),
    "hf": ("#A6A6A6", "h", "oo"),
}
SPARE = (
    ("#B3446C", ">", "\\\\\\\\...."),
    ("#44AA99", "d", "xx.."),
    ("#C9B84C", "*", "//"),
    ("#1B5E20", "H", "--.."),
)
# Of variants: marker, line, and how much white is in bars.
FILLS = (("full", "-", 0.0), ("none", "--", 0.6), ("left", ":", 0.35), ("top", "-.", 0.8))

RC: Any = {
    "font.size": 10.0,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same everywhere
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "figure.titlesize": 11.5,
    "figure.titleweight": "bold",
    "axes.labelsize": 10.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 6.0,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "graft",  # the same numbers give the same file
}


@dataclass(frozen=True)
class Style:
    """How one series is drawn, in every figure."""

    color: str
    marker: str
    hatch: str
    fill: str = "full"
    line: str = "-"
    white: float = 0.0

    @property
    def marks(self) -> dict[str, Any]:
        """Arguments for lines with markers."""
        return {
            "color": self.color,
            "marker": self.marker,
            "fillstyle": self.fill,
            "markerfacecoloralt": "white",
            "linestyle": self.line,
        }

    @property
    def bars(self) -> dict[str, Any]:
        """Arguments for bars."""
        channels = [int(self.color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        face = tuple(c + (1 - c) * self.white for c in channels)
        return {"facecolor": face, "hatch": self.hatch, "edgecolor": INK, "linewidth": 0.6}


def order_of(method: str) -> tuple[int, str]:
    """Sort key: where legends name a method ("model:graft" beside "graft")."""
    policy = method.rpartition(":")[2]
    names = list(LOOKS)
    return (names.index(policy) if policy in LOOKS else len(names), method)


def styles_for(variants: Mapping[str, str]) -> dict[str, Style]:
    """A style per label.

    Args:
        variants: the method of every label; labels of one policy become variants of one look.
    """
    strange = sorted({m.rpartition(":")[2] for m in variants.values()} - LOOKS.keys())
    looks = {**LOOKS, **{name: SPARE[i % len(SPARE)] for i, name in enumerate(strange)}}
    seen: dict[str, int] = {}
    styles = {}
    for label, method in variants.items():
        policy = method.rpartition(":")[2]
        number = seen[policy] = seen.get(policy, -1) + 1
        styles[label] = Style(*looks[policy], *FILLS[number % len(FILLS)])
    return styles


def rc_context() -> Any:
    """The context in which figures are made and saved.

    Raises:
        ValueError: if matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError(
            "figures need matplotlib, which is not installed: pip install 'graft-decoding[bench]'"
        ) from error
    return matplotlib.rc_context({**matplotlib.rcParamsDefault, **RC})


def new_figure(
    title: str, rows: int, columns: int, *, width: float, height: float, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes, row by row. Sizes are inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    figure.suptitle(title, x=0.01, ha="left")
    return figure, [ax for row in axes for ax in row]


def legend_below(figure: Figure, axes: Sequence[Axes], *, columns: int = 4) -> None:
    """One legend for all axes, each label once, under the figure, in the order of methods from left
    to right. Labels begin with a method."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    handles = dict(sorted(handles.items(), key=lambda entry: order_of(entry[0].split()[0])))
    # matplotlib fills column by column.
    handles = {k: handles[k] for i in range(columns) for k in list(handles)[i::columns]}
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower left",
            ncols=min(columns, len(handles)),
            handlelength=2.2,
            columnspacing=1.4,
        )


def whiskers(
    lines: Callable[..., Any],
    at: Sequence[float],
    ends: Sequence[Sequence[float | None]],
    color: str = INK,
) -> None:
    """Thin intervals with a light rim, so that they show on bars too.

    Args:
        lines: `hlines` or `vlines` of axes.
        ends: lower and upper, None where there is no interval.
    """
    known = [(x, low, high) for x, (low, high) in zip(at, ends, strict=True) if low is not None]
    if known:
        lines(*zip(*known, strict=True), color="white", linewidth=2.3, zorder=1.9)
        lines(*zip(*known, strict=True), color=color, linewidth=1.3, zorder=1.95)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.svg, each all or nothing."""
    paths = []
    for kind, about in (("png", {}), ("svg", {"Date": None})):
        data = io.BytesIO()
        figure.savefig(data, format=kind, dpi=DPI, metadata=about)
        paths.append(folder / f"{name}.{kind}")
        write_whole(paths[-1], data.getvalue())
    return paths
