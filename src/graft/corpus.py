"""Corpora: files of text to learn from.

A `.jsonl` file holds an object per line. Its texts under "text", "prompt", "turns", "response"
and "answer" make one document, in this order, with a blank line between them; "messages" (chat
messages) are a document of their own kind, and then the others are not read. A `.txt` file is
plain text, cut at line ends into documents of about 64 KiB. All files are UTF-8.

Invariant: files are read as they are needed, never whole; errors name file and line. It does not
know tokenizers or models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["Document", "read_corpus"]

_TEXTS: Final = ("text", "prompt", "turns", "response", "answer")
_PIECE: Final = 1 << 16  # bytes of plain text per document; whole lines, so a little more
_SUPPORTED: Final = '"text", "prompt", "response", "answer" (texts), "turns" (texts) or "messages"'


@dataclass(frozen=True)
class Document:
    """A text to learn from.

    Attributes:
        content: the text, or chat messages with role and content.
        place: where it comes from, for errors.
        size: bytes it takes in its file.

    Raises:
        ValueError: for text that is not Unicode.
    """

    content: str | tuple[Mapping[str, str], ...]
    place: str
    size: int = 0

    def __post_init__(self) -> None:
        plain = isinstance(self.content, str)
        texts = [self.content] if plain else [m["content"] for m in self.content]  # type: ignore[index]
        for text in texts:
            try:
                str(text).encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"{self.place}: not valid Unicode at character {error.start} of the text "
                    f"({error.reason})"
                ) from error


def read_corpus(paths: Sequence[Path]) -> Iterator[Document]:
    """The documents of files, in order; blank ones are left out.

    That the files can be read is checked at once; what they hold, as the documents are taken.

    Raises:
        ValueError: for files that cannot be read, hold no text or hold something else.
    """
    if not paths:
        raise ValueError("no corpus: give .jsonl or .txt files to learn from")
    readers = [(path, _reader(path)) for path in paths]
    return _documents(readers)


_Reader = Callable[[Path], Iterator[Document]]


def _reader(path: Path) -> _Reader:
    readers: dict[str, _Reader] = {".jsonl": _json_lines, ".txt": _plain_text}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path}: a corpus is a .jsonl or a .txt file; rename or convert it")
    try:
        with path.open("rb"):
            return reader
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error


def _documents(readers: Sequence[tuple[Path, _Reader]]) -> Iterator[Document]:
    for path, reader in readers:
        found = False
        for document in reader(path):
            if not isinstance(document.content, str) or document.content.strip():
                found = True
                yield document
        if not found:
            raise ValueError(f"{path} holds no text to learn from")


def _json_lines(path: Path) -> Iterator[Document]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                place = f"{path}, line {number}"
                content = _content(_object(_decoded(line, path, number), place), place)
                yield Document(content, place, len(line))


def _plain_text(path: Path) -> Iterator[Document]:
    with path.open("rb") as stream:
        number = 1
        while lines := stream.readlines(_PIECE):
            piece = b"".join(lines)
            text = _decoded(piece, path, number).replace("\r\n", "\n")
            yield Document(text, f"{path}, from line {number}", len(piece))
            number += len(lines)


def _decoded(data: bytes, path: Path, line: int) -> str:
    try:
        return data.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        raise ValueError(
            f"{path}, line {line} is not UTF-8 text (byte 0x{data[error.start]:02x}): convert the "
            "file to UTF-8 first"
        ) from error


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", "nested too deeply")
        raise ValueError(f"{place} is not JSON ({reason}): one object per line is") from error
    if not isinstance(found, dict):
        raise ValueError(f"{place} is not a JSON object: one with {_SUPPORTED} is supported")
    return found


def _content(found: dict[str, Any], place: str) -> str | tuple[Mapping[str, str], ...]:
    if found.get("messages") is not None:
        return _messages(found["messages"], place)
    known = [name for name in _TEXTS if found.get(name) is not None]
    if not known:
        raise ValueError(
            f"{place} has no text (its fields are {', '.join(found) or 'none'}): {_SUPPORTED} are "
            "read"
        )
    return "\n\n".join(text for name in known for text in _texts(name, found[name], place))


def _texts(name: str, value: Any, place: str) -> list[str]:
    texts = value if name == "turns" else [value]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        wanted = "a list of texts" if name == "turns" else "a text"
        raise ValueError(f'{place}: "{name}" is not {wanted}')
    return texts


def _messages(value: Any, place: str) -> tuple[Mapping[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f'{place}: "messages" is not a list of chat messages')
    for index, message in enumerate(value):
        fields = message if isinstance(message, dict) else {}
        if not all(isinstance(fields.get(key), str) for key in ("role", "content")):
            raise ValueError(f"{place}: message {index} has no role and content, both texts")
    return tuple(value)
