"""The list of models: what is ready, what is damaged, what the hub cache holds."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

import huggingface_hub
import pytest

from graft import model_list, smollm2
from graft.models import list_models
from tests.tiny_files import write_tiny_gguf


def test_list_tells_what_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = tmp_path / "hub"
    _fake_hub_model(hub, "org/causal", "LlamaForCausalLM")
    _fake_hub_model(hub, "org/encoder", "BertModel")
    monkeypatch.setattr(
        model_list, "scan_cache_dir", partial(huggingface_hub.scan_cache_dir, cache_dir=hub)
    )
    alias, cached = list_models(tmp_path)
    assert (alias.alias, alias.licence, alias.ready) == ("smollm2-135m", "Apache-2.0", False)
    assert (cached.alias, cached.ready) == ("org/causal", True)
    assert "LlamaForCausalLM" in cached.description

    source = tmp_path / "tiny.gguf"
    write_tiny_gguf(source)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(source.read_bytes()).hexdigest())
    monkeypatch.setattr(smollm2, "_packaged_gguf", lambda: source)
    folder = smollm2.ensure_smollm2(tmp_path)
    assert list_models(tmp_path, check=True)[0].ready
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert list_models(tmp_path)[0].ready  # the digests were not asked for
    checked = list_models(tmp_path, check=True)[0]
    assert not checked.ready
    assert "model.safetensors" in checked.problems[0]


def test_list_without_a_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        model_list, "scan_cache_dir", partial(huggingface_hub.scan_cache_dir, tmp_path / "no")
    )
    assert [e.alias for e in list_models(tmp_path)] == ["smollm2-135m"]


def _fake_hub_model(hub: Path, name: str, kind: str) -> None:
    repo = hub / f"models--{name.replace('/', '--')}"
    snapshot = repo / "snapshots" / ("a" * 40)
    for folder in (snapshot, repo / "refs", repo / "blobs"):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text("a" * 40)
    (snapshot / "config.json").write_text(json.dumps({"architectures": [kind]}))
    (snapshot / "model.safetensors").write_bytes(b"x")
