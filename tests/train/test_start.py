"""What a new head takes from its target."""

from __future__ import annotations

import pytest
import torch

from graft.train.settings import TrainSettings
from graft.train.start import default_layers, running_copy, start_new
from tests.tiny_models import EOS_ID
from tests.train.making import mixed, tiny_loaded

SETTINGS = TrainSettings(draft_vocab=60, max_length=128)


@pytest.mark.parametrize(
    ("count", "layers"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (6, (1, 4, 6)), (30, (2, 15, 27)), (32, (2, 16, 29))],
)
def test_default_layers(count: int, layers: tuple[int, ...]) -> None:
    assert default_layers(count) == layers


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2", "phi3", "olmo2"])
def test_every_family_has_a_start(family: str) -> None:
    loaded = tiny_loaded(family)
    start = start_new(loaded, mixed(), SETTINGS, None)
    head = running_copy(start, loaded.model)
    assert head.config.feature_layers == (1, 2, 3)
    assert head.config.max_position_embeddings == 128
    assert len(head.target_ids) == 60
    assert EOS_ID in head.target_ids or loaded.token_count <= EOS_ID
    output = loaded.model.get_output_embeddings()
    assert output is not None
    assert torch.equal(head.lm_head.weight, output.weight[head.target_ids])
    assert len(head.feature_norms) == 3


def test_seeds_repeat() -> None:
    loaded = tiny_loaded()
    one, other = (start_new(loaded, mixed(), SETTINGS, None).weights for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("layers", [(0, 1, 2), (1, 2, 4)])
def test_layers_that_there_are_not_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="feature layer"):
        start_new(tiny_loaded(), mixed(), SETTINGS, layers)
