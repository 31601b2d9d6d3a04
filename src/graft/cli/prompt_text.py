"""Where a prompt comes from: the argument, a file or stdin.

Invariant: what is returned is not blank. Files and stdin are UTF-8; one line end at their end is
not part of the prompt. Models are not known here.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from graft.cli.notes import note

__all__ = ["decoded", "find_prompt"]


def find_prompt(argument: str | None, file: Path | None) -> str:
    """The prompt of a command.

    Args:
        argument: the text itself, "-" for stdin, or None.
        file: a file that holds it, or None.

    Raises:
        ValueError: two prompts, none, an empty one, or a file that cannot be read.
    """
    if argument is not None and file is not None:
        raise ValueError("a prompt and --file are both given: give one of them")
    if file is not None:
        return _not_blank(_read_file(file), f"{file} holds no text")
    if argument is not None and argument != "-":
        return _not_blank(argument, "the prompt is empty: give a text to answer")
    return _not_blank(_read_stdin(asked=argument == "-"), "the prompt is empty: stdin has no text")


def decoded(data: bytes, place: str) -> str:
    """UTF-8 bytes as a text, without a byte order mark.

    Raises:
        ValueError: naming the place and the first byte that is wrong.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = data[error.start]
        raise ValueError(
            f"{place} is not UTF-8 text: byte 0x{wrong:02x} at offset {error.start}; "
            "convert it to UTF-8 first"
        ) from error


def _not_blank(text: str, message: str) -> str:
    if not text.strip():
        raise ValueError(message)
    return text


def _read_file(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    return _without_line_end(decoded(data, str(path)))


def _read_stdin(*, asked: bool) -> str:
    """All of stdin; a terminal only if asked for it by name."""
    stdin = sys.stdin
    if stdin is None or (stdin.isatty() and not asked):
        raise ValueError(
            "no prompt: give it as an argument, with --file PATH or on stdin "
            '(as in: graft generate "Name three rivers.")'
        )
    if stdin.isatty():
        note("type the prompt, then Ctrl-D on a line of its own")
    buffer = getattr(stdin, "buffer", None) or io.BytesIO(stdin.read().encode())
    return _without_line_end(decoded(buffer.read(), "stdin"))


def _without_line_end(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")
