"""Heads that are given as draft models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graft.drafters.loading import load_drafter
from graft.models import ModelError, load_model
from tests.drafter_folders import Folders, write_drafters


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return write_drafters(tmp_path_factory.mktemp("drafters"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("specforge", "an EAGLE-3 head"),
        ("speculators", "an EAGLE-3 head"),
        ("dflash", "a DFlash drafter"),
    ],
)
def test_a_head_given_as_draft_model(folders: Folders, name: str, kind: str) -> None:
    folder = getattr(folders, name)
    target = load_model(folders.target, device="cpu")
    with pytest.raises(ModelError) as found:
        load_drafter(target, draft_model=folder)
    assert str(found.value) == f"{folder} is {kind}: give it as head (--head)"


def test_a_fetched_head_given_as_draft_model(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ModelError("org/head holds no tokenizer")

    found: list[object] = [str(Path(folders.specforge) / "config.json"), None]
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: found.pop(0))
    target = load_model(folders.target, device="cpu")
    monkeypatch.setattr("graft.drafters.loading.load_model", fail)
    with pytest.raises(ModelError, match=r"org/head is an EAGLE-3 head"):
        load_drafter(target, draft_model="org/head")
    with pytest.raises(ModelError, match="holds no tokenizer"):  # nothing is known of it
        load_drafter(target, draft_model="org/head")


def test_control_a_model_without_a_tokenizer_is_no_head(folders: Folders, tmp_path: Path) -> None:
    for file in Path(folders.draft).iterdir():
        if "token" not in file.name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ModelError, match="holds no tokenizer"):
        load_drafter(load_model(folders.target, device="cpu"), draft_model=tmp_path)
