"""Data folders: answers on disk, in shards, as they come.

    data.json            what they are: model, tokenizer, settings, and a digest per full shard
    answers-00000.jsonl  a line per answer (`graft.train.answers`)

An answer is on disk as soon as it is appended. A shard that is full gets its digest into
data.json; the last one has none while it grows, and a line of it that was cut off by a kill is
dropped. Invariant: what is read is what was written, or an error says which file is not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from graft.atomic import write_whole
from graft.train.answers import Answer, parse_answer

__all__ = ["DataWriter", "Manifest", "read_answers", "read_file", "read_manifest"]

SHARD: Final = 1000  # answers
FORMAT: Final = 1
_NAME: Final = "data.json"


@dataclass
class Manifest:
    """data.json.

    Attributes:
        model: that answered. fingerprint: of its tokenizer. token_count: ids of it.
        settings: of the run that made the data.
        shards: SHA-256 of each full shard, by file name.
        finished: whether all prompts have been answered.
    """

    model: str
    fingerprint: str
    token_count: int
    settings: dict[str, Any]
    shards: dict[str, str] = field(default_factory=dict)
    finished: bool = False
    format: int = FORMAT


class DataWriter:
    """Appends to a folder; the folder is made, or gone on with.

    Args:
        manifest: of a new folder, or one equal to that of the folder but for what it holds.

    Raises:
        ValueError: for a folder that holds other data, or cannot be written.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.manifest, self.done = manifest, list[Answer]()
        if (folder / _NAME).exists():
            self.manifest = _same(read_manifest(folder), manifest, folder)
            self.done = list(read_answers(folder))
        elif any(folder.iterdir()):
            raise ValueError(f"{folder} holds other things than answers; give another folder")
        self._number = len(self.manifest.shards)
        tail = self._path(self._number)
        self._count = _mend(tail) if tail.exists() else 0
        self._save()
        self._stream = tail.open("ab")

    def append(self, answer: Answer) -> None:
        """Write one answer through to the file."""
        self._stream.write(answer.line().encode())
        self._stream.flush()
        self._count += 1
        if self._count == SHARD:
            self._seal()
            self._number, self._count = self._number + 1, 0
            self._stream = self._path(self._number).open("ab")

    def finish(self) -> None:
        """Say that nothing more will come."""
        self._seal()
        self.manifest.finished = True
        self._save()

    def close(self) -> None:
        self._stream.close()

    def _seal(self) -> None:
        self._stream.close()
        path = self._path(self._number)
        if path.stat().st_size:
            self.manifest.shards[path.name] = _digest(path)
        else:
            path.unlink()
        self._save()

    def _save(self) -> None:
        text = json.dumps(asdict(self.manifest), indent=2) + "\n"
        write_whole(self.folder / _NAME, text.encode())

    def _path(self, number: int) -> Path:
        return self.folder / f"answers-{number:05}.jsonl"


def read_manifest(folder: Path) -> Manifest:
    """What a data folder says of itself.

    Raises:
        ValueError: for a folder that is none, or of another version.
    """
    path = folder / _NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(
            f"{folder} is no data folder, for it has no {_NAME}: make one with graft train data"
        ) from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); make the data again") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        stated = found.get("format") if isinstance(found, dict) else None
        raise ValueError(f"{path} has format {stated!r}; supported is {FORMAT}")
    try:
        return Manifest(**found)
    except TypeError as error:
        raise ValueError(f"{path} is not as graft train data writes it ({error})") from error


def read_answers(folder: Path) -> Iterator[Answer]:
    """All answers of a data folder, in the order they were written.

    Raises:
        ValueError: for a shard that is missing or not as it was written.
    """
    manifest = read_manifest(folder)
    for name, digest in manifest.shards.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing, but {_NAME} lists it; make the data again")
        if _digest(path) != digest:
            raise ValueError(
                f"{path} is not as it was written (its SHA-256 differs from that in {_NAME}): "
                "remove the folder and make the data again, or bring back the file"
            )
        yield from _lines(path, path.read_bytes())
    tail = folder / f"answers-{len(manifest.shards):05}.jsonl"
    if tail.is_file():
        data = tail.read_bytes()
        yield from _lines(tail, data[: data.rfind(b"\n") + 1])


def read_file(path: Path) -> Iterator[Answer]:
    """All answers of a single .jsonl file.

    Raises:
        ValueError: for a file that cannot be read, or a line that is no answer.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    yield from _lines(path, data)


def _lines(path: Path, data: bytes) -> Iterator[Answer]:
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            place = f"{path}, line {number}"
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{place} is not UTF-8 text") from error
            yield parse_answer(text, place)


def _same(old: Manifest, new: Manifest, folder: Path) -> Manifest:
    """The old one, if both say the same but for what is there."""
    for name in ("model", "fingerprint", "token_count", "settings"):
        if (was := getattr(old, name)) != (now := getattr(new, name)):
            raise ValueError(
                f"{folder} was made with {name} {_told(was, now)}, now it is {_told(now, was)}: "
                "run as then to go on, or give another folder"
            )
    return old


def _told(value: Any, other: Any) -> str:
    """A value; of settings, those alone that differ."""
    if isinstance(value, dict) and isinstance(other, dict):
        return ", ".join(f"{k}={v!r}" for k, v in value.items() if other.get(k) != v) or "less"
    return repr(value)


def _mend(path: Path) -> int:
    """Cut off a torn last line; the number of lines left."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        write_whole(path, whole)
    return whole.count(b"\n")


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
