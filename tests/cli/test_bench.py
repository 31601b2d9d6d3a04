"""`graft bench`: whole runs of a tiny model, how they end, and how they go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from graft import loader
from graft.bench.results import read_results
from graft.bench.results_writer import ResultsWriter
from graft.engine import Engine
from tests.bench.factory import tables_of
from tests.bench.running import spoil, without_times
from tests.cli.benching import ANSWERS, Bench
from tests.cli.helpers import Command, Terminal, assert_mistake
from tests.drafter_folders import Folders, write_drafters


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return write_drafters(tmp_path_factory.mktemp("drafters"), max_position_embeddings=256)


@pytest.fixture(autouse=True)
def _untested(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test of drafters, the longest part of loading, is not the subject."""
    monkeypatch.setattr(loader, "self_test", lambda engine: None)


@pytest.fixture
def bench(run: Command, folders: Folders, tmp_path: Path) -> Bench:
    return Bench(run, folders.target, tmp_path / "run")


def test_a_whole_run_with_all_kinds_of_drafters(bench: Bench, folders: Folders) -> None:
    heads = ("--head", folders.specforge, "--head", folders.dflash)
    methods = "plain,lookup,retrieval,graft,model:graft,dflash:dense,eagle3,pruned,hf,hf-lookup"
    ran = bench(*heads, "--draft-model", folders.draft, "--methods", methods, figures=True)
    assert (ran.code, ran.out) == (0, f"{bench.folder / 'report.md'}\n"), ran.err
    assert sorted(p.name for p in bench.folder.iterdir()) == [
        ".lock", "figures", "journal.safetensors", "report.md", "results.jsonl"
    ]  # fmt: skip
    found = bench.results
    assert len(found.measurements) == ANSWERS * 10
    assert [m.difference for m in found.measurements] == [None] * (ANSWERS * 10)
    accepted = {m.method: 0 for m in found.measurements}
    for m in found.measurements:
        accepted[m.method] += m.accepted_draft
    assert accepted["model:graft"] > ANSWERS
    (table, *_) = tables_of(bench.report, "## Speed-up / tau")
    assert [row["task"] for row in table] == ["chat", "code", "all", "pooled"]
    assert {"model:graft K=4 warm", "hf-lookup K=4", "dflash:dense K=4"} < set(table[0])
    for link in [line for line in bench.report.splitlines() if line.startswith("![")]:
        assert (bench.folder / link.partition("(")[2].rstrip(")")).exists()
    assert "## Figures" in bench.report
    environment = found.environment
    assert environment["model"] == "target"
    assert environment["drafters"].keys() == {"eagle3", "dflash", "model"}
    assert environment["command"].startswith("graft")
    assert str(Path(bench.model).parent) not in json.dumps(environment["drafters"])


def test_settings_reach_the_run(bench: Bench) -> None:
    chosen = ("--budget", "2,3", "--temperature", "0,0.5", "--batch", "1,2", "--seed", "7")
    ran = bench("--matrix", "cold", *chosen, "--max-turns", "1", "--limit", "1", "--k", "4")
    assert ran.code == 0, ran.err
    found = bench.results.measurements
    assert len(found) == 2 * 2 * 2 * 3
    assert {m.matrix for m in found} == {"none", "cold"}
    assert {m.budget for m in found} == {0, 2, 3}
    assert {m.seed for m in found} == {7}
    assert {m.turn for m in found} == {0}
    assert bench.results.environment["settings"]["engine"]["k"] == 4


def test_the_built_in_suite(run: Command, tmp_path: Path, folders: Folders) -> None:
    short = ("-n", "4", "--limit", "1", "--no-figures", "--quiet")
    # Bytes take more room than the prompts' real tokens do.
    longer = write_drafters(tmp_path / "d", max_position_embeddings=8192).target
    ran = run("bench", "-m", longer, *short, "--out", str(tmp_path / "run"))
    assert (ran.code, ran.err) == (0, "")
    tasks = {m.task for m in read_results(tmp_path / "run" / "results.jsonl").measurements}
    assert tasks == {"chat", "code", "query_suggestion", "summarise", "titles", "titles_zh"}


