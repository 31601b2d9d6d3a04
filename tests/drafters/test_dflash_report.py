"""What is told of a DFlash drafter, with and without its target; and names in its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel

from graft.drafters.dflash.loader import load_dflash
from graft.drafters.dflash.report import DFlashReport, inspect_dflash
from graft.drafters.eagle3.facts import TargetFacts
from tests.drafters.dflash_files import (
    CONFIG,
    LAYERS,
    MASK,
    SPECULATORS,
    VOCAB,
    WIDTH,
    random_tensors,
    stored,
    target_config,
    target_parts,
    write_checkpoint,
)

PLAIN = {k: v for k, v in CONFIG.items() if k not in ("dflash_config", "architectures")}
TARGET = TargetFacts("tiny", WIDTH, VOCAB, VOCAB, LAYERS)


def inspect(folder: Path, target: TargetFacts | None = None) -> DFlashReport:
    return inspect_dflash(folder, str(folder), target)


def test_the_numbers_are_those_of_the_files(tmp_path: Path) -> None:
    report = inspect(write_checkpoint(tmp_path, CONFIG))
    assert report.parameters == sum(t.numel() for t in stored(tmp_path).values())
    assert report.bytes == 4 * report.parameters
    assert (report.format, report.dtype, report.target) == ("DFlashDraftModel", "float32", None)
    config = report.config
    assert (config.block_size, config.mask_token_id, config.feature_layers) == (5, MASK, (5, 2))
    assert (config.vocab_size, report.draft_share) == (VOCAB, 1.0)
    assert report.rope == "default, theta 100"
    shown = json.loads(json.dumps(report.as_dict()))
    assert (shown["kind"], shown["config"]["num_hidden_layers"]) == ("dflash", 2)


def test_a_target_changes_nothing_but_the_check(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG)
    alone, checked = inspect(tmp_path), inspect(tmp_path, TARGET)
    assert (checked.target, checked.config, checked.digest) == ("tiny", alone.config, alone.digest)
    found = load_dflash(tmp_path, target_config(), *target_parts())
    assert found.feature_layers == alone.config.feature_layers


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (TargetFacts("wide", WIDTH * 2, VOCAB, VOCAB, LAYERS), "trained for another target"),
        (TargetFacts("deep", WIDTH, VOCAB, VOCAB, LAYERS + 1), "the target has 7 layers"),
        (TargetFacts("few", WIDTH, VOCAB - 9, VOCAB - 9, LAYERS), "the target has 87 tokens"),
    ],
)
def test_a_target_that_does_not_fit(tmp_path: Path, target: TargetFacts, words: str) -> None:
    write_checkpoint(tmp_path, CONFIG)
    with pytest.raises(ValueError, match=words):
        inspect(tmp_path, target)


def test_a_reduced_vocabulary_counts_in_the_digest(tmp_path: Path) -> None:
    config = {**SPECULATORS, "draft_vocab_size": 40, "transformer_layer_config": PLAIN}
    tensors = random_tensors(CONFIG) | {"lm_head.weight": torch.ones(40, WIDTH)}
    digests = []
    for i, first in enumerate((0, 3)):
        table = torch.full((40,), first)
        write_checkpoint(tmp_path / str(i), config, {**tensors, "d2t": table})
        report = inspect(tmp_path / str(i))
        assert (report.format, report.config.draft_vocab_size) == ("speculators", 40)
        assert report.draft_share == 40 / VOCAB
        digests.append(report.digest)
    assert digests[0] != digests[1]


def test_what_depends_on_the_target_asks_for_it(tmp_path: Path) -> None:
    config = {**CONFIG, "dflash_config": {"mask_token_id": MASK}, "num_target_layers": None}
    write_checkpoint(tmp_path, config)
    with pytest.raises(ValueError, match=r"does not state target_layer_ids, .*\(--model\)"):
        inspect(tmp_path)
    assert inspect(tmp_path, TARGET).config.feature_layers == (2, 4)


def test_names_are_those_of_the_file(tmp_path: Path) -> None:
    shape: dict[str, Any] = {
        **{"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 8},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "block_size": 5},
        **{"mask_token_id": MASK, "target_layer_ids": [4, 1], "sliding_window": 9},
        "layer_types": ["full_attention"],
    }
    made = AutoModel.from_config(AutoConfig.for_model("muse_glimmer_assistant", **shape))
    made.save_pretrained(tmp_path)
    assert inspect(tmp_path, TARGET).format == "muse_glimmer_assistant"
    tensors = stored(tmp_path)
    del tensors["encoder.fc.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"missing tensors: encoder\.fc\.weight$"):
        inspect(tmp_path, TARGET)


def test_a_target_without_plain_embeddings_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG)
    with pytest.raises(ValueError, match="reads the target's embeddings"):
        load_dflash(tmp_path, target_config(), torch.nn.Identity(), target_parts()[1])
