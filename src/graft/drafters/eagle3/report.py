"""HeadReport: what the loader understood of a checkpoint, for people and for machines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from graft.drafters.eagle3.config import Eagle3Config


@dataclass(frozen=True)
class HeadReport:
    """A checkpoint as it was understood.

    Attributes:
        path: where it was read. format: which converter read it.
        config: the head's shape.
        parameters: numbers in it. bytes: as stored. dtype: as stored.
        draft_vocab_size: tokens it can name. draft_share: of the target's vocabulary.
        own_embeddings: whether it has embeddings of its own.
        feature_layers: layers of the target whose inputs it reads; None if they depend on a
            target that was not given.
        written_layers: the ids as the checkpoint has them; None if it has none.
        rope: its rotary embedding in words. trained_length: positions it was trained for.
        digest: SHA-256 (16 hex digits) of names, shapes and values of all tensors and of the
            draft vocabulary: the same head has the same digest in all formats.
        made_for: the target that the checkpoint itself names.
        fingerprint: of the tokenizer that it was trained with, if it says so.
        target: name of the target that it was checked against; None: the head alone was checked.
        notes: sentences on what was assumed.
    """

    path: str
    format: str
    config: Eagle3Config
    parameters: int
    bytes: int
    dtype: str
    draft_vocab_size: int
    draft_share: float
    own_embeddings: bool
    feature_layers: tuple[int, ...] | None
    written_layers: tuple[int, ...] | None
    rope: str
    trained_length: int | None
    digest: str
    made_for: str | None
    fingerprint: str | None
    target: str | None
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; layers that depend on a target that was not given are None."""
        made = {"kind": "eagle3", **asdict(self)}
        made["config"]["feature_layers"] = self.feature_layers
        return made


def digest_of(state: Mapping[str, Tensor], target_ids: Tensor) -> str:
    """A short digest of a state dict in the head's names."""
    total = hashlib.sha256()
    for name, tensor in sorted({**state, "target_ids": target_ids}.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        flat = tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8)
        total.update(flat.numpy().data)
    return total.hexdigest()[:16]


def dtype_name(state: Mapping[str, Tensor]) -> str:
    """The dtypes of the weights, as stored."""
    kinds = sorted({str(t.dtype).removeprefix("torch.") for t in state.values()})
    return ", ".join(kinds)


def rope_text(rope: Mapping[str, Any]) -> str:
    """A rotary embedding in one line, from its parameters in Transformers' form."""
    rest = {k: v for k, v in rope.items() if k not in ("rope_type", "rope_theta")}
    short = [f"{k} {'[...]' if isinstance(v, list) else v}" for k, v in rest.items()]
    return ", ".join([f"{rope['rope_type']}, theta {rope['rope_theta']:g}", *short])
