"""What the loading edge refuses, and how the refusal reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load as load_bytes
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from graft import models
from graft.model_support import check_config, check_model
from graft.models import LoadedModel, ModelError, load_model
from tests.tiny_files import save_folder, tiny_tokenizer, write_tiny_gguf
from tests.tiny_models import FAMILIES, VOCAB_SIZE, tiny_model


def load(source: Any, **settings: Any) -> LoadedModel:
    """Load on the CPU without packing: packing has tests of its own."""
    return load_model(source, **{"device": "cpu", "cpu_weights": "fp32", **settings})


# --- what is refused before a weight is read -------------------------------------------------

REFUSED = {
    "mamba": ("linear_attention", {}),
    "mamba2": ("linear_attention", {}),
    "falcon_mamba": ("linear_attention", {}),
    "rwkv": ("layers of type rwkv that keep a running state (RwkvForCausalLM)", {}),
    "xlstm": ("layers of type xlstm", {}),
    "qwen3_next": ("linear_attention", {}),
    "jamba": ("linear_attention, mamba", {}),
    "falcon_h1": ("hybrid", {}),
    "lfm2": ("type conv,", {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}),
    "recurrent_gemma": ("linear_attention, recurrent", {}),
    "llama4_text": ("chunked_attention", {}),
    "t5": ("encoder-decoder", {}),
    "bart": ("encoder-decoder", {}),
    "bert": ("looks ahead", {}),
    "bloom": ("attention interface (BloomForCausalLM)", {}),
    "gemma3": ("multi-modal wrapper (Gemma3ForConditionalGeneration)", {}),
    "mistral3": ("not a causal language model", {}),
    "clip": ("not a causal language model", {}),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_cannot_be_rewound_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    fault, fields = REFUSED[kind]
    AutoConfig.for_model(kind, **fields).save_pretrained(tmp_path / "some-model")
    with pytest.raises(ModelError) as caught:  # there are no weights to read
        load(tmp_path / "some-model")
    message = str(caught.value)
    assert message.startswith(f"some-model (model type {kind}) ")
    assert fault in message
    assert "full_attention or sliding_attention" in message
    assert "\n" not in message


@pytest.mark.parametrize("family", FAMILIES)
def test_both_checks_pass_the_supported_families(family: str) -> None:
    model = tiny_model(family)
    check_config(model.config, family)
    check_model(model, family)


def test_refused_objects() -> None:
    config = AutoConfig.for_model(
        "mamba", vocab_size=16, hidden_size=8, num_hidden_layers=1, state_size=4
    )
    mamba = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(ModelError, match="linear_attention"):
        load_model(mamba, tokenizer=tiny_tokenizer())
    with pytest.raises(ModelError, match="running state"):
        check_model(mamba, "m")
    with pytest.raises(ModelError, match="Linear is not a model of Transformers"):
        load_model(nn.Linear(2, 2), tokenizer=tiny_tokenizer())
    with pytest.raises(ModelError, match="tokenizer="):
        load_model(tiny_model("llama"))
    with pytest.raises(ModelError, match=r"model\.to"):
        load_model(tiny_model("llama"), tokenizer=tiny_tokenizer(), dtype="fp16")
    with pytest.raises(ModelError, match=r"model\.eval"):
        load_model(tiny_model("llama").train(), tokenizer=tiny_tokenizer())


def test_second_net_reads_module_names_and_flags() -> None:
    model = tiny_model("llama")
    model.extra = type("TinyGatedDeltaNet", (nn.Module,), {})()
    with pytest.raises(ModelError, match="TinyGatedDeltaNet"):
        check_model(model, "m")
    model = tiny_model("llama")
    check_model(model, "m")
    model.model.layers[0].self_attn.is_causal = False
    with pytest.raises(ModelError, match="LlamaAttention"):
        check_model(model, "m")


# --- user mistakes ---------------------------------------------------------------------------


def test_unknown_names() -> None:
    with pytest.raises(ModelError, match="did you mean smollm2-135m"):
        load("smolm2-135")
    for name in ("gpt2", "/no/such/folder", "no/such.gguf", "./a/b"):
        with pytest.raises(ModelError, match="an alias \\(smollm2-135m\\)"):
            load(name)


def test_hub_model_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"some-org/none-such cannot be loaded.*HF_HUB_OFFLINE"):
        load("some-org/none-such")


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "not valid JSON"),
        ("[]", "names no model_type"),
        ("{}", "names no model_type"),
        ('{"model_type": "nosuch"}', "nosuch"),
        ('{"model_type": "llama", "hidden_size": "x"}', "hidden_size"),
    ],
)
def test_bad_config(copy: Path, text: str, fault: str) -> None:
    (copy / "config.json").write_text(text)
    with pytest.raises(ModelError, match=fault):
        load(copy)


def test_bad_weights(copy: Path) -> None:
    weights = copy / "model.safetensors"
    data = weights.read_bytes()
    tensors = load_bytes(data)
    weights.write_bytes(data[:-100])
    with pytest.raises(ModelError, match="copy cannot be loaded"):
        load(copy)
    weights.write_bytes(b"")
    with pytest.raises(ModelError, match="copy cannot be loaded"):
        load(copy)
    weights.unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load(copy)
    lacking = {k: v for k, v in tensors.items() if "q_proj" not in k}
    save_file(lacking, weights, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks weights: model\.layers\.0\.self_attn\.q_proj"):
        load(copy)
    save_file({k: v[:-1] for k, v in tensors.items()}, weights, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="copy cannot be loaded"):
        load(copy)
    weights.write_bytes(data)
    assert load(copy).name == "copy"


def test_code_beside_the_weights_is_never_run(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config.update(model_type="custom", auto_map={"AutoConfig": "custom.Config"})
    (copy / "config.json").write_text(json.dumps(config))
    mark = copy / "ran"
    (copy / "custom.py").write_text(f"open({str(mark)!r}, 'w')\nclass Config: pass\n")
    with pytest.raises(ModelError, match="copy cannot be loaded"):
        load(copy)
    assert not mark.exists()


def test_missing_tokenizer_and_a_given_one(copy: Path, llama: Path) -> None:
    for path in copy.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ModelError, match=r"holds no tokenizer.*tokenizer="):
        load(copy)
    given = tiny_tokenizer(50)
    assert load(copy, tokenizer=given).tokenizer is given
    assert load(copy, tokenizer=llama).token_count == VOCAB_SIZE
    with pytest.raises(ModelError, match="tokenizer="):
        load(copy, tokenizer=copy)
    (copy / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="tokenizer of copy cannot be loaded"):
        load(copy)


def test_bad_gguf(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_text("no")
    with pytest.raises(ModelError, match="not a GGUF file"):
        load(path)
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(path)
    write_tiny_gguf(path, "nosuch")
    with pytest.raises(ModelError, match="architecture nosuch"):
        load(path)
    write_tiny_gguf(path)
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(path)


@pytest.mark.parametrize(
    "settings",
    [
        {"threads": 0},
        {"threads": True},
        {"threads": "2"},
        {"cpu_weights": "int8"},
        {"dtype": "int8"},
        {"dtype": torch.int8},
        {"device": "nosuch"},
        {"device": "cuda:99"},
    ],
)
def test_bad_settings(llama: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ModelError):
        load(llama, **settings)


def test_device_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert models._device("auto").type == "cpu"
    with pytest.raises(ModelError, match="finds no CUDA"):
        models._device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert models._device("auto").type == "cuda"
    assert models._device("cuda:0").index == 0
    with pytest.raises(ModelError, match="no cuda:1"):
        models._device("cuda:1")


@pytest.mark.gpu
def test_cuda_keeps_the_stored_dtype(tmp_path: Path) -> None:
    save_folder(tmp_path).bfloat16().save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.model.device.type, loaded.model.dtype) == ("cuda", torch.bfloat16)
    assert loaded.packing is None
