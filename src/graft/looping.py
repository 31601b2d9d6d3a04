"""Looping answers: those that say the same again and again.

Small models loop, and a loop is drafted perfectly by anything, so reports and training tell such
answers apart. It knows token ids alone.
"""

from __future__ import annotations

from collections.abc import Sequence

LOOPING = 0.30  # share of repeated 8-grams above which an answer counts as looping


def repeated_8grams(ids: Sequence[int]) -> float:
    """Share of the 8-grams of an answer that occurred in it before; 0 if it has none."""
    grams = [tuple(ids[i : i + 8]) for i in range(len(ids) - 7)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
