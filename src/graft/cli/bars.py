"""Progress of work that takes minutes or hours, with the time that is left.

On a terminal it is a bar; else a line whenever another tenth is done or five minutes have passed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from graft.cli.notes import note

__all__ = ["Show", "bar"]

# Told: done so far, of how many, and a text beside it.
Show = Callable[[int, int, str], None]
SILENCE: Final = 300.0  # seconds


@contextmanager
def bar(unit: str, *, quiet: bool) -> Iterator[Show]:
    """Show how far work has come.

    Args:
        unit: what is counted, in the plural.
    """
    if quiet:
        yield lambda done, total, text: None
    elif not sys.stderr.isatty():
        yield _Lines(unit)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        counts = TextColumn("{task.completed} of {task.total} " + unit)
        columns = counts, BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[text]}")
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("", total=None, text="")
            yield lambda done, total, text: progress.update(
                task, completed=done, total=total, text=text
            )


class _Lines:
    """Writes lines."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._first: tuple[int, float] | None = None  # done and the time, when work began
        self._told = 0
        self._last = time.monotonic()

    def __call__(self, done: int, total: int, text: str) -> None:
        now = time.monotonic()
        tenth = done * 10 // max(total, 1)
        if self._first is None:
            self._first, self._told = (done, now), tenth
            return
        if tenth == self._told and now - self._last < SILENCE:
            return
        self._told, self._last = tenth, now
        parts = [f"{done} of {total} {self._unit}", self._left(done, total, now), text]
        note(", ".join(part for part in parts if part))

    def _left(self, done: int, total: int, now: float) -> str:
        assert self._first is not None
        before, began = self._first
        if done >= total or done == before:
            return ""
        seconds = (now - began) / (done - before) * (total - done)
        return f"about {timedelta(seconds=round(seconds))} left"
