"""The loading edge: what is accepted, and what a loaded model says of itself."""

from __future__ import annotations

import hashlib
import logging
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import huggingface_hub
import pytest
import torch
from transformers.utils import logging as hf_logging

from graft import models, smollm2
from graft.fingerprint import tokenizer_fingerprint
from graft.model_files import quiet
from graft.models import LoadedModel, ModelError, load_model
from tests.tiny_files import save_folder, tiny_tokenizer, write_tiny_gguf
from tests.tiny_models import EOS_ID, FAMILIES, VOCAB_SIZE, tiny_config, tiny_model

IDS = torch.arange(40).reshape(2, 20)


def load(source: Any, **settings: Any) -> LoadedModel:
    """Load on the CPU without packing: packing has tests of its own."""
    return load_model(source, **{"device": "cpu", "cpu_weights": "fp32", **settings})


# --- what is accepted ------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_as_it_was_saved(family: str, tmp_path: Path) -> None:
    saved = save_folder(tmp_path, family)
    loaded = load(tmp_path)
    with torch.no_grad():
        expected, got = saved(IDS).logits, loaded.model(IDS).logits
        other = tiny_model(family, seed=1)(IDS).logits
    assert torch.equal(got, expected)
    assert not torch.allclose(other, expected)
    assert type(loaded.model) is type(saved)
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert (loaded.vocab_size, loaded.token_count) == (VOCAB_SIZE, VOCAB_SIZE)
    assert loaded.eos_token_ids == (EOS_ID,)
    assert loaded.max_context == 4096
    assert loaded.is_chat


def test_a_folder_gives_its_name_and_source(llama: Path) -> None:
    for source in (llama, str(llama)):
        loaded = load(source)
        assert (loaded.name, loaded.source) == ("tiny-llama", llama)
        assert loaded.packing is None


def test_the_alias_goes_through_the_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "tiny.gguf"
    write_tiny_gguf(source)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(source.read_bytes()).hexdigest())
    monkeypatch.setattr(smollm2, "_packaged_gguf", lambda: None)
    monkeypatch.setenv(smollm2.SOURCE_ENV, str(source))
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path / "cache"))
    said: list[str] = []
    loaded = load("smollm2-135m", progress=said.append)
    assert loaded.name == "smollm2-135m"
    assert loaded.source == smollm2.smollm2_folder()
    assert loaded.model.dtype == torch.float32
    assert len(said) == 1


def test_gguf_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiny.gguf"
    queries = write_tiny_gguf(path)
    loaded = load(path)
    assert (loaded.name, loaded.source) == ("tiny", path)
    assert loaded.model.dtype == torch.float32
    assert loaded.eos_token_ids == (2,)
    assert loaded.max_context == 512
    assert loaded.is_chat
    weight = loaded.model.model.layers[0].self_attn.q_proj.weight
    assert torch.equal(weight, torch.from_numpy(queries["blk.0.attn_q.weight"]))
    assert loaded.tokenizer.tokenize("he 1") == ["he", "\u0120", "1"]
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert load(path, dtype="fp16", tokenizer=tiny_tokenizer()).token_count == VOCAB_SIZE
    assert capfd.readouterr().err == ""


def test_an_object_is_left_untouched() -> None:
    model = tiny_model("llama").requires_grad_(True)
    before = [(n, p.data_ptr(), p.dtype) for n, p in model.named_parameters()]
    loaded = load_model(model, tokenizer=tiny_tokenizer())
    assert loaded.model is model
    assert [(n, p.data_ptr(), p.dtype) for n, p in model.named_parameters()] == before
    assert all(p.requires_grad for p in model.parameters())
    assert loaded.name == "LlamaForCausalLM"
    assert loaded.packing is None


def test_dtypes(tmp_path: Path) -> None:
    save_folder(tmp_path).half().save_pretrained(tmp_path)
    assert load(tmp_path).model.dtype == torch.float32
    assert load(tmp_path, dtype="fp16").model.dtype == torch.float16
    assert load(tmp_path, dtype=torch.bfloat16).model.dtype == torch.bfloat16
    stored = models._read(tmp_path, None, None, None)[0]
    assert stored.model.dtype == torch.float16


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [(7, 8, (7,)), ([9, 7, 9], 8, (9, 7)), (None, 8, (8,)), (None, [8, 6], (8, 6))],
)
def test_end_of_sequence_ids(generation: Any, config: Any, expected: tuple[int, ...]) -> None:
    model = tiny_model("llama")
    model.generation_config.eos_token_id = generation
    model.config.eos_token_id = config
    assert load_model(model, tokenizer=tiny_tokenizer()).eos_token_ids == expected


