"""Buckets of lengths, each twice as wide as the one before. It knows numbers alone."""

from __future__ import annotations

from collections.abc import Sequence


def bucket(value: int, first: int) -> int:
    """Start of a value's bucket: 0, first, 2 first, 4 first, ..."""
    return 0 if value < first else first << ((value // first).bit_length() - 1)


def bucket_range(values: Sequence[int], first: int) -> list[int]:
    """Starts of the buckets from the smallest value's to the largest's, empty ones too."""
    if not values:
        return []
    starts = [bucket(min(values), first)]
    while starts[-1] < bucket(max(values), first):
        starts.append(2 * starts[-1] or first)
    return starts


def bucket_name(start: int, first: int) -> str:
    """Its range, as in 128-255."""
    return f"{start}-{2 * start - 1 if start else first - 1}"
