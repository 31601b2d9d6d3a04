"""Reading a `generate` call: what it asks for, and refusing by name what Graft does not do.

`generate` passes much through to a decoding function in silence (beams, caches, extra inputs of
the forward); what is not read here would be ignored, and the tokens would be others than asked
for. It does not know engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.distributed.fsdp import is_fsdp_managed_module
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from graft.integrations.hf_rows import Criteria, Prompt

__all__ = ["Ends", "check_call", "prompts_of", "read_criteria"]

_CACHES: Final = ("cache", "past_key_values", "cache_params")  # by version and model
# Inputs of the forward that change no token, or that are read elsewhere.
_IDLE: Final = frozenset(
    {
        *_CACHES,
        "attention_mask",
        "position_ids",
        "cache_position",
        "use_cache",
        "logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
    }
)
# What leads to a mode of decoding that Graft does not have.
_MODES: Final = (
    "num_beams",
    "num_beam_groups",
    "penalty_alpha",
    "dola_layers",
    "constraints",
    "force_words_ids",
    "prompt_lookup_num_tokens",
    "assistant_early_exit",
    "use_mtp",
)


class Ends(NamedTuple):
    """The stopping criteria of a call, by kind."""

    limit: int | None  # most tokens of a row, padding and prompt included
    tokens: frozenset[int]  # that end a row
    fills: bool  # rows that have ended are filled with the pad token
    others: list[Criteria]


def check_call(model: PreTrainedModel, config: GenerationConfig, inputs: Mapping[str, Any]) -> None:
    """Refuse what would be ignored.

    Args:
        inputs: what `generate` has for the model's forward, but for the token ids.

    Raises:
        ValueError: naming the setting and what to do instead.
    """
    _check_mode(config)
    _check_model(model)
    _check_outputs(config)
    _check_inputs(inputs)
    if config.cache_implementation == "quantized":
        raise ValueError(
            "cache_implementation='quantized' changes the logits, and Graft keeps its cache as the "
            "model computes it; leave it out"
        )


def _check_mode(config: GenerationConfig) -> None:
    mode = config.get_generation_mode(None)
    if mode in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        return
    found = {name: getattr(config, name, None) for name in _MODES}
    usual = {"num_beams": 1, "num_beam_groups": 1}
    given = ", ".join(f"{k}={v!r}" for k, v in found.items() if v and v != usual.get(k))
    raise ValueError(
        f"{given} asks for {mode.value.replace('_', ' ')}; Graft decodes greedily or by sampling, "
        "one answer at a time: leave it out, or leave custom_generate out"
    )


def _check_model(model: PreTrainedModel) -> None:
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{type(model).__name__} is an encoder-decoder model; Graft decodes decoder-only "
            "models: leave custom_generate out"
        )
    if model.training:
        raise ValueError("the model is in training mode, where dropout is on; call model.eval()")
    sharded = is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)
    if sharded and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        raise ValueError(
            "the model is sharded by DeepSpeed ZeRO-3 or FSDP, where all processes must run the "
            "same number of forwards (synced_gpus); Graft does not do that"
        )


def _check_outputs(config: GenerationConfig) -> None:
    if not config.return_dict_in_generate:
        return
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name, False):
            raise ValueError(
                f"{name}=True is not supported: a forward over a tree has other shapes than one "
                "over a token; run the model once over the finished sequence to get them"
            )


def _check_inputs(inputs: Mapping[str, Any]) -> None:
    for name in _CACHES:
        cache = inputs.get(name)
        if cache is not None and cache.get_seq_length() > 0:
            raise ValueError(
                f"{name}= holds {cache.get_seq_length()} tokens; Graft keeps a cache of its own "
                "and cannot go on from another: leave it out and give the whole text as input_ids"
            )
    if inputs.get("inputs_embeds") is not None:
        raise ValueError(
            "inputs_embeds= is not supported: retrieval needs the prompt's token ids; give "
            "input_ids alone"
        )
    for name, value in inputs.items():
        if name not in _IDLE and value is not None and value is not False:
            raise ValueError(
                f"{name}= would go to the model's forward; Graft gives it token ids and positions "
                "only: leave it out"
            )


def prompts_of(ids: Tensor, inputs: Mapping[str, Any], width: int) -> list[Prompt]:
    """The rows of the input [B, n], with how much of each is padding.

    Args:
        inputs: attention_mask [B, n] (None: no padding) and position_ids, where given.
        width: token ids there are.

    Raises:
        ValueError: for rows without tokens, masks with holes, positions of one's own.
    """
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise ValueError(
            f"input_ids of shape {tuple(ids.shape)}: rows of at least one token, please"
        )
    mask = inputs.get("attention_mask")
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.to(ids.device) != 0
    if real.shape != ids.shape:
        raise ValueError(
            f"attention_mask has shape {tuple(real.shape)}, input_ids {tuple(ids.shape)}: both "
            "must have the same"
        )
    padding = (~real).sum(dim=1, keepdim=True)  # [B, 1]
    place = torch.arange(ids.shape[1], device=ids.device)
    if not bool((real == (place >= padding)).all()):
        raise ValueError(
            "attention_mask has zeros behind a one: only padding at the left can be left out; set "
            "tokenizer.padding_side = 'left' (where no mask was given, generate took each pad "
            "token of the prompt for padding: pass attention_mask)"
        )
    if bool((padding == ids.shape[1]).any()):
        raise ValueError("attention_mask hides a whole row: there is nothing to continue")
    _check_positions(inputs.get("position_ids"), place - padding, real)
    if bad := ids[real & ((ids < 0) | (ids >= width))].tolist():
        raise ValueError(f"token id {bad[0]}: the model has ids 0 to {width - 1}")
    counts = padding.flatten().tolist()
    return [Prompt(row, ids[row : row + 1], count) for row, count in enumerate(counts)]


def _check_positions(found: Tensor | None, usual: Tensor, real: Tensor) -> None:
    if found is None:
        return
    if found.ndim != 2 or bool(((found.to(usual.device) != usual) & real).any()):
        raise ValueError(
            "position_ids other than 0, 1, 2 ... from the first token on are not supported; leave "
            "them out"
        )


def read_criteria(criteria: Sequence[Criteria]) -> Ends:
    """Sort the stopping criteria of a call: those that are settings, and others to be asked."""
    limits = [each.max_length for each in criteria if type(each) is MaxLengthCriteria]
    tokens: set[int] = set()
    for each in criteria:
        if type(each) is EosTokenCriteria:
            tokens.update(each.eos_token_id.tolist())
    return Ends(
        limit=min(limits, default=None),
        tokens=frozenset(tokens),
        fills=any(hasattr(each, "eos_token_id") for each in criteria),
        others=[e for e in criteria if type(e) not in (MaxLengthCriteria, EosTokenCriteria)],
    )
