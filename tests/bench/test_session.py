"""Sessions: from settings to engines over one model, and from results to a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graft import loader
from graft.bench import session
from graft.bench.results import read_results
from graft.bench.session import BenchSettings, opened, read_items, retrieved_kinds, write_outputs
from graft.models import load_model
from tests.bench.factory import make_measurement, make_plain, write_results
from tests.drafter_folders import Folders, write_drafters
from tests.tiny_files import tiny_tokenizer


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


def test_transformers_gets_a_copy_with_unpacked_weights(
    folders: Folders, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    def load(**options: Any) -> Any:
        calls.append({k: v for k, v in options.items() if k != "progress"})
        return load_model(**options)

    monkeypatch.setattr(session, "load_model", load)
    chosen = settings(folders, suite, methods=("plain", "hf"))
    told: list[str] = []
    with opened(chosen, tmp_path / "run", progress=told.append) as found:
        assert len(calls) == 1
        lines = [line for group in found.runner.run() for line in group]
        assert found.runner._unpacked is not found.loaded.model
    assert calls[1:] == [{"model": folders.target, "cpu_weights": "fp32"}]
    assert "loading the model once more, as Transformers runs it" in told
    assert [line.difference for line in lines] == [None] * 4


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
    assert list((tmp_path / "run").iterdir()) == []


def test_cases_without_transformers_in_batches(folders: Folders, suite: Path) -> None:
    chosen = settings(folders, suite, methods=("plain", "hf"), batches=(1, 2))
    assert [case.name for case in chosen.cases(())] == [
        "plain K=0 T=0 B=1", "hf K=0 T=0 B=1", "plain K=0 T=0 B=2"
    ]  # fmt: skip


class TestOutputs:
    def test_report(self, tmp_path: Path) -> None:
        write_results(tmp_path / "results.jsonl", [make_plain(), make_measurement()])
        results, notes = write_outputs(tmp_path, None, figures=False)
        assert len(results.measurements) == 2
        assert notes == []
        text = (tmp_path / "report.md").read_text()
        assert text.startswith("# Graft bench")
        assert "## Figures" not in text
        assert not (tmp_path / "report.part").exists()

    def test_that_cannot_be_written(self, tmp_path: Path) -> None:
        write_results(tmp_path / "results.jsonl", [make_plain(), make_measurement()])
        (tmp_path / "report.md").mkdir()
        with pytest.raises(ValueError, match=r"report\.md cannot be written"):
            write_outputs(tmp_path, None, figures=False)
        assert not (tmp_path / "report.part").exists()

    def test_without_answers(self, tmp_path: Path) -> None:
        write_results(tmp_path / "results.jsonl", [])
        with pytest.raises(ValueError, match="no measurements"):
            write_outputs(tmp_path, None, figures=False)

    def test_kinds_of_what_was_retrieved_in_code(self) -> None:
        tokenizer = tiny_tokenizer()
        ids = tokenizer("def f(x)")["input_ids"]
        changes = {"token_ids": ids, "completion_tokens": len(ids)}
        code = make_measurement(task="code", sources="t" + "r" * (len(ids) - 1), **changes)
        prose = make_measurement(task="chat", sources=code.sources, **changes)
        drafted = make_measurement(task="code", sources="td" + "d" * (len(ids) - 2), **changes)
        found = retrieved_kinds([code, prose, drafted], tokenizer)
        assert found.keys() == {"graft"}
        assert sum(found["graft"].values()) == len(ids) - 1
        assert retrieved_kinds([prose, drafted], tokenizer) == {}


def test_lines_are_plain_json(folders: Folders, suite: Path, tmp_path: Path) -> None:
    with opened(settings(folders, suite), tmp_path / "run") as found:
        list(found.runner.run())
    for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines():
        assert isinstance(json.loads(line), dict)
