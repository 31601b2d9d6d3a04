"""PackReport: what became of a model's linears."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
