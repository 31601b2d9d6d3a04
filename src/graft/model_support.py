"""What Graft can load, and why it refuses the rest.

Invariant: a model that passes both checks is one causal stack of full or sliding-window
attention layers that goes through Transformers' attention interface: it can be shown a tree, and
its cache can be cut back to an accepted path. A layer with a running state (linear attention,
state-space, recurrence, short convolution) has mixed the rejected tokens into that state.
The rules read what a model says of itself; there is no list of models. Nothing here reads
weights.
"""

from __future__ import annotations

import re
from typing import Any

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)

__all__ = ["ModelError", "check_config", "check_model"]

_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
# Older configurations say "attention", in a field of another name, beside the types they add.
_LAYER_FIELDS = {
    "layer_types": _LAYER_TYPES,
    "layers_block_type": _LAYER_TYPES | {"attention"},
    "block_types": _LAYER_TYPES | {"attention"},
}
_STATE_FIELD = re.compile(r"^(mamba|ssm|rwkv|lru|time_step)_|_mamba_|^conv_L_cache$|^linear_conv_")
_STATE_MODULE = re.compile(
    r"mamba|ssm|rwkv|rglru|recurrent|delta_?net|linear_?attention|lightning_?attention"
    r"|short_?conv|[xsm]lstm|retention|hyena",
    re.IGNORECASE,
)
_SUPPORTED = (
    "Graft supports causal language models whose layers are full_attention or sliding_attention, "
    "such as Llama, Qwen 2 and 3, Mistral, Gemma 2 and 3, Phi-3, GPT-2 and OLMo 2; choose one of "
    "those"
)


class ModelError(ValueError):
    """A model or tokenizer that cannot be loaded or used; the message says what to do."""


def check_config(config: PreTrainedConfig, name: str) -> None:
    """Refuse, before any weight is read, a configuration that Graft cannot decode.

    Raises:
        ModelError: naming the model, the layer type or structure at fault and what is supported.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise _refusal(name, config, "is an encoder-decoder model")
    text = _text_config(config, name)
    if types := _odd_layer_types(text):
        listed = ", ".join(types)
        raise _refusal(
            name,
            config,
            f"has layers of type {listed}, which cannot take a tree and be rewound to a path of it",
        )
    model_class = _model_class(config, name)
    _check_state(text, model_class, name)
    if text is not config and model_class.config_class is not type(text):
        raise _refusal(
            name,
            config,
            f"is a multi-modal wrapper ({model_class.__name__}); save its text model with its "
            "tokenizer as a folder of its own and load that",
        )
    encoder = type(config) in MODEL_FOR_MASKED_LM_MAPPING
    if encoder and not getattr(config, "is_decoder", False):
        raise _refusal(name, config, "is an encoder: its attention also looks ahead")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise _refusal(
            name,
            config,
            f"does not use Transformers' attention interface ({model_class.__name__}), so it "
            "cannot be shown a tree",
        )


def check_model(model: PreTrainedModel, name: str) -> None:
    """Refuse a built model whose modules keep a running state or look ahead.

    The second net under `check_config`: it reads module class names and flags, no weights.
    """
    if getattr(model, "_is_stateful", False):
        raise _refusal(name, model.config, f"keeps a running state ({type(model).__name__})")
    kinds = {type(m).__name__ for m in model.modules()}
    if found := sorted(k for k in kinds if _STATE_MODULE.search(k)):
        raise _refusal(
            name,
            model.config,
            f"has layers of type {', '.join(found)}, which cannot be rewound to an accepted path",
        )
    ahead = {type(m).__name__ for m in model.modules() if getattr(m, "is_causal", True) is False}
    if ahead:
        listed = ", ".join(sorted(ahead))
        raise _refusal(name, model.config, f"has attention that looks ahead ({listed})")


def _text_config(config: PreTrainedConfig, name: str) -> PreTrainedConfig:
    try:
        text: PreTrainedConfig = config.get_text_config(decoder=True)
    except ValueError as error:
        raise _refusal(name, config, "holds several text models") from error
    return text


def _model_class(config: PreTrainedConfig, name: str) -> Any:
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise _refusal(name, config, "is not a causal language model of Transformers")
    mapped = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return mapped[0] if isinstance(mapped, tuple) else mapped


def _odd_layer_types(config: PreTrainedConfig) -> list[str]:
    odd: set[str] = set()
    for field, allowed in _LAYER_FIELDS.items():
        types = getattr(config, field, None)
        if isinstance(types, list | tuple):
            odd.update(str(t) for t in types if t not in allowed)
    return sorted(odd)


def _check_state(config: PreTrainedConfig, model_class: Any, name: str) -> None:
    fields = sorted(k for k in config.to_dict() if _STATE_FIELD.search(k))
    if not fields and not getattr(model_class, "_is_stateful", False):
        return
    signs = f"; its configuration has {', '.join(fields[:3])}" if fields else ""
    raise _refusal(
        name,
        config,
        f"has layers of type {config.model_type} that keep a running state "
        f"({model_class.__name__}{signs}), which cannot be rewound to an accepted path",
    )


def _refusal(name: str, config: PreTrainedConfig, fault: str) -> ModelError:
    kind = getattr(config, "model_type", "") or type(config).__name__
    return ModelError(f"{name} (model type {kind}) {fault}. {_SUPPORTED}.")


def last_fixed_position(config: Any) -> int | None:
    """Positions up to which a token's rotary turn depends on its position alone; None: all.

    With `longrope` and `dynamic` scaling the frequencies change for all rows of a forward once one
    of its positions lies beyond. A tree's nodes lie ahead of what is committed, and a prompt is
    run in parts, so beyond that point no two ways of running a text agree.
    """
    stated = getattr(config, "rope_parameters", None) or {}
    each = list(stated.values()) if all(isinstance(v, dict) for v in stated.values()) else [stated]
    limits = []
    for rope in each:
        if rope.get("rope_type") == "longrope":
            limits.append(rope.get("original_max_position_embeddings"))
        elif rope.get("rope_type") == "dynamic":
            limits.append(config.max_position_embeddings)
    return min((n for n in limits if n is not None), default=None)
