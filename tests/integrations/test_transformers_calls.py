"""Keywords, streamers, engines and refusals of the decoding function."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, DynamicCache, T5Config, T5ForConditionalGeneration
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor
from transformers.generation.streamers import BaseStreamer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from graft.engine import Engine
from graft.integrations.transformers import Decode, decode, engine_of, forget
from graft.target import TransformersTarget
from tests.fakes import byte_tokenizer
from tests.integrations.agreement import (
    COUNT,
    ONE,
    PADDED,
    agree,
    answer,
    batch,
    generate,
    model_of,
    row,
)
from tests.tiny_models import EOS_ID, VOCAB_SIZE, tiny_model


def ours(**more: Any) -> Any:
    return generate(model_of("llama"), ONE, {}, **{"custom_generate": decode, **more})


class _Streamer(BaseStreamer):
    def __init__(self) -> None:
        self.values: list[list[int]] = []
        self.ends = 0

    def put(self, value: Tensor) -> None:
        self.values.append(value.flatten().tolist())

    def end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("way", ["keyword", "object", "partial"])
def test_a_streamer_gets_what_generate_would_give_it(way: str) -> None:
    plain, own = _Streamer(), _Streamer()
    generate(model_of("llama"), ONE, {}, streamer=plain)
    if way == "keyword":
        ours(graft_streamer=own)
    elif way == "object":
        ours(custom_generate=Decode(streamer=own))
    else:
        ours(custom_generate=partial(decode, graft_streamer=own))
    assert own.values == plain.values
    assert own.ends == plain.ends == 1


def test_a_streamer_is_ended_where_the_call_fails() -> None:
    streamer = _Streamer()
    with pytest.raises(ValueError, match="one row"):
        generate(model_of("llama"), PADDED, {}, custom_generate=decode, graft_streamer=streamer)
    assert streamer.ends == 1


def test_policy_and_budget_can_be_given_to_a_call_and_to_an_object() -> None:
    ours(graft_policy="plain")
    assert decode.last_results[0].stats.tau == 1.0
    own = Decode(policy="retrieval", budget=3)
    ours(custom_generate=own)
    records = own.last_results[0].stats.round_records
    assert {record.proposed + record.empty_slots for record in records} == {3}
    ours(custom_generate=own, graft_budget=5)
    records = own.last_results[0].stats.round_records
    assert {record.proposed + record.empty_slots for record in records} == {5}


def test_results_of_the_last_call_are_kept() -> None:
    out = generate(model_of("llama"), PADDED, {}, custom_generate=decode)
    outputs = [result.token_ids for result in decode.last_results]
    assert outputs == out[:, 12:].tolist()
    assert [result.usage.prompt_tokens for result in decode.last_results] == [7, 3, 12]


@pytest.mark.parametrize(
    "settings", [{"policy": "fast"}, {"budget": 0}, {"seed": 0.5}], ids=lambda each: str(each)
)
def test_wrong_settings_of_an_object_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Decode(**settings)


def test_wrong_settings_of_a_call_are_refused() -> None:
    with pytest.raises(ValueError, match="policy"):
        ours(graft_policy="fast")
    with pytest.raises(ValueError, match="budget"):
        ours(graft_budget=0)


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
    "engine": (lambda: {"graft_engine": _other_engine()}, "another model object"),
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


def test_a_model_ends_where_its_table_of_positions_does() -> None:
    model = tiny_model("gpt2", n_positions=12)
    plain = generate(model, ONE, {"max_new_tokens": 5})
    out = generate(model, ONE, {"max_new_tokens": 50}, custom_generate=decode)
    assert out.tolist() == plain.tolist()
    with pytest.raises(ValueError, match="shorten the prompt"):
        generate(model, batch(row(12)), {}, custom_generate=decode)


def test_a_model_with_rotary_positions_goes_on_as_generate_does() -> None:
    agree(tiny_model("llama", max_position_embeddings=12), ONE, {})


def _other_engine() -> Engine:
    return _engine_over(tiny_model("llama"))


def _engine_over(model: Any) -> Engine:
    return Engine(
        TransformersTarget(model, max_context=200),
        byte_tokenizer(),
        name="tiny",
        token_count=VOCAB_SIZE,
        eos_token_ids=(EOS_ID,),
    )


def test_an_own_engine_is_used() -> None:
    engine = _engine_over(model_of("llama"))
    before = engine.matrix.ids.clone()
    assert ours(graft_engine=engine)[0, 7:].tolist() == answer()
    assert not torch.equal(engine.matrix.ids, before)
    assert ours(custom_generate=Decode(engine=engine))[0, 7:].tolist() == answer()


def test_one_engine_per_model_lives_as_long_as_it() -> None:
    model = tiny_model("qwen3")
    generate(model, ONE, {}, custom_generate=decode)
    engine = engine_of(model)
    assert engine_of(model) is engine
    forget(model)
    assert engine_of(model) is not engine
    found = weakref.ref(model)
    del model, engine
    gc.collect()
    assert found() is None


def test_an_engine_is_made_anew_for_another_dtype_or_vocabulary() -> None:
    model = tiny_model("llama")
    engine = engine_of(model)
    model.to(torch.float64)  # type: ignore[arg-type]
    assert engine_of(model) is not engine
    agree(model, ONE, {})
    model.resize_token_embeddings(300)
    assert engine_of(model).token_count == 300
    agree(model, ONE, {"max_new_tokens": 6})


@pytest.mark.parametrize("own", ["eager", "sdpa"])
def test_the_models_own_attention_stays(own: str) -> None:
    model = tiny_model("llama")
    generate(model, ONE, {}, custom_generate=decode)
    engine = engine_of(model)
    model.set_attn_implementation(own)
    plain = generate(model, ONE, {})
    assert generate(model, ONE, {}, custom_generate=decode).tolist() == plain.tolist()
    assert model.config._attn_implementation == own
    assert engine_of(model) is engine


def test_an_attention_of_another_law_is_refused() -> None:
    def halved(*args: Any, **kwargs: Any) -> Any:
        out, weights = sdpa_attention_forward(*args, **kwargs)
        return out * 0.5, weights

    AttentionInterface.register("halved", halved)
    model = tiny_model("llama")
    model.set_attn_implementation("halved")
    with pytest.raises(ValueError, match="'halved' gives other logits"):
        generate(model, ONE, {}, custom_generate=decode)


def test_an_attention_that_drops_soft_capping_is_refused() -> None:
    model = tiny_model("gemma2")
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:
        pytest.skip("this Transformers does not let Gemma 2 use it")
    with pytest.raises(ValueError, match=r"'sdpa' .*set_attn_implementation\('eager'\)"):
        generate(model, ONE, {}, custom_generate=decode)


def test_a_call_that_fails_does_not_block_the_next() -> None:
    def fails(ids: Tensor, scores: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ours(logits_processor=[fails])
    assert ours()[0, 7:].tolist() == answer()


def test_the_model_is_left_as_it_was() -> None:
    model = tiny_model("llama")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    names = set(vars(model))
    generate(model, ONE, {}, custom_generate=decode)
    assert set(vars(model)) == names
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    agree(copy.deepcopy(model), ONE, {"max_new_tokens": 4})
    model.requires_grad_(True)
    model(input_ids=ONE["input_ids"]).logits.sum().backward()  # nothing was left in inference mode


def test_the_answer_can_be_trained_on() -> None:
    out = ours()
    assert not out.is_inference()
    assert out.shape == (1, 7 + COUNT)
