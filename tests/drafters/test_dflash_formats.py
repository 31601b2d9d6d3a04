"""Checkpoint formats of DFlash: what is read, what is refused, and Transformers as a reference."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, GenerationConfig
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

from graft.drafters.dflash.drafter import DFlashDrafter
from graft.drafters.dflash.formats import TargetShape, default_layer_ids, read_format
from graft.drafters.dflash.loader import load_dflash
from graft.pruning import dense
from tests.drafters.dflash_files import (
    CONFIG,
    LAYERS,
    MASK,
    SLIDING,
    SPECULATORS,
    VOCAB,
    WIDTH,
    Reference,
    random_tensors,
    stored,
    target_config,
    target_parts,
    write_checkpoint,
)
from tests.tiny_models import tiny_model

TARGET = TargetShape(WIDTH, LAYERS, VOCAB)


def load(folder: Path, **options: Any) -> DFlashDrafter:
    return load_dflash(folder, target_config(), *target_parts(), **options)


def check(drafter: DFlashDrafter, reference: Reference) -> float:
    """Largest difference from the reference after a short prefill."""
    features = torch.randn(7, 2 * WIDTH, generator=torch.Generator().manual_seed(5))
    drafter.open(1, 20)
    drafter.prefill(0, torch.zeros(7, dtype=torch.int64), features)
    found = drafter.logits(torch.tensor([[11]]), 4)[0].detach().double()
    return float((found - reference.logits(list(features), 11)).abs().max())


# --- formats ---


def test_settings_may_stand_beside_dflash_config(tmp_path: Path) -> None:
    plain = {k: v for k, v in CONFIG.items() if k != "dflash_config"} | CONFIG["dflash_config"]
    drafter = load(write_checkpoint(tmp_path, plain))
    assert drafter.feature_layers == (5, 2)
    assert check(drafter, Reference(stored(tmp_path))) < 1e-4


def test_default_layers_and_a_given_mask_token(tmp_path: Path) -> None:
    assert default_layer_ids(36, 5) == [1, 9, 17, 25, 33]  # of the public Qwen3-8B drafter
    assert default_layer_ids(64, 10) == [1, 8, 14, 21, 28, 34, 41, 48, 54, 61]  # of Qwen3-32B
    assert default_layer_ids(12, 1) == [6]
    config = {**CONFIG, "dflash_config": None}
    write_checkpoint(tmp_path, config)
    with pytest.raises(ValueError, match=r"names no mask_token_id, .*: N"):
        load(tmp_path)
    drafter = load(tmp_path, mask_token_id=MASK)
    assert drafter.feature_layers == (2, 4)
    assert check(drafter, Reference(stored(tmp_path))) < 1e-4


def test_rope_of_old_and_new_spelling() -> None:
    scaled = {"rope_type": "linear", "factor": 4.0}
    new = {k: v for k, v in CONFIG.items() if k != "rope_theta"}
    new["rope_parameters"] = {**scaled, "rope_theta": 100.0}
    old = {**CONFIG, "rope_scaling": scaled}
    found = [read_format(c, (), TARGET, None).rope_parameters for c in (new, old)]
    assert found[0] == found[1] == {**scaled, "rope_theta": 100.0}


def test_a_python_checkpoint_is_read(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG)
    torch.save(stored(tmp_path), tmp_path / "pytorch_model.bin")
    reference = Reference(stored(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    assert check(load(tmp_path), reference) < 1e-4


def _speculators(**changes: Any) -> dict[str, Any]:
    layer = {k: v for k, v in CONFIG.items() if k not in ("dflash_config", "architectures")}
    return {**SPECULATORS, "transformer_layer_config": {**layer, **SLIDING}, **changes}


@pytest.mark.parametrize("free", [False, True])
def test_speculators(tmp_path: Path, free: bool) -> None:
    drafter = load(write_checkpoint(tmp_path, _speculators(sliding_window_non_causal=free)))
    assert drafter.feature_layers == (5, 2)  # its ids are inputs of layers
    sights = ((not free, 4), (False, None))
    assert check(drafter, Reference(stored(tmp_path), sights=sights)) < 1e-4
    wrong = ((free, 4), (False, None))
    assert check(drafter, Reference(stored(tmp_path), sights=wrong)) > 1e-2


def test_a_reduced_vocabulary_with_its_own_head(tmp_path: Path) -> None:
    config = _speculators(draft_vocab_size=40)
    ids = torch.arange(40) * 2 + 1
    head = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(9))
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[ids] = True
    tensors = random_tensors(config["transformer_layer_config"])
    tensors |= {"lm_head.weight": head, "d2t": ids - torch.arange(40), "t2d": known}
    tensors["embed_tokens.weight"] = target_parts()[0].weight.detach().clone()
    drafter = load(write_checkpoint(tmp_path, config, tensors))
    reference = Reference(stored(tmp_path), sights=((True, 4), (False, None)))
    reference.head = head.double()
    assert check(drafter, reference) < 1e-4
    draft = drafter.draft(torch.full((1, 8), 11), torch.tensor([8]), dense(4, 1, 1))
    logits = drafter.logits(torch.tensor([[11]]), 4)
    assert draft.tree.tokens[0, 1:].tolist() == ids[logits[0].argmax(-1)].tolist()

    write_checkpoint(tmp_path, config, {**tensors, "t2d": ~known})
    with pytest.raises(ValueError, match="t2d and d2t disagree"):
        load(tmp_path)
    write_checkpoint(tmp_path, config, {**tensors, "d2t": torch.full((40,), VOCAB)})
    with pytest.raises(ValueError, match="outside the target's 96 tokens"):
        load(tmp_path)
    del tensors["d2t"]
    with pytest.raises(ValueError, match="missing tensors: d2t"):
        load(write_checkpoint(tmp_path, config, tensors))


# --- Transformers' own drafter and candidate generator ---


@pytest.mark.parametrize("window", [64, 3])
def test_transformers_candidate_generator_agrees(tmp_path: Path, window: int) -> None:
    """Over a prefill and two rounds of one sequence, with features of a real target."""
    target = tiny_model("llama", num_hidden_layers=5)
    shape = {
        **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "block_size": 6},
        **{"mask_token_id": 254, "target_layer_ids": [3, 0], "sliding_window": window},
        "layer_types": ["sliding_attention", "full_attention"],
        "initializer_range": 0.3,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        theirs = AutoModel.from_config(AutoConfig.for_model("muse_glimmer_assistant", **shape))
    theirs.eval().save_pretrained(tmp_path)
    made: Any = DFlashTokenCandidateGenerator
    embeddings, head = target.get_input_embeddings(), target.get_output_embeddings()
    generator = made(theirs, embeddings, head, GenerationConfig(max_length=200))
    drafter = load_dflash(tmp_path, target.config, embeddings, head)
    drafter.open(1, 64)
    assert drafter.feature_layers == (4, 1)
    ids = torch.randint(0, 250, (1, 12), generator=torch.Generator().manual_seed(2))
    known = 0
    for accepted in (None, 2, 0):
        with torch.no_grad():
            out = target(ids, output_hidden_states=True)
        states = [state[:, known:] for state in out.hidden_states]
        ours = torch.cat([states[i] for i in drafter.feature_layers], dim=-1)
        drafter.prefill(0, ids[0], ours[0])
        known = ids.shape[1]
        # The next root, which the target has not seen.
        ids = torch.cat([ids, out.logits[:, -1:].argmax(-1)], dim=1)
        wanted, logits = _theirs(generator, ids, states, accepted)
        draft = drafter.draft(ids, torch.tensor([ids.shape[1]]), dense(5, 1, 1))
        if window == 64 or accepted is None:  # their cache forgets rows that a window still sees
            assert draft.tree.tokens[0].tolist() == wanted[0, known:].tolist()
            found = drafter.logits(ids[:, -1:], 5).detach()
            torch.testing.assert_close(found, logits, atol=1e-4, rtol=0)
        more = torch.randint(0, 250, (1, 2), generator=torch.Generator().manual_seed(known))
        ids = torch.cat([ids, more], dim=1) if accepted is None else ids


def _theirs(
    generator: Any, ids: Tensor, states: list[Tensor], accepted: int | None
) -> tuple[Tensor, Tensor]:
    length = ids.shape[1]
    with torch.no_grad():
        found, logits = generator.get_candidates(
            input_ids=ids,
            model_kwargs={
                "position_ids": torch.arange(length).unsqueeze(0),
                "attention_mask": torch.ones(1, length, dtype=torch.int64),
            },
            model_outputs=SimpleNamespace(hidden_states=states),
            is_first_iteration=False,
            n_last_matches=accepted or 0,
        )
    return found, logits


# --- refusals ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, "describes DFlash2DraftModel: DFlashDraftModel"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "describes LlamaForCausalLMEagle3"),
        ({"speculators_model_type": "dspark"}, "describes dspark"),
        ({"architectures": None, "model_type": None}, "describes no known drafter"),
        ({"dflash_config": {"selector_rank": 4}}, "of another drafter: selector_rank"),
        ({"dflash_config": {"projector_type": "domino"}}, "projector_type='domino' makes it"),
        ({"shift_label": True}, "shift_label=True makes it another kind"),
        ({"quantization_config": {}}, "quantization_config={} makes it another kind"),
        ({"num_target_layers": 36}, "trained for another target"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [6]}}, "layers 0 to 5"),
        ({"dflash_config": {"mask_token_id": VOCAB, "target_layer_ids": [1]}}, "mask_token_id=96"),
        ({"vocab_size": 200}, "vocab_size=200, but the target has 96 tokens"),
        ({"hidden_size": 48}, "hidden_size=48, but it shares embeddings"),
        ({"block_size": 1}, "block_size=1"),
        ({"block_size": "5"}, "block_size='5'"),
        ({"hidden_act": "swoosh"}, "hidden_act='swoosh'"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"layer_types": ["sliding_attention"] * 2}, "there is no sliding_window"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
        ({"draft_vocab_size": 40}, "needs lm_head.weight"),
        ({"num_hidden_layers": "two"}, "cannot be read as qwen3"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, changes: Any, message: str) -> None:
    write_checkpoint(tmp_path, {**CONFIG, **changes}, random_tensors(CONFIG))
    with pytest.raises(ValueError, match="DFlash drafter ") as found:
        load(tmp_path)
    assert message in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aux_hidden_state_layer_ids": [7]}, "inputs of layers 0 to 6"),
        ({"aux_hidden_state_layer_ids": None}, "inputs of layers 0 to 6"),
        ({"sliding_window_non_causal": None}, "sliding_window_non_causal is missing"),
        ({"sample_from_anchor": True}, "sample_from_anchor=True makes it another kind"),
        ({"target_hidden_size": 99}, "target_hidden_size=99, but the target's is 32"),
    ],
)
def test_speculators_that_are_refused(tmp_path: Path, changes: Any, message: str) -> None:
    write_checkpoint(tmp_path, _speculators(**changes))
    with pytest.raises(ValueError, match="DFlash drafter ") as found:
        load(tmp_path)
    assert message in str(found.value)


def test_tensors_that_are_refused(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    tensors["layers.0.attention_conv.base_kernel"] = torch.zeros(2)
    tensors["norm.weight"] = torch.ones(WIDTH + 1)
    tensors["hidden_norm.weight"] = torch.ones(WIDTH, dtype=torch.int8)
    del tensors["fc.weight"]
    with pytest.raises(ValueError, match="DFlash drafter ") as found:
        load(write_checkpoint(tmp_path, CONFIG, tensors))
    for part in (
        "unknown tensors: layers.0.attention_conv.base_kernel",
        "missing tensors: fc.weight",
        "wrong size: norm.weight is [33] for [32]",
        "unsupported dtype: hidden_norm.weight in int8",
    ):
        assert part in str(found.value)


def test_many_faults_are_counted(tmp_path: Path) -> None:
    deeper = {**CONFIG, "num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    write_checkpoint(tmp_path, CONFIG, random_tensors(deeper))
    with pytest.raises(ValueError, match="and 7 more"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "config.json cannot be opened"),
        ({"config.json": "{"}, "is not JSON"),
        ({"config.json": "[]"}, "holds no settings"),
        ({"config.json": "{}"}, "no *.safetensors and no pytorch_model.bin"),
        (
            {"config.json": "{}", "model.safetensors": "version https://git-lfs.github.com/spec"},
            "model.safetensors is a Git LFS pointer, not the weights: run git lfs pull",
        ),
        ({"config.json": "{}", "model.safetensors": "x"}, "the weights cannot be read"),
    ],
)
def test_folders_that_are_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match="DFlash drafter ") as found:
        load(tmp_path)
    assert message in str(found.value)


def test_a_pickle_of_more_than_tensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save({"fc.weight": Path("anything")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"DFlash drafter .*weights cannot be read .*more than"):
        load(tmp_path)
