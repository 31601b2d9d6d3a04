"""Machines and weights are told apart by names and digests."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from graft import machine as module
from graft.machine import digest_of


class TestDigest:
    def test_of_a_folder(self, tmp_path: Path) -> None:
        assert digest_of(tmp_path) is None
        (tmp_path / "a.bin").write_bytes(b"one")
        older = digest_of(tmp_path)
        (tmp_path / "a.safetensors").write_bytes(b"two")  # goes before .bin
        first = digest_of(str(tmp_path))
        assert first is not None
        assert len(first) == 16
        assert first != older
        (tmp_path / "config.json").write_text("{}")
        assert digest_of(tmp_path) == first
        (tmp_path / "b.safetensors").write_bytes(b"three")
        assert digest_of(tmp_path) != first

    def test_of_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "x.gguf"
        path.write_bytes(b"one")
        first = digest_of(path)
        path.write_bytes(b"two")
        assert None is not first != digest_of(path)

    def test_of_the_hub(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "a.safetensors").write_bytes(b"two")
        asked = []

        def cached(name: str, file: str) -> str:
            asked.append((name, file))
            return str(tmp_path / file)

        monkeypatch.setattr(module, "try_to_load_from_cache", cached)
        assert digest_of("org/name") == digest_of(tmp_path)
        assert asked == [("org/name", "config.json")]

    def test_of_what_is_no_path(self) -> None:
        assert digest_of("org/name") is None
        assert digest_of("LlamaForCausalLM object") is None


class TestDevice:
    def test_a_graphics_card(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device.index}")
        assert module.device_name(torch.device("cuda:1")) == "card 1"

    def test_a_processor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        text = "processor\t: 0\nmodel name\t: Chip 9\nprocessor\t: 1\nmodel name\t: Chip 9\n"
        monkeypatch.setattr(module, "_read", lambda path: text)
        assert module.device_name(torch.device("cpu")) == "cpu (Chip 9)"

    def test_a_machine_that_does_not_say(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert module._read(Path("/nowhere")) == ""
        monkeypatch.setattr(module, "_read", lambda path: "")
        monkeypatch.setattr(platform, "processor", lambda: "")
        assert module.device_name(torch.device("cpu")) == "cpu (unknown)"