def test_end_of_sequence_falls_back_to_the_tokenizer() -> None:
    model = tiny_model("llama")
    model.generation_config = None
    model.config.eos_token_id = None
    assert load_model(model, tokenizer=tiny_tokenizer(100)).eos_token_ids == (99,)
    tokenizer = tiny_tokenizer(100)
    tokenizer.eos_token = None
    assert load_model(model, tokenizer=tokenizer).eos_token_ids == ()


def test_padded_ids_are_told_apart() -> None:
    loaded = load_model(tiny_model("llama"), tokenizer=tiny_tokenizer(100, chat=False))
    assert (loaded.vocab_size, loaded.token_count) == (VOCAB_SIZE, 100)
    assert not loaded.is_chat
    small = load_model(
        tiny_model("llama", vocab_size=64, eos_token_id=63), tokenizer=tiny_tokenizer()
    )
    assert (small.vocab_size, small.token_count) == (64, 64)


def test_context_length_is_none_when_not_stated() -> None:
    assert models._max_context(tiny_config("gpt2", n_positions=77)) == 77
    assert models._max_context(object()) is None


def test_scaling_that_changes_with_the_length_ends_the_context() -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    long = {"rope_type": "longrope", "rope_theta": 1e4, **factors}
    phi = tiny_config("phi3", rope_parameters=long, original_max_position_embeddings=64)
    assert (phi.max_position_embeddings, models._max_context(phi)) == (4096, 64)
    fixed = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    assert models._max_context(tiny_config("llama", rope_parameters=fixed)) == 4096
    assert models._max_context(tiny_config("gemma3")) == 4096


# --- settings --------------------------------------------------------------------------------


def test_threads_are_set_only_when_given(llama: Path) -> None:
    before = torch.get_num_threads()
    try:
        load(llama)
        assert torch.get_num_threads() == before
        load(llama, threads=before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_when_linears_are_packed(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fake: Any = ModuleType("graft.linear")
    fake.pack_linears = lambda model, mode: calls.append(mode)
    monkeypatch.setitem(sys.modules, "graft.linear", fake)
    load(llama, cpu_weights="auto")
    load(llama, cpu_weights="fp16")
    assert calls == ["auto", "fp16"]
    load(llama, cpu_weights="fp32")
    load(llama, cpu_weights="auto", dtype="fp16")
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    load_model(model, tokenizer=tokenizer)
    assert calls == ["auto", "fp16"]
    load_model(model, tokenizer=tokenizer, cpu_weights="fp16")
    assert calls == ["auto", "fp16", "fp16"]


def test_loading_leaves_no_state_behind(
    llama: Path, copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (copy / "model.safetensors").unlink()
    state = torch.get_rng_state()
    before = _global_state()
    load(llama)
    with pytest.raises(ModelError):
        load(copy)
    assert _global_state() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert capfd.readouterr() == ("", "")


def _global_state() -> tuple[Any, ...]:
    bars = huggingface_hub.utils.are_progress_bars_disabled()
    level = logging.getLogger("transformers").level
    shown = hf_logging.is_progress_bar_enabled()
    return (level, shown, bars, list(warnings.filters), torch.get_default_dtype())


def test_quiet_is_quiet_inside_and_restores_what_it_found() -> None:
    level, shown = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_info()
    hf_logging.enable_progress_bar()
    try:
        with quiet():
            assert hf_logging.get_verbosity() == logging.ERROR
            assert not hf_logging.is_progress_bar_enabled()
            assert not huggingface_hub.utils.are_progress_bars_disabled()
        assert hf_logging.get_verbosity() == logging.INFO
        assert hf_logging.is_progress_bar_enabled()
    finally:
        hf_logging.set_verbosity(level)
        if not shown:
            hf_logging.disable_progress_bar()


# --- fingerprint --------------------------------------------------------------------


def test_fingerprint_survives_saving(llama: Path) -> None:
    loaded = load(llama)
    assert loaded.fingerprint == load(llama).fingerprint
    assert loaded.fingerprint == tokenizer_fingerprint(tiny_tokenizer(), loaded.token_count)


def test_a_tokenizer_that_is_no_object_is_told_as_such() -> None:
    with pytest.raises(ModelError, match="a str was given"):
        load_model(tiny_model("llama"), tokenizer="somewhere")


def test_a_tokenizer_with_more_ids_than_the_model_is_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = tiny_model("llama", vocab_size=100, eos_token_id=99)
    load_model(model, tokenizer=tiny_tokenizer())
    assert "is it this model's tokenizer?" in caplog.text
