"""Keywords, streamers, engines and refusals of the decoding function."""

from __future__ import annotations

import copy
import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.generation.streamers import BaseStreamer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from graft.integrations.transformers import Decode, decode, engine_of, forget
from tests.integrations.agreement import (
    COUNT,
    ONE,
    PADDED,
    agree,
    answer,
    batch,
    engine_over,
    generate,
    model_of,
    row,
)
from tests.tiny_models import tiny_model


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


def test_a_model_ends_where_its_table_of_positions_does() -> None:
    model = tiny_model("gpt2", n_positions=12)
    plain = generate(model, ONE, {"max_new_tokens": 5})
    out = generate(model, ONE, {"max_new_tokens": 50}, custom_generate=decode)
    assert out.tolist() == plain.tolist()
    with pytest.raises(ValueError, match="shorten the prompt"):
        generate(model, batch(row(12)), {}, custom_generate=decode)


def test_a_model_with_rotary_positions_goes_on_as_generate_does() -> None:
    agree(tiny_model("llama", max_position_embeddings=12), ONE, {})


def test_an_own_engine_is_used() -> None:
    engine = engine_over(model_of("llama"))
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
