"""Tables: numbers as text, in Markdown whose columns line up in a terminal.

It knows no results.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from graft.bench.statistics import Estimate

NOTHING = "-"  # there is no such number


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A Markdown table; the first `left` columns are flush left, the others flush right."""
    lines = [[_clean(cell) for cell in row] for row in (header, *rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(header))]
    rule = ["-" * w if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    head, *body = [[_pad(c, w, i < left) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
                   for line in lines]  # fmt: skip
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *body))


def escaped(text: str) -> str:
    """A name or another text of a user's, on one line and without a meaning in Markdown."""
    return re.sub(r"([\\*`<\[])", r"\\\1", " ".join(text.split()))


def counted(count: int, noun: str) -> str:
    """As in 1 answer, 2 answers."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _clean(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")


def _pad(cell: str, width: int, left: bool) -> str:
    return cell.ljust(width) if left else cell.rjust(width)


def number(value: float | None, digits: int = 2) -> str:
    """A number with so many decimals."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def figures(value: float | None) -> str:
    """A number with about three figures: for quantities of unknown size."""
    if value is None:
        return NOTHING
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"


def share(value: float | None) -> str:
    """A ratio in per cent."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def milliseconds(seconds: float | None) -> str:
    """A time in milliseconds, without the unit."""
    return NOTHING if seconds is None else figures(1000 * seconds)


def with_range(estimate: Estimate, digits: int = 2, unit: str = "") -> str:
    """value [low, high]; the value alone where it has no interval."""
    if estimate.value is None:
        return NOTHING
    value = number(estimate.value, digits) + unit
    return value if estimate.low is None else f"{value} {interval_of(estimate, digits)}"


def interval_of(estimate: Estimate, digits: int = 2) -> str:
    """[low, high]"""
    if estimate.low is None:
        return NOTHING
    return f"[{number(estimate.low, digits)}, {number(estimate.high, digits)}]"


def share_with_range(estimate: Estimate) -> str:
    """A ratio in per cent with its interval."""
    numbers = (estimate.value, estimate.low, estimate.high)
    value, low, high = (None if n is None else 100 * n for n in numbers)
    return with_range(Estimate(value, low, high, estimate.items), 1, " %")
