"""One engine per model object, for calls that come with a model and nothing else.

An engine is costly to make (a probe) and worth keeping (its matrix), so it stays as long as its
model does. Invariant: nothing here keeps a model alive, and a model's weights, code and settings
are left as they are. It does not know settings of generation.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple, NoReturn, cast

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from graft.cuda_graphs import recorder_for
from graft.engine import Engine
from graft.model_support import ModelError, check_config, check_model, last_fixed_position
from graft.probe import TOKENS, TOLERANCE
from graft.target import TransformersTarget

__all__ = ["engine_of", "forget"]


class _State(NamedTuple):
    """What an engine was built for."""

    device: torch.device
    dtype: torch.dtype
    width: int  # of the logits


class _Kept(NamedTuple):
    state: _State
    attention: str  # the model's own implementation, when it was last compared with ours
    engine: Engine


_KEPT: weakref.WeakKeyDictionary[PreTrainedModel, _Kept] = weakref.WeakKeyDictionary()


class _NoTokenizer:
    """Stands where an engine expects a tokenizer: token ids go in and out, no text."""

    @property
    def chat_template(self) -> NoReturn:
        raise ValueError(
            "this engine was made from a model alone and has no tokenizer: give it token ids, or "
            "use graft.load(model, tokenizer=...) for text"
        )

    def decode(self, *_: Any, **__: Any) -> str:
        return ""


def engine_of(model: PreTrainedModel) -> Engine:
    """The engine that decodes for this model object; made on first use, then kept.

    It lives as long as the model and its matrix learns from every call. It is made anew where the
    model has moved to another device or dtype, or its vocabulary was resized.

    Raises:
        ValueError: for a model that cannot be decoded by trees, or whose own attention says
            something else than Graft's.
    """
    state = _State(model.device, model.dtype, _width(model))
    own = str(model.config.get_text_config(decoder=True)._attn_implementation)
    kept = _KEPT.get(model)
    if kept is None or kept.state != state:
        kept = _Kept(state, "", _build(model))
    if kept.attention != own:
        _compare_attention(model, kept.engine, own)
        kept = kept._replace(attention=own)
    _KEPT[model] = kept
    return kept.engine


def forget(model: PreTrainedModel) -> None:
    """Drop the engine of this model, and with it the matrix and the cache memory."""
    _KEPT.pop(model, None)


def _build(model: PreTrainedModel) -> Engine:
    name = str(getattr(model, "name_or_path", "") or type(model).__name__)
    check_config(model.config, name)
    check_model(model, name)
    try:
        target = TransformersTarget(
            model, max_context=_last_position(model), recorder=recorder_for(model)
        )
    except ValueError as error:
        raise ModelError(f"{name} is refused: {error}") from error
    # Else the kept engine would keep its own key alive.
    target.model = cast(PreTrainedModel, weakref.proxy(model))
    return Engine(
        target,
        cast(PreTrainedTokenizerBase, _NoTokenizer()),
        name=name,
        token_count=target.vocab_size,
        eos_token_ids=(),
    )


def _width(model: PreTrainedModel) -> int:
    head = model.get_output_embeddings()
    if head is None:
        raise ModelError(f"{type(model).__name__} has no output layer: it is no language model")
    return int(head.weight.shape[0])


def _last_position(model: PreTrainedModel) -> int | None:
    """Positions of a model that looks them up in a table, or whose rotary scaling changes with the
    length. Others go on past the stated number, as they do in plain `generate`."""
    words = model.get_input_embeddings()
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not words]
    config = model.config.get_text_config(decoder=True)
    stated = getattr(config, "max_position_embeddings", None)
    return stated if tables else last_fixed_position(config)


@torch.inference_mode()
def _compare_attention(model: PreTrainedModel, engine: Engine, own: str) -> None:
    """The probe compares ours with the eager form; the user's own choice may be another law."""
    target = cast(TransformersTarget, engine.target)
    tokens = torch.tensor([TOKENS], device=target.device) % target.vocab_size
    plain = model(input_ids=tokens, use_cache=False).logits
    with target.attention("eager"):
        eager = model(input_ids=tokens, use_cache=False).logits
    off = (plain - eager).abs().max() / eager.float().std().clamp(min=1e-6)
    config = model.config.get_text_config(decoder=True)
    capped = getattr(config, "attn_logit_softcapping", None) and own == "sdpa"
    if capped or not off <= TOLERANCE[eager.dtype]:
        raise ModelError(
            f"{engine.name}: its attention implementation {own!r} gives other logits than the "
            "model's eager form, which Graft reproduces, so the tokens would differ from plain "
            "generate's; call model.set_attn_implementation('eager')"
        )
