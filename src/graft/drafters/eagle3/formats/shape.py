"""The draft layer's shape, from the fields that a Llama-like configuration has for it."""

from __future__ import annotations

import re
from typing import Any

from transformers.activations import ACT2FN

from graft.drafters.eagle3.errors import HeadError
from graft.drafters.eagle3.formats.base import State
from graft.drafters.eagle3.formats.fields import Fields
from graft.drafters.eagle3.formats.rope import read_rope, read_window

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_EPS = 1e-6  # of Transformers' Llama


def read_shape(fields: Fields, named: State, *, trained_single: bool) -> dict[str, Any]:
    """Sizes, as arguments of `Eagle3Config`; what was assumed goes to `fields.notes`.

    Args:
        trained_single: the trainer's code has one layer, whatever the configuration says.
    """
    hidden, heads = fields.needed("hidden_size"), fields.needed("num_attention_heads")
    count = _layer_count(fields, named, trained_single)
    return {
        "hidden_size": hidden,
        "intermediate_size": fields.needed("intermediate_size"),
        "num_attention_heads": heads,
        "num_key_value_heads": _assumed(fields, "num_key_value_heads", heads),
        "head_dim": fields.integer("head_dim") or _head_dim(fields, hidden, heads),
        "vocab_size": fields.needed("vocab_size"),
        "num_hidden_layers": count,
        "rms_norm_eps": fields.number("rms_norm_eps") or fields.assume("rms_norm_eps", _EPS),
        "hidden_act": _activation(fields),
        "rope_parameters": read_rope(fields),
        "max_position_embeddings": _trained_length(fields),
        "sliding_window": read_window(fields, count),
        "own_embeddings": "embed_tokens.weight" in named,
    }


def read_parts(fields: Fields, named: State, *, biased: bool) -> dict[str, Any]:
    """Biases and norms of heads, as arguments of `Eagle3Config`.

    Args:
        biased: the format's own code builds what the configuration asks for; if not, a request
            without tensors was copied from the target and means nothing.
    """
    kind = model_type(fields)
    inputs = _bias(fields, ("attention_bias", "qkv_bias"), "q_proj.bias", named, biased)
    inputs = inputs or (kind == "qwen2" and holds(named, "q_proj.bias"))
    only_inputs = kind == "qwen2" or (fields.flag("qkv_bias") and not fields.flag("attention_bias"))
    normed = kind == "qwen3" and (biased or holds(named, "q_norm.weight"))
    return {
        "fc_bias": _bias(fields, ("bias", "fc_bias"), "fc.bias", named, biased),
        "attention_bias": inputs,
        "output_bias": inputs and (holds(named, "o_proj.bias") or not only_inputs),
        "mlp_bias": _bias(fields, ("mlp_bias",), "gate_proj.bias", named, biased),
        "qk_norm": normed or bool(fields.flag("qk_norm") or fields.flag("use_qk_norm")),
    }


def model_type(fields: Fields) -> str:
    """Llama's layer, or one of the same shape with biases (Qwen 2) or normed heads (Qwen 3)."""
    kind = fields.text("model_type") or "llama"
    if kind not in MODEL_TYPES:
        raise HeadError(
            f"{fields.where}: a draft layer of model type {kind} is not supported; supported are "
            f"{', '.join(MODEL_TYPES)}"
        )
    return kind


def holds(named: State, part: str) -> bool:
    """Whether there is a tensor whose name ends like this."""
    return any(k.endswith(part) for k in named)


def _layer_count(fields: Fields, named: State, trained_single: bool) -> int:
    found = {int(m[1]) for k in named if (m := re.match(r"layers\.(\d+)\.", k))}
    held, stated = max(found, default=0) + 1, fields.integer("num_hidden_layers")
    if stated is None or not trained_single:
        return stated or held
    if stated != held:
        fields.notes.append(f"num_hidden_layers = {stated} is not read: this format has {held}")
    return held


def _assumed(fields: Fields, name: str, default: int) -> int:
    return fields.integer(name) or int(fields.assume(name, default))


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if hidden % heads:
        raise HeadError(
            f"{fields.where} has no head_dim, and hidden_size {hidden} is no multiple of "
            f"num_attention_heads {heads}"
        )
    return hidden // heads


def _activation(fields: Fields) -> str:
    name = fields.text("hidden_act") or "silu"
    if name not in ACT2FN:
        raise HeadError(f"{fields.where}: hidden_act {name!r} is not known to Transformers")
    return name


def _trained_length(fields: Fields) -> int | None:
    length = fields.integer("max_position_embeddings")
    if length is None:
        fields.notes.append("max_position_embeddings is not stated: the trained length is unknown")
    return length


def _bias(fields: Fields, names: tuple[str, ...], key: str, named: State, biased: bool) -> bool:
    stated = [fields.flag(name) for name in names]
    if not any(stated):
        return False
    if not biased and not holds(named, key):
        fields.notes.append(f"{names[0]} is true, but the checkpoint has no biases: none used")
        return False
    return True
