"""What the decoding function refuses, by name, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache, T5Config, T5ForConditionalGeneration
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

from graft.integrations.transformers import decode
from tests.fakes import byte_tokenizer
from tests.integrations.agreement import ONE, PADDED, agree, engine_over, generate, model_of
from tests.tiny_models import tiny_model


def _filled_cache() -> DynamicCache:
    cache = DynamicCache()
    model_of("llama")(input_ids=torch.tensor([[3, 4]]), past_key_values=cache)
    return cache


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "beams": (lambda: {"num_beams": 3}, "num_beams=3 asks for beam search"),
    "lookup": (lambda: {"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
    "contrastive": (lambda: {"penalty_alpha": 0.5, "top_k": 4}, "penalty_alpha=0.5"),
    "dola": (lambda: {"dola_layers": "low"}, "dola_layers='low'"),
    "attentions": (
        lambda: {"return_dict_in_generate": True, "output_attentions": True},
        "output_attentions=True",
    ),
    "hidden states": (
        lambda: {"return_dict_in_generate": True, "output_hidden_states": True},
        "output_hidden_states=True",
    ),
    "embeddings": (lambda: {"inputs_embeds": torch.zeros(1, 7, 64)}, "inputs_embeds="),
    "positions": (lambda: {"position_ids": torch.arange(7)[None] + 2}, "position_ids"),
    "holes": (lambda: {"attention_mask": torch.tensor([[1, 1, 0, 1, 1, 1, 1]])}, "zeros behind"),
    "right padding": (lambda: {"attention_mask": torch.tensor([[1] * 6 + [0]])}, "padding_side"),
    "nothing": (lambda: {"attention_mask": torch.zeros(1, 7).long()}, "whole row"),
    "cache": (lambda: {"past_key_values": _filled_cache()}, "holds 2 tokens"),
    "forward": (lambda: {"output_router_logits": True}, "output_router_logits="),
    "engine": (lambda: {"graft_engine": engine_over(tiny_model("llama"))}, "another model object"),
    "unknown id": (lambda: {"input_ids": torch.tensor([[5, 999]]), "attention_mask": None}, "999"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_by_name(name: str) -> None:
    settings, message = REFUSED[name]
    given = settings()
    inputs = {k: v for k, v in ONE.items() if k not in given}
    with pytest.raises(ValueError, match=message):
        generate(model_of("llama"), inputs, given, custom_generate=decode)


def test_settings_that_change_no_token_are_left_alone() -> None:
    agree(model_of("llama"), ONE, {"cache_implementation": "static"})
    agree(model_of("llama"), ONE, {"assistant_model": tiny_model("llama", seed=1)})
    agree(model_of("llama"), ONE, {"tokenizer": byte_tokenizer()})


def test_neutral_settings_pass() -> None:
    neutral = {"num_beams": 1, "guidance_scale": 1.0, "output_attentions": False}
    agree(model_of("llama"), ONE, {**neutral, "past_key_values": None})
    agree(model_of("llama"), ONE, lambda: {"past_key_values": DynamicCache()})


def test_processors_with_one_state_for_all_rows_are_refused() -> None:
    guide = UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, model_of("llama"))
    with pytest.raises(ValueError, match=r"UnbatchedClassifierFreeGuidance.*one row at a time"):
        generate(model_of("llama"), PADDED, {"logits_processor": [guide]}, custom_generate=decode)


def test_a_model_in_training_mode_is_refused() -> None:
    model = tiny_model("llama")
    generate(model, ONE, {}, custom_generate=decode)
    model.train()
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        generate(model, ONE, {}, custom_generate=decode)


def test_encoder_decoder_models_are_refused() -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 64,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 16,
        "num_layers": 1,
    }
    config = T5Config(**sizes, num_heads=2)
    config.decoder_start_token_id = 0
    model = T5ForConditionalGeneration(config).eval()
    with pytest.raises(ValueError, match="encoder-decoder"):
        model.generate(torch.tensor([[5, 6]]), custom_generate=decode)


def test_rotary_scaling_that_changes_on_the_way_is_refused_before_it_begins() -> None:
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
    }
    model = tiny_model("phi3", rope_parameters=scaling, original_max_position_embeddings=32)
    with pytest.raises(ValueError, match=r"changes at 32, .*ask for 25 new tokens at most"):
        generate(model, ONE, {"max_new_tokens": 26}, custom_generate=decode)
    agree(model, ONE, {"max_new_tokens": 25})
