"""Writing results.jsonl, and going on with what an earlier run has begun there.

Lines are appended whole and forced to the disk, so a killed run costs at most the line it was
writing, and the next run goes on behind it.

Invariants: answers whose tokens or times cannot be compared never come into one file; a file that
no run of ours has begun is left as it is. It does not know what the numbers mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from graft.bench.measurement import Measurement
from graft.bench.results import Results, check_measurement, differences, lines_of, read_results

__all__ = ["ResultsWriter", "begun"]

# What may differ in a run that adds to a file: none of it changes what an answer or its time is.
_ADDING: Final[tuple[str, ...]] = (
    "prompts_hash",
    "settings cases",
    "settings llama.cpp",  # what it reads does not change what others say
    "versions ",
    "python",
    "platform",
)
_FIRST: Final = b'{"environment": {'  # how a file of ours begins


def begun(path: Path) -> Results | None:
    """What a run may go on with; None for no file, an empty one, or a run's torn first line.

    Raises:
        ValueError: as `read_results`, for what no run of ours has left there.
    """
    lines = list(lines_of(path)) if path.exists() else []
    if not lines:
        return None
    _, line, whole = lines[0]
    own = line.startswith(_FIRST) or _FIRST.startswith(line)
    try:
        return read_results(path)
    except ValueError:
        if len(lines) == 1 and not whole and own:
            return None
        raise


class ResultsWriter:
    """Appends the measurements of one run to a file, new or begun by an earlier run.

    Attributes:
        done: keys of the measurements that are there.

    Args:
        path: the file; its folder is made.
        environment: of this run.
        resume: go on with a file that was begun under another environment.

    Raises:
        ValueError: where the file cannot be written, is broken or not ours, or was begun under
            another environment and `resume` is not set, or under one whose answers or times are
            not comparable.
    """

    def __init__(
        self, path: str | Path, environment: Mapping[str, Any], *, resume: bool = False
    ) -> None:
        self._path = Path(path)
        self.done: set[tuple[Any, ...]] = set()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error
        try:
            found = begun(self._path)
            if found is not None:
                self._go_on(found, environment, resume)
            self._mend(found)
            self._write(json.dumps({"environment": dict(environment)}, ensure_ascii=False))
        except BaseException:
            self._file.close()
            raise

    def append(self, measurement: Measurement) -> None:
        """Write one line, and return when it is on the disk.

        Raises:
            ValueError: if an answer with the same key is there, a field does not hold what it
                shall, or the file cannot be written.
        """
        check_measurement(measurement)
        if measurement.key in self.done:
            raise ValueError(f"{self._path} has an answer with the key {measurement.key} already")
        self._write(measurement.to_line())
        self.done.add(measurement.key)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> ResultsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _mend(self, found: Results | None) -> None:
        """End a last line that lacks its line end alone; cut off a torn one."""
        data = self._path.read_bytes()
        rest = data.rpartition(b"\n")[2]
        if rest.strip() and found is not None and found.broken is None:
            self._file.write(b"\n")
        else:
            self._file.truncate(len(data) - len(rest))
        self._file.flush()

    def _go_on(self, found: Results, environment: Mapping[str, Any], resume: bool) -> None:
        # As it will be read back: tuples become lists.
        now = json.loads(json.dumps(dict(environment)))
        if fixed := _fixed(found.environments, now):
            raise ValueError(
                f"{self._path} was begun under other settings ({_told(fixed)}), and answers under "
                "both cannot stand side by side: choose another folder (--resume adds prompts, "
                "methods, budgets, temperatures and batches)"
            )
        other = differences(found.environment, now)
        if other and not resume:
            raise ValueError(
                f"{self._path} was begun under other settings ({_told(other)}): choose another "
                "folder, or --resume to add to it"
            )
        self.done = {m.key for m in found.measurements}

    def _write(self, line: str) -> None:
        try:
            self._file.write(line.encode("utf-8") + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ValueError(
                f"{self._path} cannot be written: {error.strerror or error}"
            ) from error


def _fixed(
    earlier: Sequence[Mapping[str, Any]], now: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Differences that no run may add under."""
    adding = _ADDING
    if now.get("settings", {}).get("matrix") == "cold":
        # A warm matrix would be asked what it has learnt from the same prompts.
        adding = (*adding, "settings seed")
    return {
        name: (was, is_)
        for environment in earlier
        for name, (was, is_) in differences(environment, now).items()
        if not name.startswith(adding)
        # Another drafter, but not another one of the same kind.
        and not (name.startswith("drafters ") and None in (was, is_))
    }


def _told(changed: Mapping[str, tuple[Any, Any]]) -> str:
    return "; ".join(f"{name} {was!r}, now {now!r}" for name, (was, now) in changed.items())
