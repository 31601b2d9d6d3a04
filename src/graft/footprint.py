"""Footprint: memory that an engine holds besides what plain decoding of its model holds. [ours]

Everything is as large from the start as it ever gets, but for a drafter's cache, which grows with
the sequences as the target's own does. It knows sizes alone.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from graft.cache import KVCache
from graft.linear import PackedLinear


class Part(NamedTuple):
    """Something that is held."""

    what: str
    bytes: int
    per_token: int = 0  # bytes that each token of a sequence adds


def weight_bytes(module: nn.Module) -> int:
    """Of the weights below a module, packed ones as they are packed."""
    size = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    packed = (m for m in module.modules() if isinstance(m, PackedLinear) and m.packed)
    return size + sum(2 * m.in_features * m.out_features for m in packed)


def of_drafter(what: str, weights: nn.Module, cache: KVCache | None) -> list[Part]:
    """A drafter with weights and a cache of its own, which is None before the first sequence."""
    parts = [Part(what, weight_bytes(weights))]
    if cache is not None:
        parts.append(Part(f"{what}'s cache", cache.bytes, cache.row_bytes))
    return parts
