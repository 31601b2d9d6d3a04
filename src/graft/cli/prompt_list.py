"""Lists of prompts from a file.

A line that begins with `{` is a JSON object with a "prompt", or with "turns", of which the first
is taken (so the usual question sets of chat benchmarks can be used as they are). Any other line is
a prompt as it stands. Empty lines are skipped. Models are not known here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graft.cli.prompt_text import decoded

__all__ = ["read_prompts"]


def read_prompts(path: Path, limit: int | None = None) -> list[str]:
    """The first `limit` prompts of a file.

    Raises:
        ValueError: a file that cannot be read or holds no prompt, or a line that is none.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    prompts: list[str] = []
    for number, line in enumerate(decoded(data, str(path)).splitlines(), 1):
        if limit is not None and len(prompts) == limit:
            break
        if line.strip():
            prompts.append(_prompt(line, f"{path}, line {number}"))
    if not prompts:
        raise ValueError(f"{path} holds no prompt: write one a line")
    return prompts


def _prompt(line: str, place: str) -> str:
    if not line.lstrip().startswith("{"):
        return line
    try:
        found: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place} is not JSON ({error.msg}), but begins with {{") from error
    turns = found.get("turns")
    text = found.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(
            f'{place} holds no prompt: supported are {{"prompt": TEXT}} and {{"turns": [TEXT, ..]}}'
        )
    return text
