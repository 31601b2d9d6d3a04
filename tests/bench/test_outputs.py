"""What is made from results: a report, figures, and what stays of earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from graft.bench.outputs import retrieved_kinds, write_outputs
from tests.bench.factory import make_measurement, make_plain, write_results
from tests.bench.figure_data import make_run
from tests.tiny_files import tiny_tokenizer


class TestReport:
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

    @pytest.mark.parametrize("data", [b"# Notes\n", b""])
    def test_a_report_of_others_stays(self, tmp_path: Path, data: bytes) -> None:
        path = write_results(tmp_path / "results.jsonl", [make_plain(), make_measurement()])
        (tmp_path / "report.md").write_bytes(data)
        with pytest.raises(ValueError, match=r"report\.md was not written by graft bench"):
            write_outputs(path, None, figures=False)
        assert (tmp_path / "report.md").read_bytes() == data

    def test_beside_a_file_of_any_name(self, tmp_path: Path) -> None:
        path = write_results(tmp_path / "other.jsonl", [make_plain(), make_measurement()])
        write_outputs(path, None, figures=False)
        write_outputs(path, None, figures=False)  # its own report is no hindrance
        assert (tmp_path / "report.md").read_text().startswith("# Graft bench")

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


class TestFigures:
    """In a folder where token_kinds was drawn by the run, and batch by an earlier one."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        def save(_: object, folder: Path, name: str) -> list[Path]:
            (folder / f"{name}.png").touch()
            return []

        monkeypatch.setattr("graft.bench.figures.save", save)
        write_results(tmp_path / "results.jsonl", make_run(("plain", "graft"), ("chat",), 3))
        (tmp_path / "figures").mkdir()
        for name in ("batch.png", "batch.svg", "token_kinds.png", "mine.png"):
            (tmp_path / "figures" / name).touch()
        return tmp_path

    def _links(self, folder: Path) -> Sequence[str]:
        lines = (folder / "report.md").read_text().splitlines()
        return [line.partition("]")[0][2:] for line in lines if line.startswith("![")]

    def test_those_no_longer_drawn_go_and_others_stay(self, folder: Path) -> None:
        _, notes = write_outputs(folder, None, figures=True)
        left = {p.name for p in (folder / "figures").iterdir()}
        assert {"batch.png", "batch.svg"} & left == set()
        assert {"mine.png", "token_kinds.png", "depth.png"} < left
        assert "depth" in self._links(folder)
        assert "token_kinds" in self._links(folder)
        assert "mine" not in self._links(folder)
        assert "token_kinds is left as it is: only a run has the tokenizer to draw it" in notes

    def test_a_run_draws_the_kinds_or_removes_them(self, folder: Path) -> None:
        write_outputs(folder, tiny_tokenizer(), figures=True)  # nothing was retrieved in code
        assert not (folder / "figures" / "token_kinds.png").exists()

    def test_links_stay_where_nothing_is_drawn(self, folder: Path) -> None:
        write_outputs(folder, None, figures=False)
        assert self._links(folder) == ["batch", "token_kinds"]
        assert "As they were last drawn" in (folder / "report.md").read_text()
