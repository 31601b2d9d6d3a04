"""Loading a DFlash drafter from a folder, strictly.

Invariant: every tensor of the checkpoint is used and every weight of the network comes from it
(or from the target, where the format shares it), each of the right size; otherwise one ValueError
says what is wrong. Nothing is fetched and no code beside the weights is run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graft.drafters.dflash.config import DFlashConfig
from graft.drafters.dflash.drafter import DFlashDrafter
from graft.drafters.dflash.formats import TargetShape, read_format
from graft.drafters.dflash.model import DFlashModel
from graft.drafters.eagle3.checkpoint import read_file
from graft.drafters.eagle3.errors import HeadError

__all__ = ["Understood", "load_dflash", "understand"]

# Names of Transformers' muse_glimmer_assistant for what the others call differently.
_RENAMED = {
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
}
_NAMED = 4  # tensors a message names before it counts the rest


class Understood(NamedTuple):
    """A checkpoint that was checked: the file, its meaning, weights in the network's names."""

    raw: dict[str, Any]
    config: DFlashConfig
    tensors: dict[str, Tensor]  # on the CPU, as stored


def load_dflash(
    path: str | Path,
    target_config: Any,
    embeddings: nn.Module,
    lm_head: Callable[[Tensor], Tensor],
    *,
    token_count: int | None = None,
    mask_token_id: int | None = None,
    dtype: torch.dtype | None = None,
) -> DFlashDrafter:
    """Load a drafter for a target.

    Args:
        path: a folder with config.json and *.safetensors (or pytorch_model.bin).
        target_config: the target's Transformers configuration.
        embeddings: the target's input embeddings; only their weight is read, so a norm or scale
            of the target's own does not apply [DFlash's public code].
        lm_head: the target's output layer.
        token_count: ids the tokenizer knows; others are never drafted. None: all are known.
        mask_token_id: for checkpoints that name none.
        dtype: of the drafter; None takes that of the embeddings.

    Raises:
        ValueError: on anything wrong with the files, or where they do not fit the target.
    """
    folder = Path(path)
    weight = getattr(embeddings, "weight", None)
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        raise ValueError("a DFlash drafter reads the target's embeddings: they must be in full")
    text = target_config.get_text_config()
    target = TargetShape(text.hidden_size, text.num_hidden_layers, weight.shape[0])
    found = understand(folder, target, mask_token_id)
    model = _build(found.config, found.tensors, weight.device, dtype or weight.dtype)
    own = model.embed_tokens
    table = weight.detach() if own is None else own.weight
    shared = partial(_in_dtype, lm_head, weight.dtype)
    layer = shared if model.lm_head is None else model.lm_head
    return DFlashDrafter(model, table, layer, token_count)


def understand(
    folder: Path, target: TargetShape | None, mask_token_id: int | None = None
) -> Understood:
    """Read and check a drafter without building it.

    Args:
        target: None checks it against what it states of its target itself.

    Raises:
        ValueError: as `load_dflash`.
    """
    try:
        raw, tensors = _read_config(folder), _read_tensors(folder)
        target = target or _stated_target(raw)
        config = read_format(raw, tensors, target, mask_token_id)
        _check_fit(config, target)
        _check_weights(config, tensors, raw.get("model_type") == "muse_glimmer_assistant")
    except ValueError as error:
        raise ValueError(f"DFlash drafter {folder}: {error}") from error
    return Understood(raw, config, tensors)


def _stated_target(raw: Mapping[str, Any]) -> TargetShape:
    """The target as the checkpoint itself states it: for a look at it without a target.

    Raises:
        ValueError: where the file leaves to the target what is needed.
    """
    parts = (raw, raw.get("transformer_layer_config"), raw.get("dflash_config"))
    every = {k: v for p in parts if isinstance(p, Mapping) for k, v in p.items() if v is not None}
    ids = every.get("target_layer_ids") or every.get("aux_hidden_state_layer_ids")
    named = isinstance(ids, list) and all(type(i) is int for i in ids)
    width = every.get("target_hidden_size", every.get("hidden_size"))
    layers = every.get("num_target_layers", max(ids) + 1 if ids and named else None)
    found: dict[str, Any] = {
        "hidden_size": width,
        "target_layer_ids": layers,
        "vocab_size": every.get("vocab_size"),
    }
    if silent := [name for name, value in found.items() if type(value) is not int]:
        raise ValueError(
            f"config.json does not state {', '.join(silent)}, which then depend on the target: "
            "name the target (--model) to check the drafter against it"
        )
    return TargetShape(*found.values())


