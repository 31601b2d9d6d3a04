"""`graft.load` with options that do not fit: one clear line each; and matrices in files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graft
from graft import loader
from graft.drafters.independent import ModelDrafter
from graft.matrix import EMPTY, AdjacencyMatrix
from graft.matrix_file import save_matrix
from tests.drafter_folders import Folders, write_drafters
from tests.tiny_models import VOCAB_SIZE, tiny_model

OPTIONS: dict[str, Any] = {"device": "cpu", "budget": 8}
THREE = [[[0]], [[0], [1]], [[0], [0, 0]]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return write_drafters(tmp_path_factory.mktemp("drafters"))


@pytest.fixture(autouse=True)
def _untested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "self_test", lambda engine: None)


def refused(folders: Folders, *words: str, **options: Any) -> None:
    """Loading ends in one line that holds these words."""
    with pytest.raises(ValueError, match=r"^[^\n]+\Z") as found:
        graft.load(folders.target, **{**OPTIONS, **options})
    for word in words:
        assert word in str(found.value)


def option(name: str) -> str:
    """An argument by both of its names."""
    return f"{name} (--{name.replace('_', '-')})"


def written(path: Path, paths: list[list[int]]) -> Path:
    path.write_text(json.dumps({"paths": paths}))
    return path


# --- drafters ---
def test_an_unknown_kind(folders: Folders) -> None:
    supported = "supported are eagle3, model, dflash, none"
    refused(folders, "drafter='medusa'", supported, drafter="medusa")


def test_head_and_draft_model(folders: Folders) -> None:
    given = {"head": folders.specforge, "draft_model": folders.draft}
    for kind in (None, "eagle3", "model", "none"):
        refused(folders, "both given", drafter=kind, **given)


@pytest.mark.parametrize(
    ("kind", "needed", "given"),
    [
        ("eagle3", "head", None),
        ("dflash", "head", None),
        ("model", "draft_model", None),
        ("eagle3", "head", "draft_model"),
        ("dflash", "head", "draft_model"),
        ("model", "draft_model", "head"),
    ],
)
def test_a_kind_without_its_checkpoint(
    folders: Folders, kind: str, needed: str, given: str | None
) -> None:
    options = {given: folders.draft} if given else {}
    refused(folders, f"drafter='{kind}' needs {option(needed)}:", drafter=kind, **options)


@pytest.mark.parametrize("name", ["head", "draft_model"])
def test_no_drafter_and_a_checkpoint(folders: Folders, name: str) -> None:
    words = ("drafter='none' loads no drafter", f"{option(name)} is given", "policy retrieval")
    refused(folders, *words, drafter="none", **{name: folders.specforge})


@pytest.mark.parametrize("name", ["head", "draft_model"])
def test_an_empty_name(folders: Folders, name: str) -> None:
    refused(folders, f"{option(name)} is empty", **{name: ""})


def test_a_window_without_a_head(folders: Folders) -> None:
    refused(folders, option("head_window"), "none is loaded", head_window=5)
    refused(folders, "head_window", "none is loaded", head_window=5, draft_model=folders.draft)
    refused(folders, "head_window", "DFlash", head_window=5, head=folders.dflash)
    refused(folders, "head_window", head_window=5, head=folders.dflash, drafter="dflash")
    refused(folders, "head_window=0", "1 or more", head_window=0, head=folders.specforge)


def test_a_checkpoint_of_another_kind(folders: Folders) -> None:
    refused(folders, "is a DFlash drafter", head=folders.dflash, drafter="eagle3")
    refused(folders, "LlamaForCausalLMEagle3", head=folders.specforge, drafter="dflash")
    refused(folders, "is a whole language model", head=folders.draft)


def test_a_checkpoint_that_is_not_there(folders: Folders) -> None:
    refused(folders, "no head 'no/such/head'", head="no/such/head")
    refused(folders, "no head 'no/such/head'", head="no/such/head", drafter="dflash")
    refused(folders, "no model 'no/such/model'", draft_model="no/such/model")


@pytest.mark.parametrize("text", ["", "[]", "3", "null", '{"architectures": 3}', "\xff"])
def test_a_head_whose_config_is_broken(folders: Folders, tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    refused(folders, str(tmp_path), head=tmp_path)


def test_a_head_for_another_target(folders: Folders) -> None:
    refused(folders, "features of width 96", "target has 64", head=folders.wide)


def test_a_draft_model_with_another_tokenizer(folders: Folders) -> None:
    refused(folders, "stranger", "another tokenizer", draft_model=folders.stranger)


def test_a_draft_model_that_is_no_model(folders: Folders) -> None:
    refused(folders, "not a model of Transformers", draft_model=torch.nn.Linear(2, 2))
    refused(folders, "training mode", draft_model=tiny_model("llama").train())


def test_a_draft_model_elsewhere(folders: Folders) -> None:
    draft = tiny_model("llama").to("meta")  # type: ignore[arg-type]
    refused(folders, "is on meta and", "on cpu", draft_model=draft)


# --- policies and plans ---
@pytest.mark.parametrize("policy", ["graft", "dense", "pruned", "eagle3", "graft-unpruned"])
def test_a_policy_that_drafts_without_a_drafter(folders: Folders, policy: str) -> None:
    refused(folders, f"policy='{policy}' drafts, but no drafter is loaded", policy=policy)


@pytest.mark.parametrize("given", [{"draft_model": "draft"}, {"head": "dflash"}])
def test_the_policy_of_a_head_without_one(folders: Folders, given: dict[str, str]) -> None:
    options = {role: getattr(folders, name) for role, name in given.items()}
    refused(folders, "needs an EAGLE-3 head", "policy='dense'", policy="eagle3", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "fast"}, ["policy='fast'", "supported are plain, lookup"]),
        ({"preset": "paper-61"}, ["preset='paper-61'", "paper-60, paper-32"]),
        ({"checkpoints": (0, 1), "thresholds": (0.3,)}, ["thresholds=(0.3,)", "2 checkpoints"]),
        ({"thresholds": (0.3, 0.2, 3.0)}, ["thresholds="]),
        ({"thresholds": (0.3, float("nan"), 0.1)}, ["thresholds="]),
        ({"checkpoints": (1, 0)}, ["checkpoints=(1, 0)", "ascending"]),
        ({"checkpoints": (0, 99)}, ["checkpoints=(0, 99)"]),
        ({"checkpoints": 3}, ["checkpoints=3", "a tuple of integers"]),
        ({"checkpoints": (0,), "kept": (9,)}, ["kept=(9,)", "the budget 8"]),
        ({"checkpoints": (0,), "kept": (1, 2)}, ["kept=(1, 2)"]),
        ({"checkpoints": (0,), "kept": (40,), "budget": None}, ["kept=(40,)", "the budget 4"]),
        ({"beam": 0}, ["beam=0"]),
        ({"depth": 33}, ["depth=33"]),
        ({"dedup": "merge"}, ["dedup='merge'", "redirect, skip"]),
    ],
)
def test_settings_that_do_not_fit(
    folders: Folders, options: dict[str, Any], words: list[str]
) -> None:
    refused(folders, *words, head=folders.specforge, **options)


# --- templates ---
def test_templates_are_one_or_one_per_stage(folders: Folders, tmp_path: Path) -> None:
    files = [written(tmp_path / f"{i}.json", paths) for i, paths in enumerate(THREE)]
    options: dict[str, Any] = {"head": folders.specforge, "checkpoints": (0, 1)}
    refused(folders, "2 templates", "d0, d1, full", templates=files[:2], **options)
    refused(folders, "3 templates", "policy='retrieval'", templates=files)
    engine = graft.load(folders.target, **OPTIONS, templates=files, **options)
    assert [[list(p) for p in t.paths] for t in engine.templates] == THREE
    plain = engine.generate([5, 6], policy="plain", max_new_tokens=9).token_ids
    assert engine.generate([5, 6], max_new_tokens=9).token_ids == plain
    for single in (files[1], str(files[1]), files[1:2]):
        engine = graft.load(folders.target, **OPTIONS, templates=single, **options)
        assert [list(p) for p in engine.templates[0].paths] == THREE[1]


def test_a_template_is_read_before_the_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"template .*none\.json cannot be read: No such file"):
        graft.load("no/such-model", templates=[tmp_path / "none.json"])


def test_a_template_reads_ranks_that_are_there(folders: Folders, tmp_path: Path) -> None:
    file = written(tmp_path / "t.json", [[0], [9]])
    words = ("t.json reads rank 9", "holds 8 successors", "ranks 0 to 7", "larger k")
    refused(folders, *words, templates=[file])
    engine = graft.load(folders.target, **OPTIONS, templates=[file], k=10)
    assert engine.templates[0].ranks_used == 10


def test_an_empty_template_retrieves_nothing(folders: Folders, tmp_path: Path) -> None:
    engine = graft.load(folders.target, **OPTIONS, templates=written(tmp_path / "t.json", []))
    stats = engine.generate([5, 6, 5, 6], max_new_tokens=9, ignore_eos=True).stats
    assert (stats.proposed_retrieved, stats.tau) == (0, 1.0)


# --- matrices ---
@pytest.fixture
def matrix_file(folders: Folders, tmp_path: Path) -> Path:
    """A matrix with a k of its own that an engine has saved."""
    engine = graft.load(folders.target, **OPTIONS, k=5)
    engine.generate([5, 6, 7], max_new_tokens=20, ignore_eos=True)
    engine.save_matrix(tmp_path / "m.matrix")
    return tmp_path / "m.matrix"


def test_a_matrix_that_is_not_there_is_missed_before_the_model_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'does not exist.*matrix_scope="file"'):
        graft.load("no/such-model", matrix=tmp_path / "none")


def test_scopes_and_files(folders: Folders, matrix_file: Path, tmp_path: Path) -> None:
    refused(folders, 'matrix_scope="file" needs a file', matrix_scope="file")
    for path in (matrix_file, tmp_path / "none"):
        refused(folders, 'matrix_scope="request"', matrix=path, matrix_scope="request")
    refused(folders, "does not exist", matrix=tmp_path / "no" / "m", matrix_scope="file")
    refused(folders, "is a folder", matrix=tmp_path, matrix_scope="file")
    refused(folders, "is a folder", matrix=tmp_path)
    refused(folders, "matrix_scope='all'", "request, process, file", matrix_scope="all")


@pytest.mark.parametrize("scope", ["process", "file"])
@pytest.mark.parametrize("spoil", [lambda data: data[:-9], lambda data: b"{}" + data])
def test_a_damaged_matrix_is_refused_and_left_alone(
    folders: Folders, matrix_file: Path, scope: str, spoil: Callable[[bytes], bytes]
) -> None:
    matrix_file.write_bytes(spoil(matrix_file.read_bytes()))
    before = matrix_file.read_bytes()
    refused(folders, "m.matrix", matrix=matrix_file, matrix_scope=scope)
    assert matrix_file.read_bytes() == before


@pytest.mark.parametrize("scope", ["process", "file"])
def test_a_matrix_of_another_tokenizer(folders: Folders, tmp_path: Path, scope: str) -> None:
    matrix = AdjacencyMatrix(VOCAB_SIZE, 4, torch.device("cpu"))
    save_matrix(tmp_path / "m", matrix, "other", model="some model")
    refused(folders, "learnt with some model", matrix=tmp_path / "m", matrix_scope=scope)


@pytest.mark.parametrize("scope", ["process", "file"])
def test_a_matrix_starts_warm_with_its_own_k(
    folders: Folders, matrix_file: Path, scope: str
) -> None:
    before = matrix_file.read_bytes()
    with graft.load(folders.target, **OPTIONS, matrix=matrix_file, matrix_scope=scope) as engine:
        assert engine.matrix.k == 5
        rows = int((engine.matrix.ids[:VOCAB_SIZE, 0] != EMPTY).sum())
        assert rows > 3
        assert engine.templates[0].ranks_used <= 5
        engine.generate([50, 60, 70], max_new_tokens=20, ignore_eos=True)
    assert (matrix_file.read_bytes() != before) is (scope == "file")


def test_a_matrix_is_read_where_nothing_can_be_written(
    folders: Folders, matrix_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert graft.load(folders.target, **OPTIONS, matrix=matrix_file).matrix.k == 5
    refused(folders, "no permission", matrix=matrix_file, matrix_scope="file")


def test_a_new_file_appears_when_the_engine_closes(folders: Folders, tmp_path: Path) -> None:
    file = tmp_path / "new.matrix"
    options = {**OPTIONS, "matrix": file, "matrix_scope": "file"}
    with graft.load(folders.target, **options, draft_model=folders.draft) as engine:
        assert isinstance(engine.drafter, ModelDrafter)
        first = engine.generate([5, 6, 7], max_new_tokens=20, ignore_eos=True)
        assert not file.exists()
    with graft.load(folders.target, **options) as engine:
        options = {"max_new_tokens": 20, "ignore_eos": True, "policy": "retrieval"}
        again = engine.generate([5, 6, 7], **options)
    assert again.token_ids == first.token_ids
    assert again.stats.accepted_retrieved > 3
