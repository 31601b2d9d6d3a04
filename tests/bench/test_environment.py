"""The environment of a run: what its figures depend on, and nothing about who ran it."""

from __future__ import annotations

import getpass
import json
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graft.bench import environment as module
from graft.bench.environment import digest_of, environment
from graft.models import LoadedModel, load_model


@pytest.fixture(scope="module")
def loaded(llama: Path) -> LoadedModel:
    return load_model(llama)


def _found(loaded: LoadedModel, **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "drafters": {},
        "prompts_hash": "p0",
        "settings": {"seed": 0},
        "command": ["graft", "bench"],
    }
    return environment(loaded, **{**facts, **changes})


def test_what_is_in_it(loaded: LoadedModel) -> None:
    found = _found(loaded)
    assert json.loads(json.dumps(found)) == found  # as results.jsonl holds it
    assert found["model"] == "tiny-llama"
    assert found["dtype"] == "float32"
    assert found["tokenizer"] == loaded.fingerprint
    assert found["threads"] == torch.get_num_threads()
    assert found["device"].startswith("cpu (")
    assert found["versions"].keys() == {
        "graft", "torch", "transformers", "tokenizers", "safetensors"
    }  # fmt: skip
    assert found["settings"] == {"seed": 0}


def test_packed_weights_are_said(loaded: LoadedModel) -> None:
    kept = SimpleNamespace(**{**vars(loaded), "packing": None, "fingerprint": "f"})
    assert _found(kept)["weights"] == "as loaded"  # type: ignore[arg-type]
    kept.packing = SimpleNamespace(packed=21, kind="fp16")
    assert _found(kept)["weights"] == "21 linears packed in fp16"  # type: ignore[arg-type]


def test_nothing_says_who_or_where(
    loaded: LoadedModel, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = llama.parent
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    command = ["graft", "bench", "-m", str(llama), "--out", str(home / "a b")]
    found = _found(loaded, drafters={"model": str(llama)}, command=command)
    text = json.dumps(found)
    assert found["command"] == "graft bench -m ~/tiny-llama --out '~/a b'"
    assert found["drafters"]["model"][0] == "tiny-llama"
    for secret in (str(home), "secret-token", platform.node()):
        assert secret not in text
    assert getpass.getuser() not in found["platform"]


def test_a_name_on_the_hub_stays(loaded: LoadedModel) -> None:
    assert _found(loaded, drafters={"eagle3": "org/name"})["drafters"] == {
        "eagle3": ["org/name", None]
    }


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
        assert module._device(torch.device("cuda:1")) == "card 1"

    def test_a_processor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        text = "processor\t: 0\nmodel name\t: Chip 9\nprocessor\t: 1\nmodel name\t: Chip 9\n"
        monkeypatch.setattr(module, "_read", lambda path: text)
        assert module._device(torch.device("cpu")) == "cpu (Chip 9)"

    def test_a_machine_that_does_not_say(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert module._read(Path("/nowhere")) == ""
        monkeypatch.setattr(module, "_read", lambda path: "")
        monkeypatch.setattr(platform, "processor", lambda: "")
        assert module._device(torch.device("cpu")) == "cpu (unknown)"
