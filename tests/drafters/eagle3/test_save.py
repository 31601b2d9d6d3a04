"""Heads that are saved are read back, appear at once, and say where they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from graft.drafters.eagle3 import save
from graft.drafters.eagle3.loader import HeadError, load_head
from graft.drafters.eagle3.save import FORMATS, HeadFormat, save_head
from tests.tiny_heads import same_logits, tiny_facts, tiny_head

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
BOTH: list[dict[str, Any]] = [
    {},
    {"draft_vocab_size": 256},
    {"own_embeddings": True, "hidden_size": 32},
    {"norm_before_fc": True, "norm_output": True},
    {"fc_norm": True},
    {"rope_parameters": LLAMA3},
    {"sliding_window": 4},
    {"feature_layers": (1, 8)},
]
SPECULATORS: list[dict[str, Any]] = [
    {"norm_before_residual": True},
    {"num_hidden_layers": 2},
    {"attention_bias": True, "mlp_bias": True},
    {"attention_bias": True, "output_bias": False},
    {"qk_norm": True},
    {"feature_layers": (0, 3, 5)},
]
CASES: list[tuple[HeadFormat, dict[str, Any]]] = [
    *[(form, variant) for form in FORMATS for variant in BOTH],
    *[("speculators", variant) for variant in SPECULATORS],
    ("specforge", {"fc_bias": True}),
]


@pytest.mark.parametrize(("form", "variant"), CASES, ids=str)
def test_a_saved_head_is_read_back(
    form: HeadFormat, variant: dict[str, Any], tmp_path: Path
) -> None:
    head = tiny_head(1, **variant)
    save_head(tmp_path / "head", head, target_name="org/t", fingerprint="f" * 16, format=form)
    loaded = load_head(tmp_path / "head", tiny_facts(fingerprint="f" * 16))
    assert loaded.report.format == form
    assert loaded.report.made_for == "org/t"
    assert loaded.report.fingerprint == "f" * 16
    assert same_logits(loaded.head, head)
    assert torch.equal(loaded.head.target_ids, head.target_ids)
    assert loaded.head.config.feature_layers == head.config.feature_layers


def test_the_names_are_those_of_the_authors(tmp_path: Path) -> None:
    save_head(tmp_path / "head", tiny_head(fc_norm=True), target_name="t", fingerprint=None)
    with safe_open(tmp_path / "head" / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert {"midlayer.self_attn.q_proj.weight", "fc_norm.0.weight", "d2t", "t2d"} <= names
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]


@pytest.mark.parametrize(
    ("form", "variant", "words"),
    [
        ("specforge", {"num_hidden_layers": 2}, "several layers; save as speculators"),
        ("specforge", {"norm_before_residual": True}, "norm_before_residual"),
        ("specforge", {"qk_norm": True, "mlp_bias": True}, "mlp_bias, qk_norm"),
        ("specforge", {"feature_layers": (0, 3, 5)}, "the input of layer 0"),
        ("speculators", {"fc_bias": True}, "no bias in fc; save as specforge"),
        ("authors", {}, "unknown format 'authors' of heads; supported are specforge, speculators"),
    ],
)
def test_what_a_format_cannot_say_is_not_written(
    form: Any, variant: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(HeadError, match=words):
        save_head(
            tmp_path / "head",
            tiny_head(**variant),
            target_name="t",
            fingerprint=None,
            format=form,
        )
    assert not list(tmp_path.iterdir())


def test_a_head_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for seed in (1, 2):
        save_head(tmp_path / "head", tiny_head(seed), target_name="t", fingerprint=None)
    head = load_head(tmp_path / "head", tiny_facts()).head
    assert same_logits(head, tiny_head(2))
    assert [f.name for f in tmp_path.iterdir()] == ["head"]


def test_a_save_that_fails_leaves_the_old_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_head(tmp_path / "head", tiny_head(1), target_name="t", fingerprint=None)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(save, "save", full)
    with pytest.raises(OSError, match="disk full"):
        save_head(tmp_path / "head", tiny_head(2), target_name="t", fingerprint=None)
    head = load_head(tmp_path / "head", tiny_facts()).head
    assert same_logits(head, tiny_head(1))
    assert [f.name for f in tmp_path.iterdir()] == ["head"]


def test_whoever_may_read_the_folder_may_read_its_files(tmp_path: Path) -> None:
    folder = save_head(tmp_path / "head", tiny_head(1), target_name="t", fingerprint=None)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert len(modes) > 1
    assert len(set(modes.values())) == 1, modes


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(HeadError, match="holds other things"):
        save_head(tmp_path, tiny_head(), target_name="t", fingerprint=None)
    with pytest.raises(HeadError, match="is a file"):
        save_head(tmp_path / "thesis.txt", tiny_head(), target_name="t", fingerprint=None)


def test_a_half_precision_head_keeps_its_dtype(tmp_path: Path) -> None:
    head = tiny_head(1)
    for parameter in head.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    save_head(tmp_path / "head", head, target_name="t", fingerprint=None)
    loaded = load_head(tmp_path / "head", tiny_facts())
    assert loaded.report.dtype == "bfloat16"
    assert same_logits(loaded.head, head)
