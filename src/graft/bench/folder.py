"""The folder of a run: made, held by one run at a time, and clear of files that are not ours.

The lock is the system's, on the file `.lock`, so it ends with its process, however that ends.
Where there are no such locks (Windows, some network drives) nobody is kept out.

Invariant: what stands in the folder is not changed here. It does not know what runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graft.bench.report import HEADING
from graft.bench.results_writer import begun

if sys.platform != "win32":
    import fcntl

__all__ = ["check_report", "held"]


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make the folder of a run, and keep other runs out of it.

    Raises:
        ValueError: where files cannot be made in it, another run holds it, or it has a report or
            results that are not ours.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot be made: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"no permission to write in {folder}: choose another folder")
    check_report(folder)
    begun(folder / "results.jsonl")
    with _locked(folder):
        yield


def check_report(folder: Path) -> None:
    """Raise ValueError for a report.md that is not ours."""
    place = folder / "report.md"
    try:
        ours = not place.is_file() or place.read_bytes().startswith(HEADING.encode())
    except OSError as error:
        raise ValueError(f"{place} cannot be read: {error.strerror or error}") from error
    if not ours:
        raise ValueError(
            f"{place} was not written by graft bench: move it away, or choose another folder"
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        file = (folder / ".lock").open("ab")
    except OSError as error:
        raise ValueError(f"{folder}/.lock cannot be made: {error.strerror or error}") from error
    with file:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(
                    f"another run is writing to {folder}: wait for its end, or choose another "
                    "folder"
                ) from error
            except OSError:
                pass  # no locks here
        yield
