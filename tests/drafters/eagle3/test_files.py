"""Files that are missing or damaged, and places where no head is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from graft.drafters.eagle3.loader import HeadError, inspect_head
from tests.drafters.eagle3.edits import refused
from tests.tiny_heads import Config, Tensors, tiny_head, write_authors


def _no_config(path: Path) -> None:
    (path / "config.json").unlink()


def _broken_config(path: Path) -> None:
    (path / "config.json").write_text("{")


def _list_config(path: Path) -> None:
    (path / "config.json").write_text("[]")


def _no_weights(path: Path) -> None:
    (path / "model.safetensors").unlink()


def _cut_weights(path: Path) -> None:
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])


def _cut_bin(path: Path) -> None:
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(b"PK\x03\x04 not a zip")


def _pickle(path: Path) -> None:
    (path / "model.safetensors").unlink()
    torch.save({"a": Path("x")}, path / "pytorch_model.bin")


def _nested(path: Path) -> None:
    (path / "model.safetensors").unlink()
    torch.save({"state_dict": {"a": torch.ones(1)}}, path / "pytorch_model.bin")


def _two_files(path: Path) -> None:
    (path / "model.safetensors").rename(path / "a.safetensors")
    save_file({"a": torch.ones(1)}, path / "b.safetensors")


def _pointer(path: Path) -> None:
    (path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid x\n")


def _lora_folder(path: Path) -> None:
    (path / "config.json").rename(path / "adapter_config.json")


def _index(path: Path, places: dict[str, str]) -> None:
    (path / "model.safetensors").rename(path / "a.safetensors")
    text = json.dumps({"weight_map": places})
    (path / "model.safetensors.index.json").write_text(text)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_no_config, "has no config.json"),
        (_broken_config, "is not valid JSON"),
        (_list_config, "is no JSON object"),
        (_no_weights, "holds no weights; a head's folder holds config.json"),
        (_cut_weights, "cannot be read"),
        (_cut_bin, "pytorch_model.bin"),
        (_pickle, "runs no code of a checkpoint"),
        (_nested, "no plain table of tensors"),
        (_two_files, "several files of weights (a.safetensors, b.safetensors), and none"),
        (_pointer, "model.safetensors is a Git LFS pointer, not the weights: run git lfs pull"),
        (_lora_folder, "is a LoRA adapter"),
        (lambda path: _index(path, {"a": "b.safetensors"}), "lacks b.safetensors"),
        (lambda path: _index(path, {"zz": "a.safetensors"}), "that no file holds: zz"),
        (lambda path: _index(path, {"a": "../a.safetensors"}), "has no weight_map"),
    ],
)
def test_damaged_files_are_named(
    damage: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    write_authors(tmp_path, tiny_head())
    damage(tmp_path)
    refused(tmp_path, words)


def test_values_that_are_not_finite_are_damage(tmp_path: Path) -> None:
    def edit(_: Config, tensors: Tensors) -> None:
        tensors["fc.weight"][0, 0] = float("nan")

    write_authors(tmp_path, tiny_head(), edit=edit)
    refused(tmp_path, "fc.weight holds values that are not finite")


def test_places_that_are_no_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "is a file; give its folder")
    refused(tmp_path / "nowhere", "there is no head")

    def offline(*_: Any, **__: Any) -> str:
        raise OSError("no network here\nsecond line")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(HeadError, match=r"no folder org/head.*no network here.*HF_HUB_OFFLINE"):
        inspect_head("org/head")


def test_a_hub_id_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_authors(tmp_path, tiny_head(), safe=False)
    asked: list[Any] = []

    def fetch(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns[-1]))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert inspect_head("org/head").path == "org/head"
    assert asked == [("org/head", "*.safetensors"), ("org/head", "*.bin")]
