"""Every format and every variant of a head loads to the very head that was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graft.drafters.eagle3.formats import FORMATS
from graft.drafters.eagle3.loader import HeadError, LoadedHead, load_head
from tests.tiny_heads import (
    WRITERS,
    Config,
    Tensors,
    head_logits,
    same_logits,
    tiny_facts,
    tiny_head,
    write_angelslim,
    write_authors,
    write_specforge,
    write_speculators,
)

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 4096,
}
EVERYWHERE: list[dict[str, Any]] = [
    {},
    {"draft_vocab_size": 256},
    {"own_embeddings": True},
    {"hidden_size": 32, "own_embeddings": True},  # narrower than its target
    {"head_dim": 8},
    {"num_key_value_heads": 4},
    {"hidden_act": "gelu"},
    {"rms_norm_eps": 1e-2},
    {"rope_parameters": YARN},
    {"rope_parameters": LLAMA3},
    {"rope_parameters": LONGROPE},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
]
SPECFORGE: list[dict[str, Any]] = [
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"norm_output": True},
    {"fc_norm": True, "norm_output": True, "own_embeddings": True},
    {"feature_layers": (1, 3, 7, 8)},
]
SPECULATORS: list[dict[str, Any]] = [
    *SPECFORGE,
    {"norm_before_residual": True},
    {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
    {"num_hidden_layers": 2},
    {"num_hidden_layers": 3, "norm_output": True},
    {"attention_bias": True, "mlp_bias": True},
    {"qk_norm": True},
    {"sliding_window": 4},
    {"feature_layers": (0, 4, 6)},
]
CASES = [
    *[(name, variant) for name in WRITERS for variant in EVERYWHERE],
    *[("specforge", variant) for variant in SPECFORGE],
    *[("speculators", variant) for variant in SPECULATORS],
]


def load(path: Path) -> LoadedHead:
    return load_head(path, tiny_facts(), dtype=torch.float32, device="cpu")


@pytest.mark.parametrize(("form", "variant"), CASES, ids=str)
def test_a_written_head_is_read_back(form: str, variant: dict[str, Any], tmp_path: Path) -> None:
    written = tiny_head(1, **variant)
    WRITERS[form](tmp_path, written)
    head, report = load(tmp_path).head, load(tmp_path).report
    assert report.format == form
    assert same_logits(head, written)
    assert torch.equal(head.target_ids, written.target_ids)
    assert head.config.feature_layers == written.config.feature_layers
    if written.embed_tokens is not None and head.embed_tokens is not None:
        assert torch.equal(head.embed_tokens.weight, written.embed_tokens.weight)
    assert (head.embed_tokens is None) == (written.embed_tokens is None)


def test_all_formats_are_written_by_these_tests() -> None:
    assert sorted(form.NAME for form in FORMATS) == sorted(WRITERS)


@pytest.mark.parametrize("form", WRITERS)
def test_a_bin_is_read_as_safetensors_are(form: str, tmp_path: Path) -> None:
    WRITERS[form](tmp_path / "a", tiny_head(2), safe=True)
    WRITERS[form](tmp_path / "b", tiny_head(2), safe=False)
    first, second = load(tmp_path / "a"), load(tmp_path / "b")
    assert same_logits(first.head, second.head)
    assert first.report.digest == second.report.digest


def test_one_head_has_one_digest_in_all_formats(tmp_path: Path) -> None:
    for form, write in WRITERS.items():
        write(tmp_path / form, tiny_head(3))
    write_authors(tmp_path / "other", tiny_head(4))
    digests = {form: load(tmp_path / form).report.digest for form in [*WRITERS, "other"]}
    assert len({digests[form] for form in WRITERS}) == 1
    assert digests["other"] != digests["authors"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight"),
        ("midlayer.hidden_norm.weight", "midlayer.post_attention_layernorm.weight"),
        ("norm.weight", "midlayer.hidden_norm.weight"),
        ("midlayer.self_attn.k_proj.weight", "midlayer.self_attn.v_proj.weight"),
    ],
)
def test_control_swapped_tensors_show(first: str, second: str, tmp_path: Path) -> None:
    def swap(_: Config, tensors: Tensors) -> None:
        tensors[first], tensors[second] = tensors[second], tensors[first]

    write_authors(tmp_path, tiny_head(1), edit=swap)
    assert not torch.allclose(head_logits(load(tmp_path).head), head_logits(tiny_head(1)))


@pytest.mark.parametrize("flag", ["norm_before_residual", "norm_output"])
def test_control_a_flag_without_tensors_shows(flag: str, tmp_path: Path) -> None:
    def flip(config: Config, _: Tensors) -> None:
        config[flag] = not config[flag]

    write_speculators(tmp_path, tiny_head(1), edit=flip)
    assert not torch.allclose(head_logits(load(tmp_path).head), head_logits(tiny_head(1)))


def test_control_a_head_keeps_its_own_rope(tmp_path: Path) -> None:
    def other_theta(config: Config, _: Tensors) -> None:
        config["rope_theta"] = 1e6

    write_authors(tmp_path, tiny_head(1), edit=other_theta)
    assert not torch.allclose(head_logits(load(tmp_path).head), head_logits(tiny_head(1)))


def test_names_of_other_servers_are_understood(tmp_path: Path) -> None:
    def rename(_: Config, tensors: Tensors) -> None:
        kept = ("lm_head.weight", "t2d", "d2t")
        moved = {k: tensors.pop(k) for k in list(tensors) if k not in kept}
        tensors |= {f"model.{k}": t for k, t in moved.items()}
        tensors["draft_id_to_target_id"] = tensors.pop("d2t")
        tensors["model.midlayer.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    write_specforge(tmp_path, tiny_head(1, fc_norm=True), edit=rename)
    assert same_logits(load(tmp_path).head, tiny_head(1, fc_norm=True))


def test_numbered_midlayers_are_layers(tmp_path: Path) -> None:
    def number(config: Config, tensors: Tensors) -> None:
        for key in [k for k in tensors if k.startswith("layers.")]:
            tensors[f"mid{key.replace('layers', 'layer')}"] = tensors.pop(key)

    written = tiny_head(1, num_hidden_layers=2)
    write_speculators(tmp_path, written, edit=number)
    assert same_logits(load(tmp_path).head, written)


def test_speculators_leaves_out_defaults_of_the_model_type(tmp_path: Path) -> None:
    def leave_out(config: Config, _: Tensors) -> None:
        layer = config["transformer_layer_config"]
        for name in ("hidden_act", "rms_norm_eps", "max_position_embeddings"):
            del layer[name]

    written = tiny_head(1, rms_norm_eps=1e-6)
    write_speculators(tmp_path, written, edit=leave_out)
    loaded = load(tmp_path)
    assert same_logits(loaded.head, written)
    assert loaded.report.trained_length == 2048
    assert any(note.startswith("defaults of llama") for note in loaded.report.notes)


def test_the_targets_layer_count_is_not_taken_for_the_heads(tmp_path: Path) -> None:
    def copy_of_target(config: Config, _: Tensors) -> None:
        config |= {"num_hidden_layers": 8, "attention_bias": True, "mlp_bias": True}

    write_specforge(tmp_path, tiny_head(1), edit=copy_of_target)
    loaded = load(tmp_path)
    assert same_logits(loaded.head, tiny_head(1))
    assert any("num_hidden_layers = 8" in note for note in loaded.report.notes)
    assert any("attention_bias is true" in note for note in loaded.report.notes)


def test_qwen2_biases_are_of_queries_keys_and_values(tmp_path: Path) -> None:
    def qwen2(config: Config, _: Tensors) -> None:
        config["model_type"] = "qwen2"

    written = tiny_head(1, attention_bias=True, output_bias=False)
    write_authors(tmp_path, written, edit=qwen2)
    assert same_logits(load(tmp_path).head, written)


def test_a_tied_lm_head_is_the_heads_embeddings(tmp_path: Path) -> None:
    def tie(_: Config, tensors: Tensors) -> None:
        del tensors["lm_head.weight"]

    write_angelslim(tmp_path, tiny_head(1, draft_vocab_size=256, own_embeddings=True), edit=tie)
    head = load(tmp_path).head
    assert head.embed_tokens is not None
    assert torch.equal(head.lm_head.weight, head.embed_tokens.weight)


def test_the_rotary_table_is_not_rounded_with_the_weights(tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head(1))
    head = load_head(tmp_path, tiny_facts(), dtype=torch.bfloat16, device="cpu").head
    assert head.dtype == torch.bfloat16
    assert torch.equal(head.rotary.inv_freq, tiny_head(1).rotary.inv_freq)
    assert head_logits(head).dtype == torch.bfloat16


def test_no_dtype_keeps_the_stored_one(tmp_path: Path) -> None:
    def halve(_: Config, tensors: Tensors) -> None:
        for key, tensor in tensors.items():
            tensors[key] = tensor.half() if tensor.is_floating_point() else tensor

    write_authors(tmp_path, tiny_head(1), edit=halve)
    loaded = load_head(tmp_path, tiny_facts())
    assert loaded.head.dtype == torch.float16
    assert loaded.report.dtype == "float16"
    assert not loaded.head.training
    assert not any(p.requires_grad for p in loaded.head.parameters())


def test_marks_of_two_formats_are_refused(tmp_path: Path) -> None:
    def both(config: Config, _: Tensors) -> None:
        config["aux_hidden_states_layer_ids"] = [1, 2, 3]

    write_specforge(tmp_path, tiny_head(), edit=both)
    with pytest.raises(HeadError, match=r"specforge and angelslim.*Supported are authors"):
        load(tmp_path)


def test_an_unknown_class_is_refused_with_what_is_supported(tmp_path: Path) -> None:
    def rename(config: Config, _: Tensors) -> None:
        config["architectures"] = ["MyEagle3Model"]

    write_authors(tmp_path, tiny_head(), edit=rename)
    with pytest.raises(HeadError, match=r"no format.*authors.*specforge.*speculators.*angelslim"):
        load(tmp_path)
