"""The log of a training run: JSON lines, the first one the facts of the run.

A run that goes on from a checkpoint takes back the lines of steps that it will do again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graft.atomic import write_whole


class TrainLog:
    """Appends lines.

    Args:
        facts: of the run.
        done: steps that the run has taken; later lines are dropped.
        writes: whether this process writes.
    """

    def __init__(
        self, path: Path, facts: Mapping[str, Any], done: int, *, writes: bool = True
    ) -> None:
        self.path, self._writes = path, writes
        if not writes:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(dict(facts))]
        if done and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines()[1:]:
                try:
                    known = json.loads(line)["step"] <= done
                except (ValueError, KeyError, TypeError):
                    known = False  # cut off by a kill
                lines += [line] if known else []
        write_whole(path, ("\n".join(lines) + "\n").encode())

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line."""
        if self._writes:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(_short(dict(line))) + "\n")

    def text(self) -> str:
        """All lines."""
        return self.path.read_text(encoding="utf-8")


def facts_in(path: Path) -> dict[str, Any]:
    """The facts that a log begins with; nothing where there is none."""
    try:
        with path.open(encoding="utf-8") as stream:
            found = json.loads(stream.readline())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _short(value: Any) -> Any:
    """Floats to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, tuple | list):
        return [_short(item) for item in value]
    return {k: _short(v) for k, v in value.items()} if isinstance(value, dict) else value
