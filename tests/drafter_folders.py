"""Folders of a tiny target and of everything that can draft for it.

Invariant: the same call writes the same files. The target is deep enough for EAGLE-3's feature
layers; all but the draft model have random weights, so they are hardly ever right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tests.drafters.dflash_files import CONFIG, random_tensors, write_checkpoint
from tests.tiny_files import save_folder, tiny_tokenizer
from tests.tiny_heads import LAYERS, tiny_head, write_specforge, write_speculators
from tests.tiny_models import VOCAB_SIZE, tiny_model

# As wide as the tiny target. The mask is a token that the tests' texts do not hold.
DFLASH: dict[str, Any] = {
    **CONFIG,
    "dflash_config": {"mask_token_id": VOCAB_SIZE - 2, "target_layer_ids": [4, 1]},
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_target_layers": LAYERS,
    "vocab_size": VOCAB_SIZE,
}


class Folders(NamedTuple):
    """Names of folders, as a user writes them."""

    target: str
    specforge: str  # an EAGLE-3 head
    speculators: str  # the same head in another format
    dflash: str
    draft: str  # a draft model that is right every time: the target's own weights
    wide: str  # a head for another target
    stranger: str  # a draft model with another tokenizer


def write_drafters(folder: Path, **target: Any) -> Folders:
    """Write all of them below `folder`; `target` changes the target's configuration."""
    found = Folders(*(str(folder / name) for name in Folders._fields))
    for path in (found.target, found.draft):
        save_folder(Path(path), **{"num_hidden_layers": LAYERS, **target})
    write_specforge(Path(found.specforge), tiny_head())
    write_speculators(Path(found.speculators), tiny_head())
    write_specforge(Path(found.wide), tiny_head(target_hidden_size=96))
    # Features of two layers: the writer counts them in widths of its own, half of this target's.
    write_checkpoint(Path(found.dflash), DFLASH, random_tensors(DFLASH, features=4))
    tiny_model("llama", vocab_size=100, eos_token_id=99).save_pretrained(found.stranger)
    tiny_tokenizer(100).save_pretrained(found.stranger)
    return found
