"""Tiny random-weight models of the supported families, for tests that need a real architecture.

Invariant: the same (family, seed, overrides) gives the same weights in every process. Weights
are drawn wide (initializer_range 0.3), so the argmax depends on the context and near-ties are
rare. It knows nothing of tokenizers: ids below 255 are free, 255 is the end of sequence.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB_SIZE = 256
EOS_ID = 255
SLIDING_WINDOW = 16

# Names of the usual decoder configuration: 4 query heads share 2 kv heads of 16 dimensions.
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "attention_dropout": 0.0,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": EOS_ID,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}

# Both layer types in one model, the sliding one first and last.
_MIXED: dict[str, Any] = {
    "sliding_window": SLIDING_WINDOW,
    "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}

_SPECIFIC: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    },
    "mistral": {"sliding_window": SLIDING_WINDOW},
    "gemma2": {**_MIXED, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0},
    "gemma3": _MIXED,
    "phi3": {},
    "gpt2": {
        "n_embd": 64,
        "n_inner": 128,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 4096,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
    },
    "olmo2": {},
}

# Library names of the families whose text model has a name of its own.
_MODEL_TYPES = {"gemma3": "gemma3_text"}

_GPT2_SHARED = (
    "vocab_size",
    "initializer_range",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "tie_word_embeddings",
)

FAMILIES: tuple[str, ...] = tuple(_SPECIFIC)


def tiny_config(family: str, **overrides: Any) -> Any:
    """Return the configuration of `tiny_model`; overrides use the family's own field names."""
    if family not in _SPECIFIC:
        raise ValueError(f"no tiny model of family {family!r}; there are {', '.join(FAMILIES)}")
    common = {k: _COMMON[k] for k in _GPT2_SHARED} if family == "gpt2" else _COMMON
    fields = {**common, **_SPECIFIC[family], **overrides}
    if "layer_types" in fields and "layer_types" not in overrides:
        kinds = _MIXED["layer_types"]
        fields["layer_types"] = [kinds[i % 2] for i in range(fields["num_hidden_layers"])]
    return AutoConfig.for_model(_MODEL_TYPES.get(family, family), **fields)


def tiny_model(family: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Build a seeded tiny model: fp32, on the CPU, eval mode, no gradients.

    The global random state is left as it was.
    """
    config = tiny_config(family, **overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if family == "gemma2":
        # Its definition. Older Transformers prefer SDPA, which drops the soft-capping in silence.
        model.set_attn_implementation("eager")
    return model.eval().requires_grad_(False)
