"""Mistakes around `graft bench`: each is one clear line, and is said as early as can be."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from graft.bench import folder, session
from graft.engine import Engine
from tests.cli.benching import Bench
from tests.cli.helpers import Command, assert_mistake


@pytest.fixture
def bench(run: Command, model: str, tmp_path: Path) -> Bench:
    return Bench(run, model, tmp_path / "run")


class TestMistakes:
    """All of these are said before a model is loaded."""

    @pytest.fixture(autouse=True)
    def _no_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(session, "load_model", pytest.fail)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--methods", "plain,retreival"), ("did you mean retrieval?",)),
            (("-m", ""), ("--model is empty",)),
            (("--methods", ""), ("no method",)),
            (("--methods", "plain,plain"), ("methods holds plain twice",)),
            (("--methods", "plain,graft"), ("--head", "--draft-model")),
            (("--methods", "hf", "--batch", "2"), ("one prompt at a time",)),
            (("--methods", "hf", "--cpu-weights", "fp16"), ("rounds them",)),
            (("--task", "chad"), ("no task 'chad'", "did you mean chat?")),
            (("--limit", "0"), ("limit is 0",)),
            (("--max-prompt-tokens", "0"), ("max prompt tokens is 0",)),
            (("--max-turns", "0"), ("max turns is 0",)),
            (("--budget", "4,x"), ("--budget '4,x'", "whole numbers")),
            (("--budget", "4,"), ("--budget '4,'",)),
            (("--budget", ""), ("budgets is empty",)),
            (("--budget", "4,4"), ("budgets holds 4 twice",)),
            (("--budget", "0"), ("budgets holds 0",)),
            (("--budget", "1000"), ("budget=1000",)),
            (("--kept", "9,9", "--methods", "graft", "--draft-model", "x"), ("kept",)),
            (("--batch", "2000"), ("max_batch=2000",)),
            (("--batch", "1.5"), ("--batch '1.5'",)),
            (("--temperature", "-1"), ("temperature",)),
            (("--temperature", "nan"), ("temperature",)),
            (("-n", "1"), ("max_new_tokens=1",)),
            (("--suite", "/nowhere.jsonl"), ("the suite /nowhere.jsonl does not exist",)),
            (("--suite", "/nowhere"), ("the suite /nowhere does not exist",)),
            (("--out", ""), ("--out is empty",)),
            (("--head", "/nowhere"), ("no head '/nowhere'",)),
            (("--draft-model", "x", "--methods", "eagle3:graft"), ("loaded: model",)),
            (("--draft-model", "x", "--methods", "eagle3"), ("EAGLE-3 head",)),
        ],
    )
    def test_settings(
        self, bench: Bench, arguments: tuple[str, ...], words: tuple[str, ...]
    ) -> None:
        assert_mistake(bench(*arguments), *words)

    def test_two_heads_of_a_kind(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(session, "kind_of", lambda head: "eagle3")
        assert_mistake(bench("--head", "a", "--head", "b"), "two drafters of the kind eagle3")

    def test_a_folder_that_cannot_be_made(self, bench: Bench) -> None:
        bench.folder.write_text("a file")
        assert_mistake(bench(), "cannot be made")

    def test_a_folder_that_cannot_be_written_to(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refusing = SimpleNamespace(access=lambda *_: False, W_OK=os.W_OK, X_OK=os.X_OK)
        monkeypatch.setattr(folder, "os", refusing)
        assert_mistake(bench(), "no permission to write")

    @pytest.mark.parametrize("command", [(), ("report",)])
    def test_figures_without_matplotlib(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        ran = bench.run("bench", *command, *(["x"] if command else []))
        assert_mistake(ran, "pip install 'graft-decoding[bench]'", "--no-figures")


class TestMistakesOfItems:
    """Said once the model is there, before anything is run."""

    @pytest.fixture(autouse=True)
    def _no_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Engine, "generate", pytest.fail)

    def test_one_that_does_not_fit(self, bench: Bench) -> None:
        ran = bench("-n", "250")
        assert_mistake(ran, "of task chat", "tiny holds 256", "--max-prompt-tokens")
        assert not (bench.folder / "results.jsonl").exists()

    def test_none_is_left(self, bench: Bench) -> None:
        assert_mistake(bench("--min-prompt-tokens", "500"), "no prompt is left")

    def test_a_chat_template_that_refuses(self, bench: Bench, tmp_path: Path) -> None:
        folder = tmp_path / "model"
        folder.mkdir()
        for file in Path(bench.model).iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        refusing = "{{ raise_exception('only tools') }}"
        (folder / "chat_template.jinja").write_text(refusing)
        ran = bench("-m", str(folder))
        assert_mistake(ran, "prompt '1' of task chat cannot be asked", "only tools")
