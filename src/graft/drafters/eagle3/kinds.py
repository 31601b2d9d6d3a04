"""What a checkpoint is if it is no EAGLE-3 head: said by name, before anything is converted.

It looks at names, shapes and dtypes of tensors and at the configuration, never at values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graft.drafters.eagle3.errors import HeadError

_QUANTISED = re.compile(
    r"(_scale|_scale_inv|scales|zero_point|qweight|qzeros|g_idx|weight_packed|weight_shape"
    r"|absmax|quant_map|quant_state\S*|SCB|_amax)$"
)
_MAPS = ("d2t", "t2d", "draft_id_to_target_id")
_HEAD = (
    "A head (--head) is an EAGLE-3 head (one fc over three features of the target, and a draft "
    "layer with hidden_norm) or a DFlash drafter; use one of them"
)
_MODEL = "a whole language model"
_DRAFT_MODEL = (
    "To draft with it, give it as the draft model (--draft-model, draft_model=) instead of as head"
)
_DFLASH = "a DFlash drafter"
_AS_DFLASH = "Leave out the kind of drafter, or say dflash (--drafter, drafter=)"


def check_kind(config: Mapping[str, Any], state: Mapping[str, Tensor], name: str) -> list[str]:
    """Refuse what is not an EAGLE-3 head in floating point; returns notes.

    Raises:
        HeadError: with the kind of thing that was found.
    """
    if kind := _other_kind(config, state):
        advice = {_MODEL: _DRAFT_MODEL, _DFLASH: _AS_DFLASH}.get(kind, _HEAD)
        raise HeadError(f"{name} is {kind}, not an EAGLE-3 head. {advice}")
    if kind := _other_layer(config, state):
        raise HeadError(f"{name} is an EAGLE-3 head with {kind}, which is not supported. {_HEAD}")
    return _check_quantised(config, state, name)


def _other_kind(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> str | None:
    keys = list(state)
    stated = str(config.get("speculators_model_type", "eagle3"))
    classes = " ".join(map(str, config.get("architectures") or ()))
    if _any(keys, r"lora_[AB]|lora_embedding"):
        return "a LoRA adapter"
    if "medusa_num_heads" in config or _any(keys, r"^medusa_head\.|^\d+\.\d+\.linear\."):
        return "a Medusa head"
    if "dflash_config" in config or "DFlash" in classes or stated == "dflash":
        return _DFLASH
    if stated != "eagle3":
        return f"a speculator of type {stated}"
    if "mask_hidden" in state or "ptd_token_id" in config:
        return "a parallel drafter (P-EAGLE)"
    if _any(keys, r"(^|\.)mtp[._]|\.eh_proj\.|\.enorm\."):
        return "a multi-token-prediction (MTP) layer"
    return _eagle_or_model(keys, state)


def _eagle_or_model(keys: list[str], state: Mapping[str, Tensor]) -> str | None:
    fc = next((t for k, t in state.items() if re.search(r"(^|\.)fc\.weight$", k)), None)
    normed = _any(keys, r"\.hidden_norm\.weight$")
    if fc is not None and not normed and fc.ndim == 2 and fc.shape[1] == 2 * fc.shape[0]:
        return "an EAGLE-1 or EAGLE-2 head (its fc reads one feature and one embedding)"
    if fc is not None and normed:
        return None
    layers = {m[1] for k in keys if (m := re.search(r"(?:layers|h|blocks)\.(\d+)\.", k))}
    if fc is None and (len(layers) > 1 or _any(keys, r"^(model|transformer)\.")):
        return _MODEL
    if fc is None and normed:
        return "a head without fc (use_aux_hidden_state is off)"
    return "something else (it has no fc with a hidden_norm)"


def _other_layer(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> str | None:
    if _any(state, r"\.(kv_a_proj_with_mqa|kv_b_proj|q_a_proj)\."):
        return "multi-head latent attention (MLA)"
    if _any(state, r"\.experts\.|\.mlp\.(gate|router)\."):
        return "a mixture of experts"
    if _any(state, r"\.(qkv_proj|gate_up_proj)\."):
        return "fused projections (qkv_proj, gate_up_proj)"
    nested = config.get("eagle_config")
    if isinstance(nested, Mapping) and nested.get("use_aux_hidden_state") is False:
        return "use_aux_hidden_state off"
    return None


def _check_quantised(
    config: Mapping[str, Any], state: Mapping[str, Tensor], name: str
) -> list[str]:
    signs = [key for key in state if _QUANTISED.search(key)]
    signs += [
        f"{key} ({str(tensor.dtype).removeprefix('torch.')})"
        for key, tensor in state.items()
        if not key.endswith(_MAPS) and not _is_plain(tensor)
    ]
    stated = config.get("quantization_config") or config.get("compression_config")
    if signs:
        how = stated.get("quant_method", "") if isinstance(stated, Mapping) else ""
        raise HeadError(
            f"{name} is quantised{f' ({how})' if how else ''}: it holds {', '.join(signs[:3])}"
            f"{' ...' if len(signs) > 3 else ''}. Graft reads heads in fp32, fp16 or bf16; use the "
            "unquantised one"
        )
    if stated:
        return ["quantization_config is there, but the weights are not quantised: not read"]
    return []


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def _any(keys: Any, pattern: str) -> bool:
    return any(re.search(pattern, key) for key in keys)
