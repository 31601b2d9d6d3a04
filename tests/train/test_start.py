"""What a new head takes from its target."""

from __future__ import annotations

import pytest
import torch

from graft.target import decoder_layers
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


def test_a_llama_head_begins_as_the_last_layer() -> None:
    loaded = tiny_loaded()
    weights = start_new(loaded, mixed(), SETTINGS, None).weights
    last = decoder_layers(loaded.model)[-1]
    theirs = {f"layers.0.{n}": p for n, p in last.named_parameters() if "proj" in n}
    for name, weight in theirs.items():
        own = weights[name]
        wide = own.shape != weight.shape
        assert torch.equal(own[:, 64:] if wide else own, weight), name
    assert torch.equal(weights["norm.weight"], loaded.model.base_model.norm.weight)
    assert torch.equal(weights["fc.weight"][:, -64:], torch.eye(64))


def test_a_norm_of_another_kind_is_not_taken() -> None:
    """Gemma's norms add 1 to their weights."""
    loaded = tiny_loaded("gemma3")
    with torch.no_grad():
        loaded.model.base_model.norm.weight.fill_(0.5)
    weights = start_new(loaded, mixed(), SETTINGS, None).weights
    assert torch.equal(weights["norm.weight"], torch.ones(64))


def test_seeds_repeat() -> None:
    loaded = tiny_loaded()
    one, other = (start_new(loaded, mixed(), SETTINGS, None).weights for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("layers", [(0, 1, 2), (1, 2, 4)])
def test_layers_that_there_are_not_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="feature layer"):
        start_new(tiny_loaded(), mixed(), SETTINGS, layers)
