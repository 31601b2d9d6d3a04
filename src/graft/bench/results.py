"""Results: the lines of results.jsonl, read back whole.

Each started run writes a line {"environment": {...}}; a `Measurement` per line follows
(`results_writer`).

Invariant: what `read_results` returns was checked line by line, and no two measurements share a
key. It does not know what the numbers mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from graft.bench.measurement import Measurement

__all__ = ["Results", "check_measurement", "differences", "lines_of", "place_of", "read_results"]

# What may differ between two runs that write into one file, or are compared, without a word.
_PASSING: Final = ("time", "command")
_ROUNDS: Final = ("round_tokens", "round_stages", "round_draft", "round_retrieved")
_TYPES: Final = get_type_hints(Measurement)


@dataclass(frozen=True)
class Results:
    """What a file of results holds.

    Attributes:
        measurements: in the order of the file.
        environments: one per started run.
        broken: number of the half-written last line that was dropped; None if there is none.
    """

    measurements: tuple[Measurement, ...]
    environments: tuple[dict[str, Any], ...]
    broken: int | None = None

    @property
    def environment(self) -> dict[str, Any]:
        """Of the last run."""
        return self.environments[-1]


def place_of(given: Path) -> Path:
    """The file of results that a user means: the one in a folder, or the file itself."""
    return given / "results.jsonl" if given.is_dir() else given


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What two environments say differently, by name; a dictionary's entries one by one."""
    one, other = _flat(a), _flat(b)
    names = dict.fromkeys([*one, *other])
    return {n: (one.get(n), other.get(n)) for n in names if one.get(n) != other.get(n)}


def _flat(environment: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in environment.items():
        if isinstance(value, Mapping):
            out |= {f"{name} {inner}": v for inner, v in _flat(value).items()}
        elif name not in _PASSING:
            out[name] = value
    return out


def read_results(path: str | Path) -> Results:
    """All lines of a file.

    Raises:
        ValueError: for a file that cannot be read or holds no run, and for the first line that is
            broken, repeats a key or comes before any environment. A last line without a line end
            that cannot be read was being written when its run was killed; it is dropped.
    """
    runs: list[dict[str, Any]] = []
    found: dict[tuple[Any, ...], tuple[int, Measurement]] = {}
    broken = None
    for number, line, whole in lines_of(Path(path)):
        try:
            record = _record(line)
        except ValueError as error:
            if whole:
                raise _bad(path, number, str(error)) from error
            broken = number
            continue
        if isinstance(record, dict):
            runs.append(record)
            continue
        if not runs:
            raise _bad(path, number, "a measurement before any environment")
        if record.key in found:
            raise _bad(path, number, f"the same answer as line {found[record.key][0]}")
        found[record.key] = (number, record)
    if not runs:
        raise ValueError(
            f"{path} holds no results: no run has written its environment there; give another "
            "folder"
        )
    return Results(tuple(m for _, m in found.values()), tuple(runs), broken)


def _bad(path: str | Path, number: int, problem: str) -> ValueError:
    return ValueError(
        f"{path}, line {number}: {problem}; it is no line of graft bench, remove it or run again "
        "into another folder"
    )


def lines_of(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Number, content and whether it has its line end, of each line that is not empty."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    # Only \n ends a line: texts may hold other line separators.
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line, True
    if rest.strip():
        yield len(lines) + 1, rest, False


def _record(line: bytes) -> dict[str, Any] | Measurement:
    """An environment or a measurement."""
    text = line.decode("utf-8")
    if text.startswith('{"environment"'):
        found = json.loads(text)["environment"]
        if not isinstance(found, dict):
            raise ValueError("the environment is no JSON object")
        return found
    measurement = Measurement.from_line(text)
    check_measurement(measurement)
    return measurement


def check_measurement(measurement: Measurement) -> None:
    """Raise ValueError for a field that does not hold what it shall."""
    for name, kind in _TYPES.items():
        if not _fits(getattr(measurement, name), kind):
            value = repr(getattr(measurement, name))
            raise ValueError(f"field {name} is {value[:40]}, which is no {_called(kind)}")
    lengths = {name: len(getattr(measurement, name)) for name in _ROUNDS}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"its lists of rounds are not of one length: {lengths}")
    # Methods from outside count rounds without telling of each.
    told = len(measurement.round_tokens)
    if told and told != measurement.rounds:
        raise ValueError(f"field rounds is {measurement.rounds}, but it tells of {told} rounds")


def _called(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value read from JSON is what a field's annotation says; numbers are finite."""
    if isinstance(kind, UnionType):
        return any(_fits(value, option) for option in get_args(kind))
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_fits(v, get_args(kind)[0]) for v in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(_fits(v, get_args(kind)[1]) for v in value.values())
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is kind
