"""What is told of a head, with and without its target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from graft.drafters.eagle3.loader import HeadError, inspect_head, load_head
from graft.drafters.eagle3.target_facts import read_target_facts
from graft.model_support import ModelError
from tests.tiny_files import save_folder
from tests.tiny_heads import (
    LAYERS,
    WRITERS,
    Config,
    Tensors,
    head_logits,
    tiny_facts,
    tiny_head,
    write_authors,
    write_speculators,
)


def test_the_numbers_are_those_of_the_head(tmp_path: Path) -> None:
    written = tiny_head(1, own_embeddings=True)
    write_speculators(tmp_path, written)
    report = inspect_head(tmp_path, tiny_facts())
    assert report.parameters == sum(p.numel() for p in written.parameters())
    assert report.bytes == 4 * report.parameters + 64 * 8 + 256
    assert (report.dtype, report.format, report.target) == ("float32", "speculators", "tiny")
    assert (report.draft_vocab_size, report.draft_share) == (64, 0.25)
    assert report.feature_layers == report.written_layers == (2, 4, 5)
    assert report.own_embeddings
    assert report.rope == "default, theta 5000"
    assert report.trained_length == 2048
    assert report.made_for == "org/tiny"
    assert len(report.digest) == 16
    assert json.loads(json.dumps(report.as_dict()))["config"]["hidden_size"] == 64


def test_inspecting_and_loading_understand_the_same(tmp_path: Path) -> None:
    for form, write in WRITERS.items():
        write(tmp_path / form, tiny_head(1))
        assert inspect_head(tmp_path / form, tiny_facts()) == (
            load_head(tmp_path / form, tiny_facts()).report
        )


def test_written_layers_are_kept_as_written(tmp_path: Path) -> None:
    WRITERS["specforge"](tmp_path, tiny_head())
    report = inspect_head(tmp_path, tiny_facts())
    assert (report.feature_layers, report.written_layers) == ((2, 4, 5), (1, 3, 4))


def test_without_a_target_the_head_alone_is_checked(tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head())
    report = inspect_head(tmp_path)
    assert (report.target, report.feature_layers) == (None, None)
    assert any("n // 2" in note for note in report.notes)
    shown = report.as_dict()
    assert (shown["feature_layers"], shown["config"]["feature_layers"]) == (None, None)
    told = inspect_head(tmp_path, tiny_facts()).as_dict()
    assert told["config"]["feature_layers"] == told["feature_layers"] == (2, 4, 5)

    def spoil(_: Config, tensors: Tensors) -> None:
        tensors["d2t"] += 1

    write_authors(tmp_path, tiny_head(), edit=spoil)
    with pytest.raises(HeadError, match="d2t is wrong"):
        inspect_head(tmp_path)


def test_the_digest_is_of_the_values(tmp_path: Path) -> None:
    def nudge(_: Config, tensors: Tensors) -> None:
        tensors["norm.weight"][3] += 1e-6

    write_authors(tmp_path / "a", tiny_head(1))
    write_authors(tmp_path / "b", tiny_head(1), edit=nudge)
    assert inspect_head(tmp_path / "a").digest != inspect_head(tmp_path / "b").digest


def test_shards_are_put_together(tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head(1))
    whole = inspect_head(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(state)
    places = {k: f"model-{1 + i % 2}.safetensors" for i, k in enumerate(names)}
    for shard in set(places.values()):
        save_file({k: state[k] for k in names if places[k] == shard}, tmp_path / shard)
    text = json.dumps({"metadata": {}, "weight_map": places})
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert inspect_head(tmp_path).digest == whole.digest
    assert torch.equal(
        head_logits(load_head(tmp_path, tiny_facts()).head), head_logits(tiny_head(1))
    )


def test_a_targets_facts_need_no_weights(tmp_path: Path) -> None:
    from graft.fingerprint import tokenizer_fingerprint
    from tests.tiny_files import tiny_tokenizer

    save_folder(tmp_path, num_hidden_layers=LAYERS)
    (tmp_path / "model.safetensors").unlink()
    facts = read_target_facts(tmp_path)
    assert (facts.hidden_size, facts.vocab_size, facts.num_hidden_layers) == (64, 256, LAYERS)
    assert facts.token_count == 256
    assert facts.fingerprint == tokenizer_fingerprint(tiny_tokenizer(), 256)


def test_a_target_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="give smollm2-135m, a Transformers folder or a hub id"):
        read_target_facts("nowhere")
    with pytest.raises(ModelError, match="cannot be read"):
        read_target_facts(tmp_path)
