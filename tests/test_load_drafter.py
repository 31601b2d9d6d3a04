"""`graft.load` with a drafter: every kind drafts, and nothing it does changes the tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import graft
from graft import loader
from graft.cli.options import Drafter
from graft.drafters.dflash.drafter import DFlashDrafter
from graft.drafters.eagle3 import checkpoint
from graft.drafters.eagle3.drafter import Eagle3Drafter
from graft.drafters.independent import ModelDrafter
from graft.drafters.loading import DrafterKind
from graft.engine import Engine
from graft.request import Result
from tests.drafter_folders import Folders, write_drafters
from tests.engines import check_arithmetic
from tests.exactness.faults import peeking
from tests.tiny_heads import Tensors, tiny_head, write_specforge
from tests.tiny_models import tiny_model

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7]
BUDGET = 16


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return write_drafters(tmp_path_factory.mktemp("drafters"))


@pytest.fixture(autouse=True)
def _untested(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test, the longest part of loading, has tests of its own."""
    monkeypatch.setattr(loader, "self_test", lambda engine: None)


@pytest.fixture(scope="module")
def drafting(folders: Folders) -> Callable[[str], Engine]:
    """An engine per kind of drafter, loaded once."""

    @cache
    def made(name: str) -> Engine:
        role = "draft_model" if name == "draft" else "head"
        return load(folders, **{role: getattr(folders, name)}, thresholds=(0.5, 0.4, 0.3))

    return made


def load(folders: Folders, **options: Any) -> Engine:
    return graft.load(folders.target, **{"device": "cpu", "budget": BUDGET, **options})


def answer(engine: Engine, policy: str | None = None, **options: Any) -> Result:
    options = {"max_new_tokens": 24, "ignore_eos": True, **options}
    return engine.generate(PROMPT, policy=policy, **options)


# --- every kind drafts, and changes nothing ---
KINDS = ("specforge", "speculators", "dflash", "draft")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("policy", ["graft", "dense", "pruned", "graft-unpruned"])
def test_every_kind_decodes_the_same_tokens(
    drafting: Callable[[str], Engine], name: str, policy: str
) -> None:
    engine = drafting(name)
    draws: list[dict[str, Any]] = [{}, {"temperature": 0.8, "seed": 3}]
    for sampling in draws if policy == "graft" else draws[:1]:
        plain = answer(engine, "plain", **sampling)
        found = answer(engine, policy, **sampling)
        assert found.token_ids == plain.token_ids
        assert found.stats.proposed_draft > 0
        check_arithmetic(found, BUDGET)