def _in_dtype(layer: Callable[[Tensor], Tensor], dtype: torch.dtype, hidden: Tensor) -> Tensor:
    return layer(hidden.to(dtype))


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"config.json cannot be opened ({error.strerror}); is it a folder with a drafter?"
        ) from error
    except ValueError as error:
        raise ValueError(f"config.json is not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ValueError("config.json holds no settings")
    return raw


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors, by the names that this project uses, on the CPU."""
    old = folder / "pytorch_model.bin"
    files = sorted(folder.glob("*.safetensors")) or ([old] if old.exists() else [])
    if not files:
        raise ValueError("no *.safetensors and no pytorch_model.bin beside config.json")
    try:
        parts = [read_file(file) for file in files]
    except HeadError as error:
        raise ValueError(f"the weights cannot be read ({error})") from error
    return {_RENAMED.get(name, name): t for part in parts for name, t in part.items()}


def _check_fit(config: DFlashConfig, target: TargetShape) -> None:
    """Refuse a drafter whose width does not fit what it shares with the target."""
    if config.target_hidden_size != target.hidden_size:
        raise ValueError(
            f"target_hidden_size={config.target_hidden_size}, but the target's is "
            f"{target.hidden_size}: this drafter was trained for another target"
        )
    shared = not (config.own_embeddings and config.own_head)
    if shared and config.hidden_size != target.hidden_size:
        raise ValueError(
            f"hidden_size={config.hidden_size}, but it shares embeddings or output layer with a "
            f"target of {target.hidden_size}: this drafter was trained for another target"
        )
    if config.draft_vocab_size != config.vocab_size and not config.own_head:
        raise ValueError(
            f"draft_vocab_size={config.draft_vocab_size} of {config.vocab_size} tokens needs "
            "lm_head.weight in the checkpoint, which has none"
        )


def _build(
    config: DFlashConfig, tensors: dict[str, Tensor], device: torch.device, dtype: torch.dtype
) -> DFlashModel:
    """The network with the checkpoint's tensors as its weights, on `device` in `dtype`."""
    model = _empty(config)
    model.load_state_dict(
        {
            name: tensor.to(device, dtype if tensor.is_floating_point() else torch.int64)
            for name, tensor in tensors.items()
        },
        assign=True,
    )
    model.rotary.to(device)  # in float32, whatever the weights are in
    return model.eval().requires_grad_(False)


def _empty(config: DFlashConfig) -> DFlashModel:
    with torch.device("meta"):  # no storage: the weights take the tensors' place
        return DFlashModel(config)


def _check_weights(config: DFlashConfig, tensors: dict[str, Tensor], renamed: bool) -> None:
    """Compare the tensors with the network, and take out the mask that it has no use for.

    renamed: the checkpoint calls some tensors otherwise, and so must messages.
    """
    wanted = _empty(config).state_dict()
    known = tensors.pop("t2d", None) if "d2t" in wanted else None
    spelt = {ours: theirs for theirs, ours in _RENAMED.items()} if renamed else {}
    found, wanted = ({spelt.get(k, k): t for k, t in d.items()} for d in (tensors, wanted))
    _check_tensors(found, wanted)
    if "d2t" in wanted:
        _check_ids(tensors["d2t"], known, config.vocab_size)


def _check_tensors(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    sizes = [
        f"{name} is {list(found[name].shape)} for {list(wanted[name].shape)}"
        for name in wanted.keys() & found.keys()
        if found[name].shape != wanted[name].shape
    ]
    packed = [
        f"{name} in {found[name].dtype}".replace("torch.", "")
        for name in wanted.keys() & found.keys()
        if found[name].is_floating_point() != wanted[name].is_floating_point()
    ]
    faults = [
        *_named("unknown tensors", found.keys() - wanted.keys()),
        *_named("missing tensors", wanted.keys() - found.keys()),
        *_named("tensors of the wrong size", sizes),
        *_named("tensors of an unsupported dtype", packed),
    ]
    if faults:
        raise ValueError("; ".join(faults))


def _named(what: str, names: Any) -> Iterator[str]:
    names = sorted(names)
    if names:
        rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"{what}: {', '.join(names[:_NAMED])}{rest}"


def _check_ids(offsets: Tensor, known: Tensor | None, vocab_size: int) -> None:
    """The draft ids' targets must exist, differ, and agree with the mask t2d where there is one."""
    ids = offsets.long() + torch.arange(len(offsets))
    if bool((ids < 0).any() or (ids >= vocab_size).any()) or len(ids.unique()) != len(ids):
        raise ValueError(f"d2t leads outside the target's {vocab_size} tokens, or twice to one")
    if known is None:
        return
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[ids] = True
    if not torch.equal(known.bool().flatten(), mask):
        raise ValueError("t2d and d2t disagree about which tokens the drafter can name")
