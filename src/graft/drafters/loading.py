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
from graft.drafters.eagle3.checkpoint import find_folder
from graft.models import LoadedModel, ModelError, load_model

# Who drafts: an EAGLE-3 head, an independent draft model, a DFlash drafter, nobody.
DrafterKind = Literal["eagle3", "model", "dflash", "none"]
# What messages call an argument: its name in Python, and on the command line.
_HEAD, _DRAFT_MODEL = "head (--head)", "draft_model (--draft-model)"
_WINDOW = "head_window (--head-window)"
# Fields that only configurations of EAGLE-3 heads have.
_EAGLE3 = ("aux_hidden_states_layer_ids", "draft_vocab_size", "eagle_config")


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
        kind: which one; None takes what `head` (by its files) or `draft_model` is. "none" goes
            with neither.
        head: checkpoint of an EAGLE-3 head or a DFlash drafter.
        draft_model: a smaller model with the target's tokenizer.
        window: positions back that an EAGLE-3 head sees.

    Raises:
        ValueError: for arguments that do not fit together, and checkpoints that are refused.
    """
    check_choice(kind, head, draft_model)
    if window is not None and (head is None or kind == "dflash"):
        raise ValueError(f"{_WINDOW} limits an EAGLE-3 head, and none is loaded; leave it out")
    check_window(window)
    if draft_model is not None:
        return _model(target, draft_model, cpu_weights, progress)
    if head is None:
        return None
    if progress is not None:
        progress(f"loading the drafter {head}")
    folder = find_folder(head)
    if (kind or _kind_of(folder)) == "eagle3":
        return _eagle3(target, folder, str(head), window, cpu_weights, progress)
    if window is not None:
        raise ValueError(f"{_WINDOW} limits an EAGLE-3 head, but {head} is a DFlash drafter")
    return _dflash(target, folder)


def check_window(window: int | None) -> None:
    """Refuse what is no window."""
    if window is not None and window < 1:
        raise ValueError(f"head_window={window} (--head-window): 1 or more positions are supported")


def check_choice(
    kind: DrafterKind | None,
    head: str | Path | None,
    draft_model: str | Path | PreTrainedModel | None,
) -> None:
    """Refuse arguments that do not fit together."""
    if kind is not None and kind not in get_args(DrafterKind):
        supported = ", ".join(get_args(DrafterKind))
        raise ValueError(f"drafter={kind!r} (--drafter): supported are {supported}")
    given = {_HEAD: head, _DRAFT_MODEL: draft_model}
    named = [name for name, value in given.items() if value is not None]
    if empty := [name for name in named if given[name] == ""]:
        raise ValueError(f"{empty[0]} is empty: give a folder or a hub id, or leave it out")
    if len(named) > 1:
        raise ValueError(f"{_HEAD} and {_DRAFT_MODEL} are both given: give one of them")
    if kind == "none" and named:
        raise ValueError(
            f"drafter='none' loads no drafter, but {named[0]} is given: leave out one of them (to "
            "decode without a loaded drafter, choose policy retrieval)"
        )
    needed = {"eagle3": _HEAD, "dflash": _HEAD, "model": _DRAFT_MODEL}.get(kind or "")
    if needed is not None and needed not in named:
        raise ValueError(f"drafter={kind!r} needs {needed}: name the checkpoint to load")


def kind_of(head: str | Path) -> DrafterKind:
    """The kind of drafter that a checkpoint is, as `load_drafter` will find.

    Raises:
        ValueError: where there is no such checkpoint.
    """
    return _kind_of(find_folder(head))


def _kind_of(folder: Path) -> DrafterKind:
    """What a head's own config says it is; its loader says what is wrong with it."""
    return _stated_kind(folder) or "eagle3"


def _stated_kind(folder: Path) -> DrafterKind | None:
    """The kind of head that a config.json describes; None if there is no sign of either."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict):
        return None
    fields = ("architectures", "model_type", "speculators_model_type")
    stated = " ".join(str(config.get(name)) for name in fields).lower()
    if "muse_glimmer_assistant" in stated or "dflash" in " ".join([*config, stated]).lower():
        return "dflash"
    return "eagle3" if "eagle3" in stated or any(name in config for name in _EAGLE3) else None


def _eagle3(
    target: LoadedModel,
    folder: Path,
    name: str,
    window: int | None,
    cpu_weights: Any,
    progress: Callable[[str], None] | None,
) -> Drafter:
    from graft.drafters.eagle3.drafter import Eagle3Drafter
    from graft.drafters.eagle3.loader import load_head
    from graft.drafters.eagle3.target_facts import facts_of

    model = target.model
    found = load_head(folder, facts_of(target), dtype=model.dtype, device=model.device, name=name)
    head = found.head
    if progress is not None:
        for note in found.report.notes:
            progress(f"the head: {note}")
    if cpu_weights != "fp32" and model.device.type == "cpu" and model.dtype == torch.float32:
        _pack(head)
    embed = model.get_input_embeddings()
    assert embed is not None
    return Eagle3Drafter(head, embed, target.token_count, window, target.recorder)


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


def _misplaced(draft_model: object) -> str | None:
    """What kind of head was taken for a model, if it is one; nothing is fetched to know it."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    folder = Path(str(draft_model)).expanduser()
    if not folder.is_dir():
        try:
            cached = try_to_load_from_cache(str(draft_model), "config.json")
        except HFValidationError:
            return None
        if not isinstance(cached, str):
            return None
        folder = Path(cached).parent
    names = {"eagle3": "an EAGLE-3 head", "dflash": "a DFlash drafter"}
    return names.get(_stated_kind(folder) or "")


def _model(
    target: LoadedModel,
    draft_model: str | Path | PreTrainedModel,
    cpu_weights: Any,
    progress: Callable[[str], None] | None,
) -> Drafter:
    from graft.drafters.independent import ModelDrafter
    from graft.target import TransformersTarget

    given = isinstance(draft_model, PreTrainedModel)
    if progress is not None and not given:
        progress(f"loading the draft model {draft_model}")
    try:
        found = load_model(
            draft_model,
            tokenizer=target.tokenizer if given else None,
            device="auto" if given else target.model.device,
            cpu_weights=cpu_weights,
            progress=progress,
        )
    except ModelError as error:
        if not given and (kind := _misplaced(draft_model)):
            raise ModelError(f"{draft_model} is {kind}: give it as {_HEAD}") from error
        raise
    if found.fingerprint != target.fingerprint:
        raise ModelError(
            f"the draft model {found.name} has another tokenizer than {target.name}: a draft model "
            "must share it; take a smaller model of the same family"
        )
    if found.model.device != target.model.device:
        raise ModelError(
            f"the draft model {found.name} is on {found.model.device} and {target.name} on "
            f"{target.model.device}: move it there first"
        )
    try:
        seen = TransformersTarget(found.model, max_context=found.max_context)
    except ValueError as error:
        raise ModelError(f"the draft model {found.name} is refused: {error}") from error
    return ModelDrafter(seen, min(found.token_count, target.token_count))
