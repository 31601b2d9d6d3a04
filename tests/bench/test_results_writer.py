"""Writing results: what a run may add to, and what it leaves as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graft.bench.measurement import Measurement
from graft.bench.results import read_results
from graft.bench.results_writer import ResultsWriter
from tests.bench.factory import ENVIRONMENT, make_measurement, make_plain, write_results


def _three() -> list[Measurement]:
    return [make_plain(), make_measurement(), make_measurement(budget=8)]


class TestResume:
    def test_the_same_command_goes_on_where_it_stopped(self, tmp_path: Path) -> None:
        path = write_results(tmp_path / "r.jsonl", _three()[:2])
        later = {**ENVIRONMENT, "time": "2026-01-02T00:00:00+00:00", "command": "again"}
        with ResultsWriter(path, later) as writer:
            assert writer.done == {m.key for m in _three()[:2]}
            writer.append(_three()[2])
        results = read_results(path)
        assert list(results.measurements) == _three()
        assert results.environments == (ENVIRONMENT, later)

    def test_settings_come_back_as_they_were_written(self, tmp_path: Path) -> None:
        # JSON has no tuples.
        settings = {"settings": {"batches": (1, 2)}}
        path = write_results(tmp_path / "r.jsonl", [], **settings)
        with ResultsWriter(path, {**ENVIRONMENT, **settings}) as writer:
            assert writer.done == set()

    def test_another_setting_is_refused_with_what_differs(self, tmp_path: Path) -> None:
        path = write_results(tmp_path / "r.jsonl", _three())
        before = path.read_bytes()
        other = {**ENVIRONMENT, "prompts_hash": "p1"}
        with pytest.raises(
            ValueError, match=r"other settings \(prompts_hash 'p0', now 'p1'\).*or --resume"
        ):
            ResultsWriter(path, other)
        assert path.read_bytes() == before
        with ResultsWriter(path, other, resume=True) as writer:
            assert len(writer.done) == 3

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"settings": {"max_new_tokens": 16}}, "settings max_new_tokens 8, now 16"),
            ({"settings": {"matrix": "warm"}}, "settings matrix 'cold', now 'warm'"),
            ({"settings": {"engine": {"k": 4}}}, "settings engine k None, now 4"),
            ({"settings": {"seed": 1, "matrix": "warm"}}, "settings seed 0, now 1"),
            ({"settings": {"seed": 1}}, ""),
            ({"settings": {"cases": ["plain", "graft"]}}, ""),
            ({"prompts_hash": "p1"}, ""),
            ({"versions": {"torch": "3"}}, ""),
            ({"drafters": {"eagle3": ["head", "1"]}}, ""),
            ({"drafters": {"model": ["small", "9999"]}}, "drafters model"),
            ({"model_digest": "9999"}, "model_digest"),
            ({"threads": 4}, "threads"),
        ],
    )
    def test_what_a_run_may_add_under(
        self, tmp_path: Path, change: dict[str, Any], told: str
    ) -> None:
        first = {"max_new_tokens": 8, "seed": 0, "matrix": "cold", "engine": {}, "cases": ["plain"]}
        path = write_results(tmp_path / "r.jsonl", _three(), settings=first)
        before = path.read_bytes()
        now = {**ENVIRONMENT, "settings": first, **change}
        if "settings" in change:
            now["settings"] = {**first, **change["settings"]}
        if not told:
            with ResultsWriter(path, now, resume=True) as writer:
                assert len(writer.done) == 3
            return
        with pytest.raises(ValueError, match=rf"{told}.*choose another folder \(--resume adds"):
            ResultsWriter(path, now, resume=True)
        assert path.read_bytes() == before

    def test_every_earlier_start_counts(self, tmp_path: Path) -> None:
        path = write_results(tmp_path / "r.jsonl", _three())
        with ResultsWriter(path, {**ENVIRONMENT, "drafters": {}}, resume=True):
            pass
        other = {**ENVIRONMENT, "drafters": {"model": ["another", "9"]}}
        with pytest.raises(ValueError, match="drafters model"):
            ResultsWriter(path, other, resume=True)

    def test_an_answer_is_not_written_twice(self, tmp_path: Path) -> None:
        with ResultsWriter(tmp_path / "r.jsonl", ENVIRONMENT) as writer:
            writer.append(make_measurement())
            with pytest.raises(ValueError, match="already"):
                writer.append(make_measurement(decode_seconds=9.0))
        assert len(read_results(tmp_path / "r.jsonl").measurements) == 1

    def test_what_could_not_be_read_back_is_not_written(self, tmp_path: Path) -> None:
        with ResultsWriter(tmp_path / "r.jsonl", ENVIRONMENT) as writer:
            with pytest.raises(ValueError, match="field tau is nan"):
                writer.append(make_measurement(tau=float("nan")))
            with pytest.raises(ValueError, match="not of one length"):
                writer.append(make_measurement(round_draft=[1]))
        assert read_results(tmp_path / "r.jsonl").measurements == ()


class TestOfOthers:
    """What no run of ours has left there is refused, and stays as it is."""

    @pytest.mark.parametrize(
        "data",
        [
            b'{"mine": 1}',
            b"\xff\x00\x01",
            b"my notes\nmore",
            make_measurement().to_line().encode(),
            make_measurement().to_line().encode() + b"\n" + b'{"env',
        ],
    )
    def test_refused(self, tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "r.jsonl"
        path.write_bytes(data)
        with pytest.raises(ValueError, match="another folder"):
            ResultsWriter(path, ENVIRONMENT, resume=True)
        assert path.read_bytes() == data
