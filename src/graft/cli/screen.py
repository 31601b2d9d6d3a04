"""What goes to stdout: the answer, as it is or safe and coloured.

Into a pipe or a file text goes exactly as it is. On a terminal, tokens are coloured by their
source, and control characters are shown and not sent: an answer may hold anything, but it must
not drive the terminal. Text is never wrapped here but by `Wrapped`.

This module knows neither engines nor settings; sources are known by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Final, TextIO

__all__ = ["STYLES", "PipeClosed", "Screen", "Wrapped", "visible"]

# Told apart by people who confuse red with green, on dark and on light terminals.
STYLES: Final = {"target": "", "draft": "magenta", "retrieved": "bold green"}

# C0 and DEL have pictures of their own in Unicode; C1 holds 8-bit forms of escape sequences.
_VISIBLE: Final = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
}


class PipeClosed(Exception):
    """Whoever read our stdout has stopped to."""


def visible(text: str) -> str:
    """The text with every control character but newline and tab replaced by visible ones."""
    return text.translate(_VISIBLE)


class Screen:
    """Writes an answer to a stream, piece by piece, each at once.

    Args:
        stream: stdout.

    Attributes:
        terminal: whether a person looks at it.
        coloured: whether sources are coloured: a terminal that can, and no NO_COLOR.
        width: columns.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._at_line_start = True
        self._codes: dict[str, tuple[str, str]] = {}  # around text of a source
        self.terminal = stream.isatty()
        self.width = 80
        if self.terminal:
            self._look_at_terminal()
        self.coloured = bool(self._codes)

    def write(self, text: str, source: str = "target") -> None:
        """Show a piece of text.

        Raises:
            PipeClosed: if nobody reads it.
        """
        if not text:
            return
        self._at_line_start = text.endswith("\n")
        if self.terminal:
            before, after = self._codes.get(source, ("", ""))
            text = f"{before}{visible(text)}{after}"
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError as error:
            raise PipeClosed from error

    def line(self, text: str = "", source: str = "target") -> None:
        """Show a piece of text and end the line."""
        self.write(text, source)
        self.write("\n")

    @contextmanager
    def answer(self) -> Iterator[None]:
        """While an answer is written. It ends by a newline of our own, unless it is on a terminal
        and needs none; one that breaks off, only if there is something on the line."""
        try:
            yield
        except BaseException:
            if not self._at_line_start:
                self.write("\n")
            raise
        if not (self.terminal and self._at_line_start):
            self.write("\n")

    def _look_at_terminal(self) -> None:
        from rich.color import ColorSystem
        from rich.console import Console
        from rich.style import Style

        console = Console(file=self._stream)
        self.width = console.width
        if console.no_color or console.color_system is None:
            return
        for source, style in STYLES.items():
            # Every terminal with colours has the eight that the styles use.
            parsed = Style.parse(style or "none")
            marked = parsed.render("|", color_system=ColorSystem.STANDARD)
            before, after = marked.split("|")
            self._codes[source] = (before, after)


class Wrapped:
    """Breaks a streamed text between words before it reaches the screen's right edge."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._word: list[tuple[str, str]] = []  # (character, source), not shown yet
        self._gap: list[tuple[str, str]] = []  # the spaces before the word
        self._column = 0

    def write(self, text: str, source: str = "target") -> None:
        """Show a piece of text, but for a last word that may still grow."""
        for character in text.replace("\t", "    "):
            if character == "\n":
                self.flush()
                self._screen.write("\n")
                self._column = 0
            elif character == " ":
                if self._word:
                    self.flush()
                self._gap.append((character, source))
            else:
                self._word.append((character, source))

    def flush(self) -> None:
        """Show what is held back."""
        from rich.cells import cell_len

        length = cell_len("".join(c for c, _ in self._word))
        if self._column and self._column + len(self._gap) + length > self._screen.width:
            self._screen.write("\n")
            self._column, self._gap = 0, []
        for source, run in groupby((*self._gap, *self._word), itemgetter(1)):
            self._screen.write("".join(character for character, _ in run), source)
        self._column = (self._column + len(self._gap) + length) % self._screen.width
        self._gap, self._word = [], []
