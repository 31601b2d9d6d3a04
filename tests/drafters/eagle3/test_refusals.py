"""What is no usable EAGLE-3 head is refused by name, with all that is wrong and what would help."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graft.drafters.eagle3.formats.base import spelling
from graft.drafters.eagle3.loader import load_head
from tests.drafters.eagle3.edits import add, drop, fields, refused
from tests.tiny_heads import (
    Config,
    Edit,
    Tensors,
    tiny_facts,
    tiny_head,
    write_authors,
    write_specforge,
    write_speculators,
)
from tests.tiny_models import tiny_model


def test_all_missing_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    def edit(_: Config, tensors: Tensors) -> None:
        del tensors["midlayer.mlp.up_proj.weight"]
        del tensors["midlayer.hidden_norm.weight"]
        tensors["midlayer.hidden_norm.gamma"] = torch.ones(64)
        tensors["midlayer.other.hidden_norm.weight"] = torch.ones(64)

    write_authors(tmp_path, tiny_head(), edit=edit)
    refused(
        tmp_path,
        "missing: midlayer.hidden_norm.weight, midlayer.mlp.up_proj.weight",
        "unknown: midlayer.hidden_norm.gamma, midlayer.other.hidden_norm.weight",
    )


def test_wrong_shapes_are_named_with_both_numbers(tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head(), edit=fields(intermediate_size=128, draft_vocab_size=32))
    refused(
        tmp_path,
        "lm_head.weight is [64, 64] instead of [32, 64]",
        "midlayer.mlp.down_proj.weight is [64, 96] instead of [64, 128]",
    )


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (
            ["midlayer.a"],
            {"layers.0.b": "midlayer.b", "feature_norms.1.weight": "fc_norm.1.weight"},
        ),
        (["layers.0.a"], {"layers.0.b": "layers.0.b", "norm.weight": "norm.weight"}),
        (["midlayer.0.a", "midlayer.1.a"], {"layers.1.b": "midlayer.1.b"}),
        (
            ["model.midlayer.a", "lm_head.weight"],
            {"layers.0.b": "model.midlayer.b", "lm_head.bias": "lm_head.bias"},
        ),
        (["layers.0.a", "draft_id_to_target_id"], {"d2t": "draft_id_to_target_id"}),
    ],
)
def test_tensors_are_called_as_in_the_file(keys: list[str], wanted: dict[str, str]) -> None:
    spell = spelling(keys)
    assert {name: spell(name) for name in wanted} == wanted


def test_a_wrapped_checkpoint_keeps_its_names(tmp_path: Path) -> None:
    def edit(_: Config, tensors: Tensors) -> None:
        for key in [k for k in tensors if k not in ("d2t", "t2d", "lm_head.weight")]:
            tensors[f"model.{key}"] = tensors.pop(key)
        del tensors["model.midlayer.mlp.up_proj.weight"]

    write_authors(tmp_path, tiny_head(), edit=edit)
    refused(tmp_path, "missing: model.midlayer.mlp.up_proj.weight; ")


@pytest.mark.parametrize(
    ("edit", "hint"),
    [
        (add(input_norm__weight=(192,)), "norm_before_fc in config.json would explain"),
        (add(fc_norm__0__weight=(64,)), "fc_norm in config.json would explain"),
        (add(fc__bias=(64,)), "bias in config.json would explain"),
        (add(midlayer__self_attn__q_proj__bias=(64,)), "attention_bias in config.json"),
        (add(midlayer__self_attn__q_norm__weight=(16,)), "a qwen3 model_type in config.json"),
        (add(midlayer__mlp__up_proj__bias=(96,)), "mlp_bias in config.json"),
        (fields(norm_before_fc=True), "config.json states norm_before_fc"),
        (fields(fc_norm=True), "config.json states fc_norm"),
        (drop("lm_head.weight"), "shares the target's lm_head is not supported"),
    ],
)
def test_a_variants_flag_is_hinted_at(edit: Edit, hint: str, tmp_path: Path) -> None:
    write_specforge(tmp_path, tiny_head(), edit=edit)
    refused(tmp_path, hint)


def test_a_second_layer_that_is_not_there_is_missing(tmp_path: Path) -> None:
    def edit(config: Config, _: Tensors) -> None:
        config["transformer_layer_config"]["num_hidden_layers"] = 2

    write_speculators(tmp_path, tiny_head(), edit=edit)
    refused(tmp_path, "missing: layers.1.input_layernorm.weight")


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    def edit(_: Config, tensors: Tensors) -> None:
        tensors["layers.0.hidden_norm.weight"] = tensors["midlayer.hidden_norm.weight"]

    write_authors(tmp_path, tiny_head(), edit=edit)
    refused(tmp_path, "midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight")


# --- other things than EAGLE-3 heads ---


def _eagle1(config: Config, tensors: Tensors) -> None:
    tensors["fc.weight"] = torch.ones(64, 128)
    del tensors["midlayer.hidden_norm.weight"]


def _medusa(config: Config, tensors: Tensors) -> None:
    tensors.clear()
    tensors |= {"0.0.linear.weight": torch.ones(64, 64), "0.1.weight": torch.ones(256, 64)}


def _whole_model(config: Config, tensors: Tensors) -> None:
    tensors.clear()
    tensors |= {k: t.clone() for k, t in tiny_model("llama").state_dict().items()}


def _lora(config: Config, tensors: Tensors) -> None:
    tensors["base_model.model.q_proj.lora_A.weight"] = torch.ones(8, 64)


def _no_fc(config: Config, tensors: Tensors) -> None:
    del tensors["fc.weight"]


def _experts(config: Config, tensors: Tensors) -> None:
    tensors["midlayer.mlp.experts.0.up_proj.weight"] = torch.ones(64, 64)


def _latent(config: Config, tensors: Tensors) -> None:
    tensors["midlayer.self_attn.kv_a_proj_with_mqa.weight"] = torch.ones(64, 64)


def _fused(config: Config, tensors: Tensors) -> None:
    tensors["midlayer.self_attn.qkv_proj.weight"] = torch.ones(64, 64)


@pytest.mark.parametrize(
    ("edit", "kind"),
    [
        (_eagle1, "an EAGLE-1 or EAGLE-2 head"),
        (_medusa, "a Medusa head"),
        (fields(medusa_num_heads=4), "a Medusa head"),
        (_whole_model, "a whole language model"),
        (_lora, "a LoRA adapter"),
        (fields(dflash_config={"block_size": 16}), "a DFlash drafter"),
        (fields(architectures=["DFlashDraftModel"]), "a DFlash drafter"),
        (fields(speculators_model_type="mtp"), "a speculator of type mtp"),
        (fields(speculators_model_type="eagle"), "a speculator of type eagle"),
        (add(mask_hidden=(1, 192)), "P-EAGLE"),
        (_no_fc, "without fc"),
        (_experts, "a mixture of experts"),
        (_latent, "multi-head latent attention"),
        (_fused, "fused projections"),
        (fields(eagle_config={"use_aux_hidden_state": False}), "use_aux_hidden_state off"),
    ],
)
def test_other_things_are_named(edit: Edit, kind: str, tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head(), edit=edit)
    refused(tmp_path, kind, "EAGLE-3")


@pytest.mark.parametrize(
    ("edit", "advice", "not_said"),
    [
        (_whole_model, "give it as the draft model (--draft-model, draft_model=)", "(--head)"),
        (_medusa, "A head (--head) is an EAGLE-3 head", "--draft-model"),
        (_eagle1, "or a DFlash drafter", "--draft-model"),
    ],
)
def test_what_was_meant_is_said(edit: Edit, advice: str, not_said: str, tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head(), edit=edit)
    assert not_said not in refused(tmp_path, advice)


def _int8(_: Config, tensors: Tensors) -> None:
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.int8)


def _fp8(_: Config, tensors: Tensors) -> None:
    tensors["midlayer.mlp.up_proj.weight"] = torch.ones(96, 64).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("edit", "sign"),
    [
        (_int8, "fc.weight (int8)"),
        (_fp8, "midlayer.mlp.up_proj.weight (float8_e4m3fn)"),
        (add(fc__weight_scale=(1,)), "fc.weight_scale"),
        (add(midlayer__self_attn__q_proj__qweight=(8, 8)), "q_proj.qweight"),
        (add(midlayer__self_attn__k_scale=(1,)), "k_scale"),
    ],
)
def test_quantised_heads_are_named(edit: Edit, sign: str, tmp_path: Path) -> None:
    def quantised(config: Config, tensors: Tensors) -> None:
        edit(config, tensors)
        config["quantization_config"] = {"quant_method": "compressed-tensors"}

    write_authors(tmp_path, tiny_head(), edit=quantised)
    refused(tmp_path, "is quantised (compressed-tensors)", sign)


def test_the_targets_quantisation_in_the_config_alone_is_a_note(tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head(), edit=fields(quantization_config={"bits": 4}))
    report = load_head(tmp_path, tiny_facts()).report
    assert any("not quantised" in note for note in report.notes)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"logit_scale": 0.5}, "logit_scale = 0.5"),
        ({"logit_scale": 0}, "logit_scale = 0"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier = 12.0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"is_causal": False}, "is_causal = False"),
        ({"parallel_draft_step": 2}, "parallel_draft_step = 2"),
        ({"target_layer_ids": [1, 3, 5]}, "target_layer_ids"),
        ({"use_last_layernorm": False}, "use_last_layernorm = False"),
        ({"some_new_norm": True}, "some_new_norm = True"),
        ({"model_type": "gemma3_text"}, "model type gemma3_text is not supported"),
        ({"hidden_act": "swish7"}, "hidden_act 'swish7'"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": None}, "has no hidden_size"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"fc_norm": 1}, "fc_norm is 1"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 1, 2]}, "distinct layer numbers"),
        ({"eagle_config": [1]}, "eagle_config is [1]"),
        ({"num_aux_hidden_states": 5}, "num_aux_hidden_states = 5"),
        ({"head_dim": None, "num_attention_heads": 5}, "no multiple of num_attention_heads 5"),
        ({"draft_vocab_size": 512}, "draft_vocab_size 512 is above vocab_size 256"),
    ],
)
def test_a_configuration_that_asks_for_more_is_refused(
    values: Config, words: str, tmp_path: Path
) -> None:
    def edit(config: Config, tensors: Tensors) -> None:
        fields(**values)(config, tensors)
        if "draft_vocab_size" in values:
            tensors["lm_head.weight"] = torch.ones(512, 64)

    write_authors(tmp_path, tiny_head(), edit=edit)
    refused(tmp_path, words, str(tmp_path))


@pytest.mark.parametrize(
    "values",
    [
        {"logit_scale": 1.0},
        {"logit_scale": None},
        {"attn_logit_softcapping": None},
        {"partial_rotary_factor": 1.0},
        {"pretraining_tp": 1},
        {"embedding_multiplier": 1},
        {"eos_token_id": [1, 2], "initializer_range": 0.02, "quantization_config": None},
    ],
)
def test_neutral_values_are_read_over(values: Config, tmp_path: Path) -> None:
    def edit(config: Config, _: Tensors) -> None:
        config |= values

    write_authors(tmp_path, tiny_head(), edit=edit)
    load_head(tmp_path, tiny_facts())


def test_a_field_that_nobody_knows_is_a_note(tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head(), edit=fields(favourite_colour="green"))
    notes = load_head(tmp_path, tiny_facts()).report.notes
    assert any("favourite_colour is not read" in note for note in notes)


def test_speculators_must_state_norm_before_residual(tmp_path: Path) -> None:
    write_speculators(tmp_path, tiny_head(), edit=fields(norm_before_residual=None))
    refused(tmp_path, "does not state norm_before_residual", "opposite defaults")