def test_a_wrong_walk_would_be_seen(
    drafting: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = drafting("draft")
    plain = answer(engine, "plain").token_ids

    def eager(p: Tensor, token: Tensor, children: Tensor) -> Tensor:
        return children.argmax(1)

    peeking(eager)(monkeypatch, None)  # type: ignore[arg-type]
    assert answer(engine, "dense").token_ids != plain


@pytest.mark.parametrize("kind", [None, "model"])
def test_a_draft_model_that_is_the_target_is_right(folders: Folders, kind: Any) -> None:
    engine = load(folders, draft_model=folders.draft, drafter=kind)
    assert isinstance(engine.drafter, ModelDrafter)
    found = answer(engine, "dense")
    assert found.stats.accepted_draft > 10
    assert found.stats.tau is not None
    assert found.stats.tau > 2


def test_a_loaded_object_drafts(folders: Folders) -> None:
    engine = load(folders, draft_model=tiny_model("llama", num_hidden_layers=8))
    by_name = load(folders, draft_model=folders.draft)
    assert answer(engine).token_ids == answer(by_name).token_ids
    assert answer(engine, "dense").stats.accepted_draft > 10


def test_the_targets_own_object_drafts(folders: Folders) -> None:
    alone = load(folders)
    engine = load(folders, draft_model=alone.target.model)  # type: ignore[attr-defined]
    other = graft.load(
        alone.target.model,  # type: ignore[attr-defined]
        tokenizer=alone.tokenizer,
        draft_model=alone.target.model,  # type: ignore[attr-defined]
        budget=BUDGET,
    )
    expected = answer(alone, "plain").token_ids
    for made in (engine, other):
        found = answer(made, "dense")
        assert found.token_ids == expected
        assert found.stats.accepted_draft > 10


def test_a_smaller_draft_model_has_a_context_of_its_own(folders: Folders) -> None:
    draft = tiny_model("gpt2", n_positions=64, vocab_size=256)
    engine = load(folders, draft_model=draft, policy="dense")
    found = answer(engine, max_new_tokens=70)
    assert found.token_ids == answer(engine, "plain", max_new_tokens=70).token_ids


# --- which policy and which drafter ---
def test_the_policy_where_none_is_named(folders: Folders) -> None:
    assert load(folders).policy == "graft+"
    assert load(folders).drafter is None
    assert load(folders, drafter="none", preset="paper-16").policy == "retrieval"
    assert load(folders, head=folders.specforge).policy == "graft+"
    assert load(folders, head=folders.specforge, preset="paper-16").policy == "graft"
    assert load(folders, head=folders.specforge, policy="pruned").policy == "pruned"


@pytest.mark.parametrize(
    ("name", "kind", "drafter"),
    [
        ("specforge", None, Eagle3Drafter),
        ("speculators", "eagle3", Eagle3Drafter),
        ("dflash", None, DFlashDrafter),
        ("dflash", "dflash", DFlashDrafter),
    ],
)
def test_a_head_is_known_by_its_files(
    folders: Folders, name: str, kind: Any, drafter: type
) -> None:
    engine = load(folders, head=Path(getattr(folders, name)), drafter=kind)
    assert isinstance(engine.drafter, drafter)


@pytest.mark.parametrize(
    ("name", "drafter"), [("specforge", Eagle3Drafter), ("dflash", DFlashDrafter)]
)
def test_a_head_has_a_hub_id_too(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, name: str, drafter: type
) -> None:
    asked: list[str] = []

    def fetch(hub_id: str) -> Path:
        asked.append(hub_id)
        return Path(getattr(folders, name))

    monkeypatch.setattr(checkpoint, "_fetch", fetch)
    assert isinstance(load(folders, head="org/head").drafter, drafter)
    assert set(asked) == {"org/head"}


def test_a_window_arrives(folders: Folders) -> None:
    engine = load(folders, head=folders.specforge, head_window=4)
    drafter: Any = engine.drafter
    assert [layer.self_attn.window for layer in drafter.head.layers] == [4]
    assert answer(engine).token_ids == answer(engine, "plain").token_ids


# --- what is said ---
def test_progress_names_the_drafter_and_the_notes_of_a_head(
    folders: Folders, tmp_path: Path
) -> None:
    said: list[str] = []
    write_specforge(
        tmp_path / "head",
        tiny_head(),
        edit=lambda config, _: config.update(quantization_config={"quant_method": "none"}),
    )
    load(folders, head=tmp_path / "head", progress=said.append)
    assert f"loading the drafter {tmp_path / 'head'}" in said
    assert [s for s in said if s.startswith("the head: quantization_config is there")]
    said.clear()
    load(folders, draft_model=tiny_model("llama"), progress=said.append)
    assert all("\n" not in line for line in said)


@pytest.mark.parametrize(("window", "warnings"), [(None, 1), (32, 0)])
def test_a_text_longer_than_the_head_knows_is_told_once(
    folders: Folders,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    window: int | None,
    warnings: int,
) -> None:
    write_specforge(tmp_path / "head", tiny_head(max_position_embeddings=40))
    engine = load(folders, head=tmp_path / "head", head_window=window, budget=4)
    with caplog.at_level(logging.WARNING, "graft"):
        caplog.clear()
        answer(engine, "graft", max_new_tokens=24)
        assert not _grown(caplog)
        for _ in range(2):
            found = answer(engine, "graft", max_new_tokens=50)
    assert len(_grown(caplog)) == warnings
    assert found.token_ids == answer(engine, "plain", max_new_tokens=50).token_ids


def _grown(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [m for m in caplog.messages if "has grown past 40 tokens" in m]


# --- dtypes ---
def _in(dtype: torch.dtype) -> Any:
    def edit(config: dict[str, Any], tensors: Tensors) -> None:
        config["torch_dtype"] = str(dtype).removeprefix("torch.")
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                tensors[name] = tensor.to(dtype)

    return edit


@pytest.mark.parametrize(
    ("dtype", "cpu_weights"),
    [(torch.bfloat16, "auto"), (torch.bfloat16, "fp32"), (torch.float16, "auto")],
)
def test_a_head_in_low_precision_computes_as_the_target_does(
    folders: Folders, tmp_path: Path, dtype: torch.dtype, cpu_weights: str
) -> None:
    write_specforge(tmp_path / "head", tiny_head(), edit=_in(dtype))
    engine = load(folders, head=tmp_path / "head", cpu_weights=cpu_weights)
    assert isinstance(engine.drafter, Eagle3Drafter)
    assert engine.drafter.head.dtype == torch.float32
    assert answer(engine).token_ids == answer(engine, "plain").token_ids


@pytest.mark.parametrize("name", ["specforge", "dflash"])
def test_a_head_in_fp32_computes_as_a_target_in_bf16(folders: Folders, name: str) -> None:
    engine = load(folders, head=getattr(folders, name), dtype="bf16")
    drafter: Any = engine.drafter
    network = drafter.head if name == "specforge" else drafter.model
    assert {p.dtype for p in network.parameters() if p.is_floating_point()} == {torch.bfloat16}
    assert len(answer(engine).token_ids) == 24


def test_the_command_line_knows_the_kinds() -> None:
    assert set(Drafter) == set(get_args(DrafterKind))
