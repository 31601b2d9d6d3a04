"""Suites: the prompts of a benchmark, from files or our own.

A `.jsonl` file holds an object per line: "turns" (the user's texts, one after another; the model
answers each before it sees the next) or "prompt" (one text). "id", "task", "raw", "category",
"group" and "subset" are optional, and null is as good as absent; other fields are not read.
Without an id the line number is taken, without a task the file's name. A `.txt` file holds a
prompt per line. Blank lines are skipped; all files are UTF-8. Chat messages are not supported: a
suite asks, the model answers.

Invariant: what is wrong with a suite is found here, before a model is loaded, with file and line.
It does not know tokenizers or models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

from graft.bench.item import Item, prompts_hash
from graft.bench.selection import select_items

__all__ = ["Item", "builtin_suite", "prompts_hash", "read_suite", "select_items"]

# LongBench continues these without a chat template.
_RAW_TASKS: Final = frozenset({"lcc", "repobench-p", "repobench_p"})
_LABELS: Final = ("subset", "category", "group")
_SUPPORTED: Final = '{"turns": [TEXT, ..]} and {"prompt": TEXT} are supported'


class _File(NamedTuple):
    name: str  # for errors
    stem: str  # the task of lines that name none
    suffix: str
    data: bytes


def read_suite(
    paths: Sequence[Path],
    *,
    tasks: Sequence[str] = (),
    limit: int | None = None,
    max_prompt_tokens: int | None = None,
    min_prompt_tokens: int | None = None,
    max_turns: int | None = None,
    count: Callable[[str], int] | None = None,
) -> list[Item]:
    """The items of files, and of the `.jsonl` files in folders, by name; lines stay in order.

    Everything is read and checked before anything is left out; the settings are those of
    `select_items`.

    Raises:
        ValueError: for files that cannot be read, items that are wrong or given twice, or
            settings that are wrong or leave nothing.
    """
    if not paths:
        raise ValueError("no suite: give .jsonl or .txt files, or folders of .jsonl files")
    return select_items(
        _items(_read(path) for given in paths for path in _files(given)),
        tasks=tasks,
        limit=limit,
        max_prompt_tokens=max_prompt_tokens,
        min_prompt_tokens=min_prompt_tokens,
        max_turns=max_turns,
        count=count,
    )


def builtin_suite() -> list[Item]:
    """Our own prompts, ten a task: chat, code, search suggestions, summaries, product titles.

    All are ours; titles are there in English and in Chinese.
    """
    found = sorted(
        resources.files("graft").joinpath("data/bench").iterdir(), key=lambda file: file.name
    )
    return _items(
        _File(file.name, file.name.removesuffix(".jsonl"), ".jsonl", file.read_bytes())
        for file in found
    )


def _files(given: Path) -> list[Path]:
    if not given.exists():
        raise ValueError(f"the suite {given} does not exist: name a file or a folder that does")
    if not given.is_dir():
        return [given]
    try:
        names = sorted(path for path in given.iterdir() if path.suffix.lower() == ".jsonl")
    except OSError as error:
        raise ValueError(f"cannot read {given}: {error.strerror or error}") from error
    files = [path for path in names if not path.name.startswith(".")]
    if not files:
        raise ValueError(f"the folder {given} holds no .jsonl file: name one that does, or a file")
    return files


def _read(path: Path) -> _File:
    suffix = path.suffix.lower()
    if suffix not in (".jsonl", ".txt"):
        raise ValueError(f"{path}: a suite is a .jsonl or a .txt file; rename or convert it")
    try:
        return _File(str(path), path.stem, suffix, path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error


def _items(files: Iterable[_File]) -> list[Item]:
    items: list[Item] = []
    places: dict[tuple[str, str], str] = {}
    for file in files:
        before = len(items)
        for number, line in _lines(file):
            place = f"{file.name}, line {number}"
            item = _item(line, file, number, place)
            if other := places.get((item.task, item.id)):
                raise ValueError(
                    f"{place}: id {item.id!r} of task {item.task} is also that of {other}; give "
                    "every prompt of a task its own"
                )
            places[item.task, item.id] = place
            items.append(item)
        if len(items) == before:
            raise ValueError(f"{file.name} holds no prompt: write one a line")
    return items


def _lines(file: _File) -> Iterator[tuple[int, str]]:
    """Line numbers from 1, and lines that are not blank; only a line feed ends a line."""
    for number, line in enumerate(file.data.split(b"\n"), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{file.name}, line {number} is not UTF-8 text (byte 0x{line[error.start]:02x}): "
                "convert the file to UTF-8 first"
            ) from error
        if text.strip():
            yield number, text


def _item(line: str, file: _File, number: int, place: str) -> Item:
    found = {"prompt": line} if file.suffix == ".txt" else _object(line, place)
    task = _text(found, "task", file.stem, place)
    raw = found.get("raw", task in _RAW_TASKS)
    if not isinstance(raw, bool):
        raise ValueError(f'{place}: "raw" is not true or false')
    turns = _turns(found, place)
    name = _name(found, number, place)
    labels = {label: _text(found, label, "", place) for label in _LABELS}
    try:
        return Item(task, name, turns, raw, **labels)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)
        raise ValueError(f"{place} is not JSON ({reason}): one object a line is") from error
    if not isinstance(found, dict):
        raise ValueError(f"{place} is not a JSON object: {_SUPPORTED}")
    return {field: value for field, value in found.items() if value is not None}


def _turns(found: dict[str, Any], place: str) -> tuple[str, ...]:
    given = [field for field in ("turns", "prompt") if field in found]
    if len(given) != 1:
        what = "both turns and a prompt" if given else "no turns"
        raise ValueError(f"{place} has {what} (fields: {', '.join(found) or 'none'}): {_SUPPORTED}")
    turns = found["turns"] if given == ["turns"] else [found["prompt"]]
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        wanted = "a list of texts" if given == ["turns"] else "a text"
        raise ValueError(f'{place}: "{given[0]}" is not {wanted}')
    return tuple(turns)


def _name(found: dict[str, Any], number: int, place: str) -> str:
    name = found.get("id", number)
    # Many sets number their prompts; true and false are numbers to Python alone.
    if isinstance(name, int) and not isinstance(name, bool):
        return str(name)
    return _text(found, "id", "", place)


def _text(found: dict[str, Any], field: str, default: str, place: str) -> str:
    text = found.get(field, default)
    if not isinstance(text, str):
        raise ValueError(f'{place}: "{field}" is not a text')
    if field in ("id", "task") and not text.strip():
        raise ValueError(f'{place}: "{field}" is empty: give it a text or leave it out')
    return text
