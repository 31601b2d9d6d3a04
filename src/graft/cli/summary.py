"""A generation in a line: what the colours mean, and how it went.

Names are the glossary's. Knows results, not engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graft.cli.screen import STYLES, Screen

if TYPE_CHECKING:
    from graft.request import Result

__all__ = ["legend", "number", "stages", "summary", "time_split"]


def legend(screen: Screen, sources: Sequence[Any], *, grown: bool) -> None:
    """Say what the colours mean and how many tokens had each, on a screen that has colours.

    Args:
        sources: a `Source` per token.
        grown: trees were grown, so a source that never hit is worth a zero.
    """
    if not screen.coloured:
        return
    screen.line()
    counts = Counter(source.name.lower() for source in sources)
    shown = [s for s in STYLES if counts[s] or (grown and s == "retrieved")]
    for i, source in enumerate(shown):
        screen.write("   " if i else "")
        screen.write(f"\u25a0 {source}", source)
        screen.write(f" {counts[source]}")
    screen.write("\n")


def summary(result: Result, max_new_tokens: int, *, policy: str, sampled: bool) -> str:
    """The policy, tokens, tau, speed, where the time went, the stages if drafting could stop early,
    and how the answer ended if not by itself."""
    stats = result.stats
    tokens = result.usage.completion_tokens
    parts = [policy, f"{tokens} token{'s' * (tokens != 1)}", f"tau {number(stats.tau)}"]
    if stats.tokens_per_second is not None:
        parts.append(f"{number(stats.tokens_per_second)} tokens/s")
    if stats.time_split:
        parts.append(time_split(stats.time_split))
    if any(stage != "full" for stage in stats.stage_histogram):
        parts.append(stages(stats.stage_histogram))
    if sampled:
        parts.append(f"seed {result.seed}")
    if result.finish_reason == "length":
        full = tokens < max_new_tokens
        parts.append("the context is full" if full else f"cut at --max-new-tokens {max_new_tokens}")
    return " \u00b7 ".join(parts)


def time_split(shares: Mapping[str, float]) -> str:
    """Shares of the rounds' time from one percent on, largest first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    shown = [f"{name.replace('_', '+')} {share:.0%}" for name, share in ordered if share >= 0.01]
    return ", ".join(shown)


def stages(histogram: Mapping[str, int]) -> str:
    """Rounds per stage, in the order of the checkpoints."""
    ordered = sorted(histogram.items(), key=lambda item: (item[0] == "full", item[0]))
    return "stages " + ", ".join(f"{name} {count}" for name, count in ordered)


def number(value: float | None) -> str:
    """Three figures, or a dash for a ratio without a denominator."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
