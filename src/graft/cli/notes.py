"""What goes to stderr: progress, warnings, summaries, errors.

Invariant: a note is one line, and holds no control characters. A stderr that nobody reads is no
reason to stop.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from graft.cli.screen import visible

__all__ = ["held_warnings", "note", "progress_notes"]


def note(text: str) -> None:
    """Write one line to stderr."""
    with suppress(OSError):
        sys.stderr.write(visible(" ".join(text.splitlines())) + "\n")
        sys.stderr.flush()


@contextmanager
def progress_notes(first: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Say what takes long: on a terminal as a line that goes away, else as lines that stay."""
    if quiet:
        yield lambda text: None
    elif not sys.stderr.isatty():
        note(first)
        yield note
    else:
        from rich.console import Console
        from rich.text import Text

        with Console(stderr=True).status(Text(first), refresh_per_second=4) as status:
            yield lambda text: status.update(Text(visible(text)))


@contextmanager
def held_warnings(*, quiet: bool = False) -> Iterator[None]:
    """Keep the library's warnings out of an answer that is being written; show them after it."""
    holder = _Holder(logging.WARNING)
    logger = logging.getLogger("graft")
    logger.addHandler(holder)
    try:
        yield
    finally:
        logger.removeHandler(holder)
        for text in [] if quiet else holder.texts:
            note(f"warning: {text}")


class _Holder(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
