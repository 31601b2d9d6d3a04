"""What a new head takes from its target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graft.drafters.eagle3.save import save_head
from graft.train.settings import TrainSettings
from graft.train.start import Start, default_layers, head_of, running_copy, start_from, start_new
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


def saved(start: Start, folder: Path) -> str:
    """A head on disk whose output layer has learnt something."""
    moved = {**start.weights, "lm_head.weight": start.weights["lm_head.weight"] + 1}
    head = head_of(replace(start, weights=moved), torch.float32)
    return str(save_head(folder / "head", head, target_name="tiny", fingerprint=None))


def test_a_head_that_is_trained_on_keeps_its_vocabulary(tmp_path: Path) -> None:
    loaded, answers = tiny_loaded(), mixed()
    old = start_new(loaded, answers, SETTINGS, None)
    base = saved(old, tmp_path)
    found = start_from(base, loaded, answers[:3], replace(SETTINGS, draft_vocab=None))
    assert torch.equal(found.target_ids, old.target_ids)
    assert torch.equal(found.weights["lm_head.weight"], old.weights["lm_head.weight"] + 1)


@pytest.mark.parametrize("size", [40, 90])
def test_it_takes_another_vocabulary_if_asked(size: int, tmp_path: Path) -> None:
    """Tokens that both can name keep what was learnt; the others begin as the target's."""
    loaded, answers = tiny_loaded(), mixed()
    old = start_new(loaded, answers, SETTINGS, None)
    base = saved(old, tmp_path)
    found = start_from(base, loaded, answers[::2], replace(SETTINGS, draft_vocab=size))
    assert len(found.target_ids) == found.config.draft_vocab_size == size
    output = loaded.model.get_output_embeddings().weight
    known = torch.isin(found.target_ids, old.target_ids)
    assert 0 < int(known.sum()) < size or size < 60
    wanted = output[found.target_ids] + known.unsqueeze(1)
    assert torch.allclose(found.weights["lm_head.weight"], wanted, atol=1e-6)
    head = running_copy(found, loaded.model)
    assert torch.equal(head.target_ids, found.target_ids)
    for name, weight in old.weights.items():
        if name != "lm_head.weight":
            assert torch.equal(found.weights[name], weight), name
