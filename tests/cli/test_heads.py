"""`graft heads inspect`: what is shown of a head, to people and to programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graft.cli import main
from tests.cli.helpers import Command, assert_mistake, on_terminal
from tests.drafter_folders import write_drafters
from tests.tiny_files import save_folder
from tests.tiny_heads import LAYERS, Config, Tensors, tiny_head, write_authors, write_specforge


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("targets") / "deep"
    save_folder(folder, num_hidden_layers=LAYERS)
    return str(folder)


def rows(text: str) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in text.splitlines())


def test_a_pipe_gets_plain_lines(run: Command, tmp_path: Path) -> None:
    write_specforge(tmp_path, tiny_head(norm_output=True))
    result = run("heads", "inspect", str(tmp_path))
    shown = rows(result.out)
    assert (result.code, result.err) == (0, "")
    assert shown["format"] == "specforge"
    assert shown["target"] == "not checked (give --model)"
    assert shown["features"] == "width 64, inputs of layers 2, 4, 5 (in the checkpoint: 1, 3, 4)"
    assert shown["draft vocabulary"] == "64 of 256 tokens (25.0%)"
    assert shown["embeddings"] == "the target's"
    assert shown["variants"] == "norm_output"
    assert shown["trained length"] == "2048"


def test_a_target_is_checked_without_its_weights(run: Command, tmp_path: Path, target: str) -> None:
    write_authors(tmp_path, tiny_head())
    for file in Path(target).glob("*.safetensors"):
        file.unlink()
    shown = rows(run("heads", "inspect", str(tmp_path), "--model", target).out)
    assert shown["target"] == target
    assert shown["features"].startswith("width 64, inputs of layers 2, 4, 5")


def test_json_is_one_object(run: Command, tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head())
    found = json.loads(run("heads", "inspect", str(tmp_path), "--json").out)
    assert (found["format"], found["feature_layers"], found["target"]) == ("authors", None, None)
    assert found["config"]["draft_vocab_size"] == 64


def test_a_person_gets_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_authors(tmp_path, tiny_head())
    out = on_terminal(monkeypatch)
    assert main(["heads", "inspect", str(tmp_path)]) == 0
    assert "draft vocabulary" in out.getvalue()
    assert "layers depend on the target" in out.getvalue()


def test_a_dflash_drafter_is_shown_too(run: Command, tmp_path: Path) -> None:
    folders = write_drafters(tmp_path)
    shown = rows(run("heads", "inspect", folders.dflash).out)
    assert (shown["kind"], shown["target"]) == ("DFlash drafter", "not checked (give --model)")
    assert shown["block"] == "5 rows: 4 drafted tokens; mask token 254"
    assert shown["features"] == "width 64, inputs of layers 5, 2"
    assert (shown["windows"], shown["causal"]) == ("none", "no")
    checked = run("heads", "inspect", folders.dflash, "-m", folders.target, "--json")
    assert json.loads(checked.out)["target"] == folders.target
    assert rows(run("heads", "inspect", folders.specforge).out)["kind"] == "EAGLE-3 head"
    meant = run("heads", "inspect", folders.draft)
    assert_mistake(meant, "a whole language model", "--draft-model")


def test_mistakes_are_one_line(run: Command, tmp_path: Path, target: str) -> None:
    def spoil(_: Config, tensors: Tensors) -> None:
        del tensors["norm.weight"]

    write_authors(tmp_path / "a", tiny_head(), edit=spoil)
    write_authors(tmp_path / "b", tiny_head(target_hidden_size=32))
    assert_mistake(run("heads", "inspect", str(tmp_path / "a")), "missing: norm.weight")
    assert_mistake(run("heads", "inspect", str(tmp_path / "none")), "there is no head")
    mismatch = run("heads", "inspect", str(tmp_path / "b"), "-m", target)
    assert_mistake(mismatch, "features of width 32", "has 64")
    assert_mistake(run("heads", "inspect", str(tmp_path / "b"), "-m", "nowhere"), "no target")
