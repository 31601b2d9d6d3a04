"""Checkpoints of a training run: everything that its next step depends on.

    step-00001200.safetensors    weights and moments in fp32; run settings and digests as metadata

The last two are kept; a new one is complete before an old one goes. It knows files and tensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from graft.atomic import write_whole

KEPT = 2
_NAME = re.compile(r"step-(\d{8})\.safetensors")


class Checkpoint(NamedTuple):
    """step: optimiser steps taken. facts: what the run is. state: tensors by name."""

    step: int
    facts: dict[str, Any]
    state: dict[str, Tensor]


def save_checkpoint(
    folder: Path, step: int, facts: Mapping[str, Any], state: Mapping[str, Tensor]
) -> None:
    """Write a checkpoint and drop those before the last two.

    Raises:
        ValueError: if it cannot be written; those that are there stay.
    """
    path = folder / f"step-{step:08}.safetensors"
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, save(tensors, {"facts": json.dumps(facts)}))
    except OSError as error:
        raise ValueError(
            f"the checkpoint {path} cannot be written ({error.strerror or error}): make room and "
            "run again; it goes on from the last one that is there"
        ) from error
    for old in _found(folder)[:-KEPT]:
        old.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The last checkpoint of a folder; None if there is none.

    Raises:
        ValueError: for one that cannot be read.
    """
    found = _found(folder)
    if not found:
        return None
    path = found[-1]
    try:
        with safe_open(path, "pt") as stream:
            facts = json.loads(stream.metadata()["facts"])
            state = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"the checkpoint {path} cannot be read ({error}): remove it, and training goes on "
            "from the one before"
        ) from error
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return Checkpoint(int(match[1]), facts, state)


def _found(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