class TestEnds:
    def test_tokens_that_differ(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        spoil(monkeypatch, "retrieval")
        ran = bench()
        assert ran.code == 1
        assert ran.out.endswith("report.md\n")
        last = ran.err.splitlines()[-1]
        assert last.startswith(f"error: {ANSWERS} answers differ from plain decoding")
        assert f"different answers ({ANSWERS}):" in bench.report
        monkeypatch.undo()
        assert bench().code == 1  # the lines are there, so the run has failed

    def test_ctrl_c_leaves_whole_lines(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            real, calls = Engine.generate, iter(range(100))

            def generate(*args: Any, **options: Any) -> Any:
                if next(calls) == 7:
                    raise KeyboardInterrupt
                return real(*args, **options)

            patch.setattr(Engine, "generate", generate)
            ran = bench()
        assert (ran.code, ran.out) == (130, "")
        assert ran.err.splitlines()[-1].startswith("broken off: give the same command again")
        assert f"graft bench report {bench.folder}" in ran.err
        assert 0 < len(bench.results.measurements) < 2 * ANSWERS
        assert bench.results.broken is None
        assert bench.run("bench", "report", str(bench.folder), "--no-figures").code == 0
        assert bench().code == 0
        assert len(bench.results.measurements) == 2 * ANSWERS

    @pytest.mark.slow
    def test_a_killed_process_goes_on(self, bench: Bench, tmp_path: Path) -> None:
        """The signal that nobody can catch, in the middle of a line."""
        whole = Bench(bench.run, bench.model, tmp_path / "whole")
        assert whole().code == 0
        arguments = [*bench.start, "--out", str(bench.folder), "--no-figures"]
        code = (
            "import os, signal, sys\n"
            "from graft.bench.results_writer import ResultsWriter\n"
            "from graft.cli import main\n"
            "real, calls = ResultsWriter._write, iter(range(100))\n"
            "def write(self, line):\n"
            "    if next(calls) == 4:\n"
            "        self._file.write(line.encode()[:50]); self._file.flush()\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "    real(self, line)\n"
            "ResultsWriter._write = write\n"
            f"main({arguments!r})\n"
        )
        # As many threads as in this process: a run goes on under the same settings alone.
        alike = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
        start = [sys.executable, "-c", code]
        process = subprocess.run(start, capture_output=True, check=False, env=alike)
        assert process.returncode == -signal.SIGKILL
        assert (bench.folder / "results.jsonl").read_bytes()[-1:] != b"\n"
        ran = bench()
        assert ran.code == 0, ran.err
        found = bench.results
        assert without_times(found.measurements) == without_times(whole.results.measurements)
        assert len(found.environments) == 2
        # The same tables, but for times.
        heading = "## The same tokens as plain decoding"
        assert tables_of(bench.report, heading) == tables_of(whole.report, heading)
        mine, theirs = (tables_of(b.report, "## Speed-up / tau")[0] for b in (bench, whole))
        case = "retrieval K=4 warm"
        assert [row[case].split("/")[1] for row in mine] == [
            row[case].split("/")[1] for row in theirs
        ]

    def test_progress(self, bench: Bench) -> None:
        told = [line for line in bench().err.splitlines() if " answers" in line]
        assert told[-1] == "8 of 8 answers"
        assert len(told) <= 10
        assert bench("--quiet").err == ""

    def test_progress_on_a_terminal(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        screen = Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        assert bench("--methods", "plain,hf").code == 0
        assert "8 of 8 answers" in screen.getvalue()


class TestAgain:
    def test_the_same_command_does_nothing_twice(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench()
        first = bench.results.measurements
        (bench.folder / "report.md").unlink()
        monkeypatch.setattr(Engine, "generate", pytest.fail)
        ran = bench()
        assert ran.code == 0
        assert bench.results.measurements == first
        assert "8 of 8" not in ran.err

    def test_another_command_is_refused_by_what_differs(self, bench: Bench) -> None:
        bench("--methods", "plain")
        before = (bench.folder / "results.jsonl").read_bytes()
        ran = bench("--methods", "plain,lookup", "--limit", "1")
        assert_mistake(ran, "other settings", "settings cases", "prompts_hash", "--resume")
        # What would mix what cannot be compared is refused for good.
        ran = bench("--methods", "plain,lookup", "-n", "9", "--resume")
        assert_mistake(ran, "settings max_new_tokens 8, now 9", "choose another folder")
        assert (bench.folder / "results.jsonl").read_bytes() == before

    def test_resume_adds_to_it(self, bench: Bench) -> None:
        bench("--methods", "plain", "--limit", "1")
        ran = bench("--methods", "plain,retrieval", "--resume")
        assert ran.code == 0, ran.err
        found = bench.results.measurements
        assert len(found) == 2 * ANSWERS
        assert "The file was added to under other settings" in bench.report


class TestReportAndCompare:
    def test_report(self, bench: Bench) -> None:
        bench()
        before = bench.report
        (bench.folder / "report.md").unlink()
        ran = bench.run("bench", "report", str(bench.folder), "--no-figures")
        assert (ran.code, ran.out) == (0, f"{bench.folder / 'report.md'}\n")
        assert bench.report == before
        ran = bench.run("bench", "report", str(bench.folder))
        assert ran.code == 0, ran.err
        assert bench.report.startswith(before.rstrip())
        ran = bench.run("bench", "report", str(bench.folder / "results.jsonl"), "--no-figures")
        assert (ran.code, ran.out) == (0, f"{bench.folder / 'report.md'}\n")
        assert "](figures/" in bench.report

    def test_compare(self, bench: Bench, tmp_path: Path) -> None:
        bench("--quiet")
        other = tmp_path / "other.jsonl"
        other.write_bytes((bench.folder / "results.jsonl").read_bytes())
        ran = bench.run("bench", "compare", str(bench.folder), str(other))
        assert ran.code == 0, ran.err
        assert "tokens/s B/A" in ran.out
        assert "retrieval K=4 warm" in ran.out

    def test_nothing_there(self, bench: Bench, tmp_path: Path) -> None:
        assert_mistake(bench.run("bench", "report", str(tmp_path)), "results.jsonl", "cannot be")
        ran = bench.run("bench", "compare", str(tmp_path), str(tmp_path))
        assert_mistake(ran, "results.jsonl", "cannot be read")


def test_a_full_disk_is_a_mistake(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: ResultsWriter, line: Any) -> None:
        raise ValueError("results.jsonl cannot be written: No space left on device")

    monkeypatch.setattr(ResultsWriter, "append", full)
    ran = bench()
    assert ran.code == 2
    assert ran.err.splitlines()[-1].endswith("No space left on device")


@pytest.mark.parametrize("drafter", ["none", "eagle3"])
def test_the_floor_has_a_line_for_each_forward(
    run: Command, folders: Folders, drafter: str
) -> None:
    head = folders.specforge if drafter == "eagle3" else "none"
    given = ("--model", folders.target, "--head", head, "--budget", "8")
    found = run("bench", "floor", *given)
    assert found.code == 0, found.err
    lines = [line for line in found.out.splitlines() if line.startswith("|")]
    forwards = [line.split("|")[1].strip() for line in lines[2:]]
    assert forwards[0] == "plain step"
    assert "verify 9 rows" in forwards
    assert ("head step" in forwards) == (drafter == "eagle3")


def test_graft_plus_may_be_measured_without_its_parts(bench: Bench, folders: Folders) -> None:
    methods = "plain,graft+,graft+-contexts,graft+-depth-budget"
    found = bench("--methods", methods, "--head", folders.specforge, "--limit", "1")
    assert found.code == 0, found.err
    lines = bench.results.measurements
    of = {m: [line for line in lines if line.method == m] for m in methods.split(",")}
    assert all(of.values())
    assert all(line.unspent_slots == 0 for line in of["graft+-depth-budget"])
    assert all(line.context_lookups == 0 for line in of["graft+-contexts"])
    assert any(line.context_lookups > 0 for line in of["graft+"])
    answers = {m: [line.token_ids for line in lines] for m, lines in of.items()}
    assert len({str(a) for a in answers.values()}) == 1


def test_a_part_that_there_is_not(bench: Bench) -> None:
    assert_mistake(bench("--methods", "plain,graft+-speed"), "graft+", "speed", "contexts")


def test_a_run_is_diagnosed(run: Command, bench: Bench) -> None:
    assert bench("--methods", "plain,retrieval", "--budget", "2,8", "-n", "60").code == 0
    found = run("diagnose", str(bench.folder))
    assert found.code == 0, found.err
    names = [line for line in found.out.splitlines() if line and not line.startswith(" ")]
    assert names == [f"retrieval K={k} warm, temperature 0, batch 1" for k in (2, 8)], (
        "a case each, and nothing of plain decoding"
    )
    assert found.out.count("x plain decoding, ") == 2


def test_too_short_a_run_is_not_diagnosed(run: Command, bench: Bench) -> None:
    assert bench("--methods", "plain,retrieval", "--limit", "1").code == 0
    assert "too few" in run("diagnose", str(bench.folder)).out


def test_nothing_to_diagnose(run: Command, bench: Bench) -> None:
    assert bench("--methods", "plain").code == 0
    assert_mistake(run("diagnose", str(bench.folder)), "no answers")
    assert_mistake(run("diagnose", str(bench.folder / "nowhere")), "nowhere")
