"""Checkpoints: complete, kept, named when they are broken."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from graft.train import checkpoint
from graft.train.checkpoint import load_checkpoint, save_checkpoint

STATE = {"weight/a": torch.arange(4.0), "step/a": torch.tensor(3.0)}


def test_the_last_one_is_read(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    assert load_checkpoint(tmp_path / "absent") is None
    for step in (5, 10, 120):
        save_checkpoint(tmp_path, step, {"seed": step}, {"weight/a": torch.full((2,), float(step))})
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, found.facts) == (120, {"seed": 120})
    assert torch.equal(found.state["weight/a"], torch.full((2,), 120.0))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 1, {}, STATE)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_whole", full)
    with pytest.raises(ValueError, match="No space left on device"):
        save_checkpoint(tmp_path, 2, {}, STATE)
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_broken_one_is_named(tmp_path: Path, damage: bytes | None) -> None:
    save_checkpoint(tmp_path, 1, {}, STATE)
    path = tmp_path / "step-00000001.safetensors"
    path.write_bytes(path.read_bytes()[:-4] if damage is None else damage)
    with pytest.raises(ValueError, match=r"step-00000001\.safetensors cannot be read"):
        load_checkpoint(tmp_path)
