"""PackReport: what became of a model's linears; and what keeps one from being packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn


@dataclass(frozen=True)
class PackReport:
    """What packing did.

    Attributes:
        packed: modules replaced; one that hangs in several places counts once.
        kept: "name: reason" of every linear left as it was.
        bytes_saved: by packing; below zero where the packed weight stands beside the stored one.
        kind: dtype of the packed weights.
    """

    packed: int
    kept: tuple[str, ...]
    bytes_saved: int
    kind: Literal["fp16", "bf16"] = "fp16"


def obstacle(module: nn.Module, dtype: torch.dtype, name: str) -> str | None:
    """Why a linear with weights of `dtype` (called `name`) cannot be replaced, whatever its values;
    None if it can."""
    hooked = "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks
    if hooked or module._parameters.get("weight") is None:
        return "hooked, or its weight is computed"
    fits = all(p.device.type == "cpu" and p.dtype == dtype for p in module.parameters())
    return None if fits else f"not {name} on the CPU"
