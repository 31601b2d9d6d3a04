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

from graft.bench.environment import environment
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
