"""Foreign configurations of DFlash drafters, each turned into a `DFlashConfig`.

Three formats are read. They differ in how they name the target's layers, in where settings stand,
and in what a sliding window means:

    DFlashDraftModel (z-lab, SpecForge)   id i is the *output* of layer i; settings in
        `dflash_config` or beside it; sliding layers are causal unless `is_causal` says otherwise;
        a row sees `sliding_window` positions, itself included
    dflash of Speculators                 id i is the *input* of layer i; the shape stands in
        `transformer_layer_config`; sliding layers are causal unless `sliding_window_non_causal`
    muse_glimmer_assistant (Transformers) id i is the output of layer i; never causal; a row sees
        `sliding_window` positions back and itself

Invariant: a setting that would change what the network computes is read or refused by name. It
does not know tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from transformers import AutoConfig

from graft.drafters.dflash.config import DFlashConfig

Raw = Mapping[str, Any]

# Settings of relatives of DFlash, with the values that leave it as it is.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_swa_attention_sink_bias": (False,),
    "attention_mode": ("gqa", "mha"),
    "attention_sink_bias": (False,),
    "fc_norm": (False,),
    "is_neox_style": (True,),
    "projector_type": ("dflash",),
    "quantization_config": (),
    "rope_is_neox_style": (True,),
    "sample_from_anchor": (False,),
    "shift_label": (False,),
    "use_aux_hidden_state": (True,),
    "use_swa": (False,),
}
_READ = frozenset(
    {
        "block_size",
        "causal",
        "final_logit_softcapping",
        "input_embedding_scale",
        "mask_token_id",
        "num_target_layers",
        "output_multiplier",
        "pure_draft_prefix_len",  # of another projector
        "target_layer_ids",
    }
)
_SUPPORTED = (
    "DFlashDraftModel (z-lab, SpecForge), Speculators' dflash and Transformers' "
    "muse_glimmer_assistant are supported"
)


class TargetShape(NamedTuple):
    """What a drafter must fit."""

    hidden_size: int
    layers: int
    tokens: int  # rows of the embeddings


def read_format(
    raw: Raw, tensors: Collection[str], target: TargetShape, mask_token_id: int | None
) -> DFlashConfig:
    """The drafter that `config.json` describes.

    Args:
        raw: the parsed file.
        tensors: names in the checkpoint: they tell what is its own.
        mask_token_id: used where the file names none.

    Raises:
        ValueError: naming the setting, what was found and what is supported.
    """
    relative = raw.get("speculators_model_type")
    if relative == "dflash":
        return _speculators(raw, tensors, target, mask_token_id)
    if raw.get("model_type") == "muse_glimmer_assistant":
        return _muse_glimmer(raw, tensors, target)
    names = raw.get("architectures") or []
    if names == ["DFlashDraftModel"] and relative is None:
        return _dflash(raw, tensors, target, mask_token_id)
    found = relative or ", ".join(names) or raw.get("model_type")
    raise ValueError(f"config.json describes {found or 'no known drafter'}: {_SUPPORTED}")


def default_layer_ids(target_layers: int, draft_layers: int) -> list[int]:
    """Target layers read where a configuration names none: evenly from layer 1 to the third from
    the end, as many as the drafter has layers [DFlash's public code]."""
    if draft_layers == 1:
        return [target_layers // 2]
    span = target_layers - 4
    return [round(1 + i * span / (draft_layers - 1)) for i in range(draft_layers)]


def _dflash(
    raw: Raw, tensors: Collection[str], target: TargetShape, mask_token_id: int | None
) -> DFlashConfig:
    own = raw.get("dflash_config") or {}
    strange = sorted(set(own) - _READ - set(_NEUTRAL))
    if strange:
        raise ValueError(f"dflash_config has settings of another drafter: {', '.join(strange)}")
    every = {name: v for part in (raw, own) for name, v in part.items() if v is not None}
    _check_neutral(every)
    trained = every.get("num_target_layers")
    if trained is not None and trained != target.layers:
        raise ValueError(
            f"num_target_layers={trained}, but the target has {target.layers} layers: "
            "this drafter was trained for another target"
        )
    shape = _shape("qwen3", raw)
    causal = every.get("is_causal", every.get("causal"))
    ids = every.get("target_layer_ids") or default_layer_ids(target.layers, len(_kinds(shape)))
    return _config(
        shape,
        tensors,
        target,
        feature_layers=_outputs(ids, target),
        block_size=every.get("block_size"),
        mask_token_id=_mask(every, mask_token_id),
        windows=_windows(shape, 0),
        causal=tuple(s if causal is None else bool(causal) for s in _sliding(shape)),
        draft_vocab_size=every.get("draft_vocab_size"),
        embedding_scale=float(every.get("input_embedding_scale", 1.0)),
        logit_scale=float(every.get("output_multiplier", every.get("logit_scale", 1.0))),
        logit_softcap=every.get("final_logit_softcapping") or None,  # 0 caps nothing
    )


def _speculators(
    raw: Raw, tensors: Collection[str], target: TargetShape, mask_token_id: int | None
) -> DFlashConfig:
    _check_neutral(raw)
    layer = raw.get("transformer_layer_config") or {}
    shape = _shape(layer.get("model_type", "qwen3"), layer)
    free = raw.get("sliding_window_non_causal")
    if free is None and any(_sliding(shape)):
        raise ValueError(
            "sliding_window_non_causal is missing: with sliding layers nothing else tells whether "
            "rows of a block see what is behind them"
        )
    ids = tuple(raw.get("aux_hidden_state_layer_ids") or ())
    if not ids or not all(0 <= i <= target.layers for i in ids):
        raise ValueError(
            f"aux_hidden_state_layer_ids={list(ids)}: inputs of layers 0 to {target.layers} of the "
            "target are supported"
        )
    return _config(
        shape,
        tensors,
        target,
        feature_layers=ids,
        block_size=raw.get("block_size"),
        mask_token_id=_mask(raw, mask_token_id),
        windows=_windows(shape, 0),
        causal=tuple(s and not free for s in _sliding(shape)),
        draft_vocab_size=raw.get("draft_vocab_size"),
        target_hidden_size=raw.get("target_hidden_size"),
    )


def _muse_glimmer(raw: Raw, tensors: Collection[str], target: TargetShape) -> DFlashConfig:
    _check_neutral(raw)
    shape = _shape("muse_glimmer_assistant", raw)
    return _config(
        shape,
        tensors,
        target,
        feature_layers=_outputs(shape.target_layer_ids, target),
        block_size=shape.block_size,
        mask_token_id=shape.mask_token_id,
        windows=_windows(shape, 1),  # this one does not count the row itself
        causal=(False,) * len(_kinds(shape)),
    )


def _config(
    shape: Any, tensors: Collection[str], target: TargetShape, **settings: Any
) -> DFlashConfig:
    """What all formats have in common. `settings`: the rest, None where the file is silent."""
    vocab_size = getattr(shape, "vocab_size", target.tokens)
    own = "embed_tokens.weight" in tensors
    if vocab_size > target.tokens or (own and vocab_size != target.tokens):
        raise ValueError(
            f"vocab_size={vocab_size}, but the target has {target.tokens} tokens: "
            "this drafter was trained for another target"
        )
    defaults = {
        "target_hidden_size": target.hidden_size,
        "draft_vocab_size": target.tokens,
        "head_dim": getattr(shape, "head_dim", None)
        or shape.hidden_size // shape.num_attention_heads,
    }
    return DFlashConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        vocab_size=target.tokens,
        rope_parameters=dict(shape.rope_parameters),
        max_position_embeddings=shape.max_position_embeddings,
        rms_norm_eps=shape.rms_norm_eps,
        hidden_act=shape.hidden_act,
        attention_bias=getattr(shape, "attention_bias", False),
        own_embeddings=own,
        own_head="lm_head.weight" in tensors,
        **(defaults | {name: value for name, value in settings.items() if value is not None}),
    )


def _shape(kind: str, raw: Raw) -> Any:
    """The network's shape as its authors' own class reads it, defaults and old spellings too."""
    fields = {name: value for name, value in raw.items() if name != "model_type"}
    try:
        return AutoConfig.for_model(kind, **fields)
    except Exception as error:  # whatever the library's checks raise
        reason = " ".join(str(error).split())
        raise ValueError(f"config.json cannot be read as {kind}: {reason}") from error


def _kinds(shape: Any) -> list[str]:
    kinds = list(
        getattr(shape, "layer_types", None) or ["full_attention"] * shape.num_hidden_layers
    )
    strange = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if strange:
        raise ValueError(
            f"layer_types has {', '.join(strange)}: full_attention and sliding_attention are "
            "supported"
        )
    return kinds


def _sliding(shape: Any) -> list[bool]:
    return [kind == "sliding_attention" for kind in _kinds(shape)]


def _windows(shape: Any, extra: int) -> tuple[int | None, ...]:
    if any(_sliding(shape)) and not shape.sliding_window:
        raise ValueError("layer_types has sliding_attention, but there is no sliding_window")
    return tuple(shape.sliding_window + extra if s else None for s in _sliding(shape))


def _outputs(ids: Collection[int], target: TargetShape) -> tuple[int, ...]:
    """Feature layers of ids that mean outputs: what leaves layer i enters layer i + 1."""
    if not all(0 <= i < target.layers for i in ids):
        raise ValueError(
            f"target_layer_ids={list(ids)}: the target has layers 0 to {target.layers - 1}"
        )
    return tuple(i + 1 for i in ids)


def _mask(settings: Raw, given: int | None) -> int:
    found = settings.get("mask_token_id")
    found = given if found is None else found
    if found is None:
        raise ValueError(
            "config.json names no mask_token_id, the token that stands where one is to be drafted: "
            'add the one of its training to config.json, as "mask_token_id": N'
        )
    return int(found)


def _check_neutral(settings: Raw) -> None:
    for name, allowed in _NEUTRAL.items():
        found = settings.get(name)
        if found is not None and found not in allowed:
            raise ValueError(
                f"{name}={found!r} makes it another kind of drafter: "
                f"{' or '.join(map(repr, allowed)) or 'leaving it out'} is supported"
            )
