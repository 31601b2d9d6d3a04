"""Token ids to text, piece by piece.

Pieces never split a character: bytes of an unfinished one are held back. Text that may be the
start of a stop string is held back too, until it is clear that it is not. The pieces joined are
the whole text.

This module does not know models or requests: only a function that decodes ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

_UNFINISHED = "\ufffd"  # what a decoder writes for bytes that are no character yet


class Detokenizer:
    """Turns ids into text as they come.

    Decoding starts a few ids back each time, so the cost of a piece does not grow with the text,
    and tokenizers that treat a first token differently are given a neighbour.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []  # a few neighbours, already given out, then what is held back
        self._given = 0  # neighbours among them

    def push(self, token: int) -> str:
        """The text that this id completes; empty while a character is unfinished."""
        self._ids.append(token)
        known, text = self._window()
        if text.endswith(_UNFINISHED) or len(text) < len(known):
            return ""
        return self._give(known, text)

    def flush(self) -> str:
        """Whatever is held back: bytes that never became a character."""
        known, text = self._window()
        return self._give(known, text)

    def copy(self) -> Detokenizer:
        """Another one in the same state."""
        twin = Detokenizer(self._decode)
        twin._ids, twin._given = list(self._ids), self._given
        return twin

    def _window(self) -> tuple[str, str]:
        return self._decode(self._ids[: self._given]), self._decode(self._ids)

    def _give(self, known: str, text: str) -> str:
        piece = text[len(known) :]
        if piece:  # ids without text, such as special ones, are no neighbours
            del self._ids[: self._given]
        self._given = len(self._ids)
        return piece


class StopText:
    """Finds stop strings in text that comes in pieces, wherever the pieces are cut.

    Args:
        stops: strings that end the text; none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None  # the stop string that was met

    def push(self, piece: str) -> str:
        """Text that is safe to show. Once a stop string is met: the text before it.

        Of several, the one that is complete first counts, as if the text came by characters.
        """
        text = self._held + piece
        hits = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if hits:
            place, self.found = min(hits, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
            self._held = ""
            return text[:place]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def copy(self) -> StopText:
        """Another one in the same state."""
        twin = StopText(self._stops)
        twin._held, twin.found = self._held, self.found
        return twin

    def flush(self) -> str:
        """Held text, once it is clear that nothing follows."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
