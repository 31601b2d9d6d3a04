"""The probe: models that do not take part in trees are found at load, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from graft.attention import NAME
from graft.target import TransformersTarget
from tests.tiny_models import tiny_model

OTHER_LOGITS = "LlamaForCausalLM gives other logits under tree attention"
CANNOT = "LlamaForCausalLM cannot verify token trees"


def own_attention(
    layer: nn.Module, write: bool = True
) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Llama's attention written out by hand: causal by row, blind to any interface."""

    def forward(
        hidden_states: Tensor,
        position_embeddings: Any,
        past_key_values: Any = None,
        cache: Any = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        held = past_key_values if past_key_values is not None else cache
        shape = (*hidden_states.shape[:2], -1, layer.head_dim)
        projections: Any = (layer.q_proj, layer.k_proj, layer.v_proj)
        q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in projections)
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        if held is not None and write:
            k, v = held.update(k, v, layer.layer_idx)
        k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        projected: Any = layer.o_proj
        return projected(out.transpose(1, 2).flatten(2)), None

    return forward


def with_own_attention(write: bool = True) -> PreTrainedModel:
    model = tiny_model("llama")
    for layer in model.model.layers:
        layer.self_attn.forward = own_attention(layer.self_attn, write)
    return model


def test_the_attention_written_by_hand_is_right_by_itself() -> None:
    tokens = torch.arange(1, 9).unsqueeze(0)
    found = with_own_attention()(tokens, use_cache=False).logits
    torch.testing.assert_close(found, tiny_model("llama")(tokens).logits, atol=1e-4, rtol=1e-4)


def test_attention_that_ignores_the_interface_is_refused() -> None:
    with pytest.raises(ValueError, match=OTHER_LOGITS):
        TransformersTarget(with_own_attention())


def test_a_model_that_leaves_the_cache_empty_is_refused() -> None:
    with pytest.raises(ValueError, match=f"{CANNOT}: LlamaForCausalLM does not write"):
        TransformersTarget(with_own_attention(write=False))


def test_positions_of_a_models_own_making_are_refused() -> None:
    model = tiny_model("llama")
    rotary, own = model.model.rotary_emb, model.model.rotary_emb.forward
    rotary.forward = lambda x, position_ids: own(x, torch.arange(x.shape[1]).unsqueeze(0))
    with pytest.raises(ValueError, match=OTHER_LOGITS):
        TransformersTarget(model)


def test_attention_that_drops_its_keywords_is_refused() -> None:
    model = tiny_model("llama")
    for layer in model.model.layers:
        own = layer.self_attn.forward
        layer.self_attn.forward = lambda *args, own=own, graft_step=None, **kwargs: own(
            *args, **kwargs
        )
    with pytest.raises(ValueError, match=f"{CANNOT}: LlamaAttention does not pass on"):
        TransformersTarget(model)


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes"), IndexError("layers"), AssertionError("rows"), TypeError("a")]
)
def test_whatever_a_model_raises_becomes_a_refusal_by_name(error: Exception) -> None:
    model = tiny_model("llama")

    def forward(*_: Any, **__: Any) -> Tensor:
        raise error

    model.model.layers[1].forward = forward
    with pytest.raises(ValueError, match=f"{CANNOT}: {error}.*Llama, Qwen") as raised:
        TransformersTarget(model)
    assert raised.value.__cause__ is error


def test_want_of_memory_is_not_the_models_fault() -> None:
    model = tiny_model("llama")

    def forward(*_: Any, **__: Any) -> Tensor:
        raise torch.OutOfMemoryError("full")

    model.model.layers[1].forward = forward
    with pytest.raises(torch.OutOfMemoryError):
        TransformersTarget(model)


def test_logits_that_are_no_numbers_are_refused() -> None:
    model = tiny_model("llama")
    model.lm_head.weight[7] = float("nan")
    with pytest.raises(ValueError, match=OTHER_LOGITS):
        TransformersTarget(model)


def test_training_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"training mode .*model\.eval\(\)"):
        TransformersTarget(tiny_model("llama").train())


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt2", "gemma2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_that_take_part_are_accepted(family: str, dtype: torch.dtype) -> None:
    target = TransformersTarget(tiny_model(family).to(dtype))
    heads = 4 if family == "gpt2" else 2
    assert [s for layer in target.layers for s in layer] == [
        (heads, 16, dtype, torch.device("cpu"))
    ] * 6


def test_a_tiny_vocabulary_is_no_obstacle() -> None:
    options = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    TransformersTarget(tiny_model("llama", vocab_size=5, **options))


def test_a_refused_model_is_left_as_it_was() -> None:
    model = with_own_attention()
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match=OTHER_LOGITS):
        TransformersTarget(model)
    assert model.config._attn_implementation == before != NAME
