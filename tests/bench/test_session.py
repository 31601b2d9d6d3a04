"""Sessions: from settings to engines over one model, in a folder that one run holds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graft import loader
from graft.bench import others, session
from graft.bench.folder import held
from graft.bench.results import read_results
from graft.bench.session import BenchSettings, opened, read_items
from graft.models import load_model
from tests.drafter_folders import Folders, write_drafters


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return write_drafters(tmp_path_factory.mktemp("drafters"), max_position_embeddings=256)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.txt"
    path.write_text("hello hello\none and two\n")
    return path


@pytest.fixture(autouse=True)
def _untested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "self_test", lambda engine: None)


def settings(folders: Folders, suite: Path, **changes: Any) -> BenchSettings:
    options: dict[str, Any] = {
        "suites": (suite,),
        "max_new_tokens": 6,
        "model": {"model": folders.target},
    }
    return BenchSettings(**{**options, **changes})


@pytest.mark.parametrize("matrix", ["warm", "cold"])
def test_an_engine_per_drafter_over_one_model(
    folders: Folders, suite: Path, tmp_path: Path, matrix: str
) -> None:
    drafters = {"heads": (folders.dflash, folders.specforge), "draft_model": folders.draft}
    asked: dict[str, Any] = {**drafters, "methods": ("plain", "graft", "model:graft")}
    chosen = settings(folders, suite, **asked, batches=(1, 3), matrix=matrix, engine={"k": 5})
    told: list[str] = []
    with opened(chosen, tmp_path / "run", progress=told.append) as found:
        engines = found.runner.engines
        assert list(engines) == ["dflash", "eagle3", "model", None]
        assert {id(engine.target.model) for engine in engines.values()} == {  # type: ignore[attr-defined]
            id(found.loaded.model)
        }
        for engine in engines.values():
            assert engine.settings.k == engine.matrix.k == 5
            assert engine.settings.max_batch == 3
            assert engine.settings.matrix_scope == {"warm": "process", "cold": "request"}[matrix]
        kinds = {case.method.drafter for case in found.runner.plan.cases}
        assert kinds == {None, "dflash", "model"}
    assert any(folders.dflash in text for text in told)
    facts = read_results(tmp_path / "run" / "results.jsonl").environment
    assert facts["drafters"]["model"] == ["draft", facts["model_digest"]]  # the same weights


def test_a_window_limits_the_eagle3_head_alone(
    folders: Folders, suite: Path, tmp_path: Path
) -> None:
    heads = (folders.dflash, folders.specforge)
    chosen = settings(folders, suite, methods=("plain", "graft"), heads=heads, head_window=7)
    with opened(chosen, tmp_path / "run") as found:
        head = found.runner.engines["eagle3"].drafter.head  # type: ignore[union-attr]
        assert {layer.self_attn.window for layer in head.layers} == {7}
    facts = read_results(tmp_path / "run" / "results.jsonl").environment
    assert facts["settings"]["head_window"] == 7
    without = replace(chosen, heads=(folders.dflash,))
    with pytest.raises(ValueError, match="head_window=7"), opened(without, tmp_path / "b"):
        pass


def test_transformers_gets_a_copy_with_unpacked_weights(
    folders: Folders, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    def load(**options: Any) -> Any:
        calls.append({k: v for k, v in options.items() if k != "progress"})
        return load_model(**options)

    monkeypatch.setattr(session, "load_model", load)
    monkeypatch.setattr(others, "load_model", load)
    chosen = settings(folders, suite, methods=("plain", "hf", "hf-lookup"))
    told: list[str] = []
    with opened(chosen, tmp_path / "run", progress=told.append) as found:
        assert len(calls) == 1
        lines = [line for group in found.runner.run() for line in group]
    assert calls[1:] == [{"model": folders.target, "cpu_weights": "fp32"}]
    assert "loading the model once more, as Transformers runs it" in told
    assert [line.difference for line in lines] == [None] * 6


def test_items(folders: Folders, suite: Path) -> None:
    assert [item.id for item in read_items(settings(folders, suite))] == ["1", "2"]
    own = read_items(settings(folders, suite, suites=(), selection={"tasks": ("titles",)}))
    assert {item.task for item in own} == {"titles"}
    # Lengths and limits wait for the tokenizer; that they are in range does not.
    late = {"limit": 1, "max_prompt_tokens": 3}
    assert len(read_items(settings(folders, suite, selection=late))) == 2
    with pytest.raises(ValueError, match="limit is 0"):
        read_items(settings(folders, suite, selection={"limit": 0}))


def test_a_refused_run_leaves_no_results(folders: Folders, suite: Path, tmp_path: Path) -> None:
    too_long = settings(folders, suite, max_new_tokens=256)
    with (
        pytest.raises(ValueError, match="prompt '1' of task suite"),
        opened(too_long, tmp_path / "run"),
    ):
        pass
    assert [p.name for p in (tmp_path / "run").iterdir()] == [".lock"]


def test_cases_without_transformers_in_batches(folders: Folders, suite: Path) -> None:
    chosen = settings(folders, suite, methods=("plain", "hf"), batches=(1, 2))
    assert [case.name for case in chosen.cases((), "cpu")] == [
        "plain K=0 T=0 B=1", "hf K=0 T=0 B=1", "plain K=0 T=0 B=2"
    ]  # fmt: skip


class TestHeld:
    """One run at a time, and no file of others is replaced."""

    def test_a_second_run_is_refused_before_anything_is_loaded(
        self, folders: Folders, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with opened(settings(folders, suite), tmp_path / "run"):
            monkeypatch.setattr(session, "load_model", pytest.fail)
            with (
                pytest.raises(ValueError, match="another run is writing to"),
                opened(settings(folders, suite), tmp_path / "run"),
            ):
                pass
        monkeypatch.undo()
        with opened(settings(folders, suite), tmp_path / "run"):
            pass

    @pytest.mark.slow
    def test_a_killed_process_holds_nothing(self, tmp_path: Path) -> None:
        code = (
            "import os, signal, sys\n"
            "from pathlib import Path\n"
            "from graft.bench.folder import held\n"
            "with held(Path(sys.argv[1])):\n"
            "    print('held', flush=True)\n"
            "    sys.stdin.read()\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        start = [sys.executable, "-c", code, str(tmp_path)]
        with subprocess.Popen(start, stdin=-1, stdout=-1) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == b"held\n"
            with pytest.raises(ValueError, match="another run"), held(tmp_path):
                pass
            process.stdin.close()
            assert process.wait() == -signal.SIGKILL
        with held(tmp_path):
            pass

    @pytest.mark.parametrize(
        ("name", "data"),
        [
            ("report.md", b"# My notes\n"),
            ("results.jsonl", b'{"mine": 1}'),
            ("results.jsonl", b"\xff\x00\x01"),
            ("results.jsonl", b"\x00\n\xff"),
        ],
    )
    def test_files_of_others_are_refused_and_stay(
        self, tmp_path: Path, name: str, data: bytes
    ) -> None:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=rf"{name}.*another folder"), held(tmp_path):
            pass
        assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [(name, data)]


def test_lines_are_plain_json(folders: Folders, suite: Path, tmp_path: Path) -> None:
    with opened(settings(folders, suite), tmp_path / "run") as found:
        list(found.runner.run())
    for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines():
        assert isinstance(json.loads(line), dict)
