"""From a checkpoint's name to a drafter for a loaded target.

It knows the kinds of drafters and their loaders, not what they do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from transformers import PreTrainedModel

from graft.drafters.base import Drafter
from graft.models import LoadedModel, ModelError, load_model

# Who drafts: an EAGLE-3 head, an independent draft model, a DFlash drafter, nobody.
DrafterKind = Literal["eagle3", "model", "dflash", "none"]


def load_drafter(
    target: LoadedModel,
    *,
    kind: DrafterKind | None = None,
    head: str | Path | None = None,
    draft_model: str | Path | PreTrainedModel | None = None,
    window: int | None = None,
    cpu_weights: Any = "auto",
    progress: Callable[[str], None] | None = None,
) -> Drafter | None:
    """Load the drafter that the arguments name; None if they name none.

    Args:
        kind: which one; None takes what `head` (by its files) or `draft_model` is.
        head: checkpoint of an EAGLE-3 head or a DFlash drafter.
        draft_model: a smaller model with the target's tokenizer.
        window: positions back that an EAGLE-3 head sees.

    Raises:
        ValueError: for arguments that do not fit together, and checkpoints that are refused.
    """
    kind = _kind(kind, head, draft_model)
    if window is not None and kind != "eagle3":
        raise ValueError("head_window limits an EAGLE-3 head, and none is loaded; leave it out")
    if window is not None and window < 1:
        raise ValueError(f"head_window={window}: 1 or more positions are supported")
    if kind == "none":
        return None
    if progress is not None:
        progress(f"loading the drafter {head or draft_model}")
    if kind == "model":
        return _model(target, draft_model, cpu_weights, progress)
    assert head is not None
    if kind == "dflash":
        return _dflash(target, head)
    return _eagle3(target, head, window, cpu_weights, progress)


def _kind(
    kind: DrafterKind | None,
    head: str | Path | None,
    draft_model: str | Path | PreTrainedModel | None,
) -> DrafterKind:
    if kind is not None and kind not in get_args(DrafterKind):
        supported = ", ".join(get_args(DrafterKind))
        raise ValueError(f"drafter={kind!r}: supported are {supported}")
    if head is not None and draft_model is not None:
        raise ValueError("a head and a draft model are both given: give one of them")
    if kind is None:
        return "model" if draft_model is not None else _kind_of(head) if head else "none"
    if kind == "none":
        return kind
    needed, given = ("draft_model", draft_model) if kind == "model" else ("head", head)
    if given is None:
        raise ValueError(f"drafter={kind!r} needs {needed}: name the checkpoint to load")
    return kind


def _kind_of(head: str | Path) -> DrafterKind:
    """What a head's own config says it is; its loader says what is wrong with it."""
    try:
        text = (Path(head).expanduser() / "config.json").read_text(encoding="utf-8")
        config = json.loads(text)
    except (OSError, ValueError):
        return "eagle3"
    named = " ".join([*map(str, config.get("architectures") or ()), *config])
    return "dflash" if "dflash" in named.lower() else "eagle3"


def _eagle3(
    target: LoadedModel,
    path: str | Path,
    window: int | None,
    cpu_weights: Any,
    progress: Callable[[str], None] | None,
) -> Drafter:
    from graft.drafters.eagle3.drafter import Eagle3Drafter
    from graft.drafters.eagle3.facts import TargetFacts
    from graft.drafters.eagle3.loader import load_head

    config = target.model.config.get_text_config(decoder=True)
    facts = TargetFacts(
        name=target.name,
        hidden_size=int(config.hidden_size),
        vocab_size=target.vocab_size,
        token_count=target.token_count,
        num_hidden_layers=int(config.num_hidden_layers),
        fingerprint=target.fingerprint,
    )
    model = target.model
    found = load_head(path, facts, dtype=model.dtype, device=model.device)
    head = found.head
    if progress is not None:
        for note in found.report.notes:
            progress(f"the head: {note}")
    if cpu_weights != "fp32" and model.device.type == "cpu" and model.dtype == torch.float32:
        _pack(head)
    embed = model.get_input_embeddings()
    assert embed is not None
    return Eagle3Drafter(head, embed, target.token_count, window)


def _pack(head: torch.nn.Module) -> None:
    """Keep a head's linears in half precision: rounding them changes drafts, never the output."""
    from graft.linear import pack_linears

    try:
        pack_linears(head, "fp16")
    except ValueError:  # no such kernel here, or weights beyond fp16
        pack_linears(head, "auto")


def _dflash(target: LoadedModel, path: str | Path) -> Drafter:
    from graft.drafters.dflash.loader import load_dflash

    model = target.model
    embed, lm_head = model.get_input_embeddings(), model.get_output_embeddings()
    if embed is None or lm_head is None:
        raise ModelError(f"{target.name} shows no embeddings and output layer to share")
    return load_dflash(path, model.config, embed, lm_head, token_count=target.token_count)


def _model(
    target: LoadedModel,
    draft_model: str | Path | PreTrainedModel | None,
    cpu_weights: Any,
    progress: Callable[[str], None] | None,
) -> Drafter:
    from graft.drafters.independent import ModelDrafter
    from graft.target import TransformersTarget

    assert draft_model is not None
    given = isinstance(draft_model, PreTrainedModel)
    found = load_model(
        draft_model,
        tokenizer=target.tokenizer if given else None,
        device="auto" if given else target.model.device,
        cpu_weights=cpu_weights,
        progress=progress,
    )
    if found.fingerprint != target.fingerprint:
        raise ModelError(
            f"the draft model {found.name} has another tokenizer than {target.name}: a draft model "
            "must share it; take a smaller model of the same family"
        )
    try:
        seen = TransformersTarget(found.model, max_context=found.max_context)
    except ValueError as error:
        raise ModelError(f"the draft model {found.name} is refused: {error}") from error
    return ModelDrafter(seen, min(found.token_count, target.token_count))
