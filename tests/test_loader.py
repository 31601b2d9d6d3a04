"""`graft.load`: from a name or a model to an engine, with mistakes named at the edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import graft
from graft.models import ModelError
from graft.target import TransformersTarget
from tests.fakes import byte_tokenizer
from tests.test_probe import with_own_attention
from tests.tiny_files import save_folder
from tests.tiny_models import EOS_ID, VOCAB_SIZE, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    save_folder(path)
    return path


def test_a_folder_becomes_an_engine(folder: Path) -> None:
    engine = graft.load(folder, device="cpu", policy="plain", budget=3, k=4)
    assert engine.name == "tiny"
    assert (engine.token_count, engine.eos_token_ids) == (VOCAB_SIZE, (EOS_ID,))
    assert engine.settings == graft.EngineSettings(policy="plain", budget=3, k=4)
    assert engine.matrix.k == 4
    assert engine.target.max_context == 4096
    result = engine.generate([5, 6, 7], max_new_tokens=9, ignore_eos=True)
    assert isinstance(engine.target, TransformersTarget)
    prompt = torch.tensor([[5, 6, 7]])
    own: Any = engine.target.model.generate(
        prompt, max_new_tokens=9, do_sample=False, eos_token_id=None
    )
    assert result.token_ids == own[0, 3:].tolist()


def test_a_model_object_becomes_an_engine_and_stays_itself() -> None:
    model = tiny_model("qwen3")
    before = {n: p.clone() for n, p in model.named_parameters()}
    engine = graft.load(model, tokenizer=byte_tokenizer())
    assert isinstance(engine.target, TransformersTarget)
    assert engine.target.model is model
    assert len(engine.generate([5], max_new_tokens=4, ignore_eos=True).token_ids) == 4
    after = dict(model.named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_an_unknown_setting_is_named_with_those_that_exist(folder: Path) -> None:
    with pytest.raises(ValueError, match="bugdet: supported engine settings are policy, budget, "):
        graft.load(folder, bugdet=3)


def test_a_wrong_setting_is_refused_before_the_model_is_read() -> None:
    with pytest.raises(ValueError, match="budget=0"):
        graft.load("no/such-model", budget=0)


def test_a_model_that_cannot_verify_trees_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"LlamaForCausalLM is refused: .*under tree attention"):
        graft.load(with_own_attention(), tokenizer=byte_tokenizer())


def test_an_engine_is_loaded_without_settings(folder: Path) -> None:
    assert graft.load(folder, device="cpu").settings == graft.EngineSettings()


def test_what_the_package_names_is_there() -> None:
    assert [name for name in graft.__all__ if not hasattr(graft, name)] == []


def test_the_k_of_a_matrix_holds(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    graft.load(folder, device="cpu", k=3).save_matrix(path)
    engine = graft.load(folder, device="cpu", matrix=path)
    assert (engine.matrix.k, engine.settings.k) == (3, 3)
    with pytest.raises(ValueError, match=r"^k=4, but the matrix .* has 3 successors per token"):
        graft.load(folder, device="cpu", matrix=path, k=4)


def test_settings_of_the_engine_are_told_from_those_of_a_call(folder: Path) -> None:
    engine = graft.load(folder, device="cpu")
    with pytest.raises(ValueError, match=r"^beam: settings of the engine, so give them to graft"):
        engine.generate([5, 6], beam=3)
    with pytest.raises(ValueError, match="unknown setting 'beem'"):
        engine.generate([5, 6], beem=3)
