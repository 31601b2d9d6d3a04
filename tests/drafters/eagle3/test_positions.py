"""Rope, windows and trained length come from the head's own configuration, in every spelling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graft.drafters.eagle3.formats.fields import Fields
from graft.drafters.eagle3.formats.rope import read_rope, read_window
from graft.drafters.eagle3.loader import HeadError, load_head
from graft.target import TransformersTarget
from tests.tiny_heads import (
    Config,
    Tensors,
    head_logits,
    same_logits,
    tiny_facts,
    tiny_head,
    write_authors,
)
from tests.tiny_models import tiny_model

YARN = {"factor": 4.0, "beta_fast": 32.0}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"rope_type": "default", "rope_theta": 10000.0}),
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        ({"rope_theta": 5e5, "rope_scaling": None}, {"rope_type": "default", "rope_theta": 5e5}),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            {"rope_type": "default", "rope_theta": 1e6},
        ),
        (
            {"rope_theta": 1e6, "rope_parameters": {"rope_type": "yarn", **YARN}},
            {"rope_type": "yarn", "rope_theta": 1e6, **YARN},
        ),
        (
            {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", **YARN}},
            {"rope_type": "yarn", "rope_theta": 1e6, **YARN},
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3},
        ),
        (
            {
                "rope_theta": 5e5,
                "rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [2.0]},
                "original_max_position_embeddings": 4096,
            },
            {
                "rope_type": "longrope",
                "rope_theta": 5e5,
                "short_factor": [1.0],
                "long_factor": [2.0],
                "original_max_position_embeddings": 4096,
            },
        ),
        (
            {
                "rope_theta": 1e6,
                "rope_scaling": {
                    "type": "default",
                    "rope_type": "default",
                    "mrope_section": [2, 3, 3],
                    "mrope_interleaved": True,
                },
            },
            {"rope_type": "default", "rope_theta": 1e6},
        ),
        (
            {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
            {"rope_type": "default", "rope_theta": 1e6},
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 7.0}}},
            {"rope_type": "default", "rope_theta": 7.0},
        ),
        (
            {
                "rope_theta": 1e6,
                "rope_scaling": {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
            },
            {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0},
        ),
    ],
)
def test_every_spelling_of_rope(fields: Config, expected: Config) -> None:
    assert read_rope(Fields(fields)) == expected


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rope_scaling": {"type": "spiral"}}, "rope of type 'spiral'; supported are default"),
        ({"rope_scaling": {"type": "yarn"}}, "rope of type yarn lacks factor"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "lacks low_freq_factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "odd": 1}}, "odd = 1"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor = 0.5",
        ),
        ({"rope_theta": 1.0, "rope_parameters": {"rope_theta": 2.0}}, "states rope_theta twice"),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 4.0},
            },
            "rope_parameters and rope_scaling that differ",
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_theta": 1.0},
                    "sliding_attention": {"rope_theta": 2.0},
                }
            },
            "a rope per type of layer",
        ),
        ({"rope_theta": -1}, "rope_theta is -1"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn'"),
    ],
)
def test_a_rope_that_is_not_understood_is_refused(fields: Config, words: str) -> None:
    with pytest.raises(HeadError, match=words):
        read_rope(Fields(fields))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"sliding_window": None, "use_sliding_window": True}, None),
        ({"sliding_window": 512, "use_sliding_window": False}, None),
        ({"sliding_window": 512, "use_sliding_window": True}, 512),
        ({"sliding_window": 512}, 512),
        ({"sliding_window": 512, "layer_types": ["full_attention"]}, None),
        ({"sliding_window": 512, "layer_types": ["sliding_attention"]}, 512),
        (
            {
                "sliding_window": 512,
                "use_sliding_window": False,
                "layer_types": ["sliding_attention"],
            },
            None,
        ),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 512,
                "use_sliding_window": True,
                "max_window_layers": 28,
            },
            None,
        ),
        (
            {
                "model_type": "llama",
                "sliding_window": 512,
                "use_sliding_window": True,
                "max_window_layers": 28,
            },
            512,
        ),
    ],
)
def test_every_spelling_of_windows(fields: Config, expected: int | None) -> None:
    assert read_window(Fields(fields), 1) == expected


@pytest.mark.parametrize(
    ("types", "words"),
    [
        (["sliding_attention", "full_attention"], "layers of different types"),
        (["linear_attention", "linear_attention"], "layers of type linear_attention"),
    ],
)
def test_layers_of_other_types_are_refused(types: list[str], words: str) -> None:
    with pytest.raises(HeadError, match=words):
        read_window(Fields({"sliding_window": 4, "layer_types": types}), 2)


def test_the_heads_configuration_counts_and_not_the_targets(tmp_path: Path) -> None:
    def silent(config: Config, _: Tensors) -> None:
        del config["rope_theta"], config["max_position_embeddings"]

    written = tiny_head(1, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    write_authors(tmp_path, written, edit=silent)
    loaded = load_head(tmp_path, tiny_facts())
    assert same_logits(loaded.head, written)
    assert loaded.report.trained_length is None
    assert any("rope_theta is not stated" in note for note in loaded.report.notes)


def test_heads_and_target_in_one_process_keep_their_own_tables(tmp_path: Path) -> None:
    """Two heads with other thetas and a target with a third, run in turn."""
    thetas = (50.0, 1e6)
    heads: list[Any] = []
    for theta in thetas:
        written = tiny_head(1, rope_parameters={"rope_type": "default", "rope_theta": theta})
        write_authors(tmp_path / str(theta), written)
        heads.append(load_head(tmp_path / str(theta), tiny_facts()).head)
    target = TransformersTarget(tiny_model("llama"), feature_layers=(1,))
    tokens = torch.arange(8)

    def answers() -> list[torch.Tensor]:
        target.open(1, 64)
        with torch.no_grad():
            return [head_logits(heads[0]), head_logits(heads[1]), target.prefill(0, tokens)]

    first, again = answers(), answers()
    alone = tiny_head(1, rope_parameters={"rope_type": "default", "rope_theta": thetas[0]})
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    torch.testing.assert_close(first[0], head_logits(alone), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(first[0], first[1])
