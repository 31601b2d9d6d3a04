"""Tensors against the head they are for: nothing missing, nothing left over, all shapes right."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from graft.drafters.eagle3.config import Eagle3Config
from graft.drafters.eagle3.errors import HeadError
from graft.drafters.eagle3.head import Eagle3Head

# Parts of names that a field of the configuration brings along.
_BROUGHT = {
    "input_norm.": "norm_before_fc",
    "feature_norms.": "fc_norm",
    "q_norm.": "a qwen3 model_type",
    "k_norm.": "a qwen3 model_type",
    "fc.bias": "bias",
    "q_proj.bias": "attention_bias",
    "k_proj.bias": "attention_bias",
    "v_proj.bias": "attention_bias",
    "o_proj.bias": "attention_bias",
    "_proj.bias": "mlp_bias",
}
_ABSENT = {
    "lm_head.weight": "a head that shares the target's lm_head is not supported",
}
_SHOWN = 8


def empty_head(config: Eagle3Config) -> Eagle3Head:
    """A head of this shape without storage for its weights."""
    with torch.device("meta"):
        return Eagle3Head(config)


def check_tensors(
    head: Eagle3Head, state: Mapping[str, Tensor], name: str, spell: Callable[[str], str]
) -> None:
    """Compare a state dict (without the vocabulary's tables) with what a head holds.

    Args:
        spell: from the head's name of a tensor to the checkpoint's, for messages.

    Raises:
        HeadError: naming all tensors that are missing, left over or of another shape, and the
            fields of config.json that would explain them.
    """
    wanted = {k: list(t.shape) for k, t in head.state_dict().items() if k != "target_ids"}
    found = {k: list(t.shape) for k, t in state.items()}
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    shapes = [
        f"{spell(k)} is {found[k]} instead of {wanted[k]}"
        for k in wanted
        if k in found and found[k] != wanted[k]
    ]
    kinds = {
        "missing": [spell(k) for k in missing],
        "unknown": [spell(k) for k in unknown],
        "wrong shape": shapes,
    }
    faults = [f"{kind}: {_listed(names)}" for kind, names in kinds.items() if names]
    if faults:
        hint = "".join(_hints(missing, unknown)) or (
            "; config.json and weights must come from the same training"
        )
        raise HeadError(
            f"the tensors of {name} do not fit its config.json: {'. '.join(faults)}{hint}"
        )


def _hints(missing: list[str], unknown: list[str]) -> list[str]:
    brought, claimed = _fields(unknown), _fields(missing)
    hints = [f"; {field} in config.json would explain the unknown ones" for field in brought]
    hints += [f"; config.json states {field}, which asks for the missing ones" for field in claimed]
    return hints + [f"; {why}" for name, why in _ABSENT.items() if name in missing]


def _fields(names: list[str]) -> list[str]:
    found = [next((f for part, f in _BROUGHT.items() if part in name), None) for name in names]
    return list(dict.fromkeys(field for field in found if field is not None))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN + 2 else ""
    return ", ".join(names[:_SHOWN] if more else names) + more
