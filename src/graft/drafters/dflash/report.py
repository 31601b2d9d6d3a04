"""DFlashReport: what the loader understood of a DFlash drafter, for people and for machines.

Invariant: what is reported is what `load_dflash` would load; only the checks against a target
need one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from graft.drafters.dflash.config import DFlashConfig
from graft.drafters.dflash.formats import TargetShape
from graft.drafters.dflash.loader import understand
from graft.drafters.eagle3.facts import TargetFacts
from graft.drafters.eagle3.report import digest_of, dtype_name, rope_text


@dataclass(frozen=True)
class DFlashReport:
    """A checkpoint as it was understood.

    Attributes:
        path: where it was read. format: whose configuration it has.
        parameters: numbers in it. bytes: as stored. dtype: as stored.
        draft_share: of the target's vocabulary that it can name.
        rope: its rotary embedding in words.
        digest: SHA-256 (16 hex digits) of all tensors and the draft vocabulary.
        target: name of the target that it was checked against; None: the drafter alone.
    """

    path: str
    format: str
    config: DFlashConfig
    parameters: int
    bytes: int
    dtype: str
    draft_share: float
    rope: str
    digest: str
    target: str | None

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"kind": "dflash", **asdict(self)}


def inspect_dflash(folder: Path, name: str, target: TargetFacts | None) -> DFlashReport:
    """What `load_dflash` would understand, without building the network.

    Args:
        name: how the report calls it.
        target: None checks the drafter against what it states of its target itself.

    Raises:
        ValueError: as `load_dflash`.
    """
    shape = None
    if target is not None:
        shape = TargetShape(target.hidden_size, target.num_hidden_layers, target.vocab_size)
    raw, config, tensors = understand(folder, shape)
    weights = {key: tensor for key, tensor in tensors.items() if key != "d2t"}
    ids = torch.arange(config.draft_vocab_size)
    return DFlashReport(
        path=name,
        format=_format(raw),
        config=config,
        parameters=sum(tensor.numel() for tensor in weights.values()),
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        dtype=dtype_name(weights),
        draft_share=config.draft_vocab_size / config.vocab_size,
        rope=rope_text(config.rope_parameters),
        digest=digest_of(weights, ids + tensors["d2t"].long() if "d2t" in tensors else ids),
        target=None if target is None else target.name,
    )


def _format(raw: dict[str, Any]) -> str:
    if raw.get("speculators_model_type"):
        return "speculators"
    muse = "muse_glimmer_assistant"
    return muse if raw.get("model_type") == muse else "DFlashDraftModel"
