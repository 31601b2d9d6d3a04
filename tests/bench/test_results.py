"""Results: what a run writes is what is read back, whatever ended the run."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from graft.bench.measurement import Measurement
from graft.bench.results import differences, read_results
from graft.bench.results_writer import ResultsWriter
from tests.bench.factory import ENVIRONMENT, make_measurement, make_plain, write_results


def _three() -> list[Measurement]:
    return [make_plain(), make_measurement(), make_measurement(budget=8)]


def _changed(**fields: Any) -> str:
    return json.dumps({**json.loads(make_measurement().to_line()), **fields}) + "\n"


class TestRoundTrip:
    def test_what_was_written_is_read_back(self, tmp_path: Path) -> None:
        path = write_results(tmp_path / "new" / "results.jsonl", _three())
        results = read_results(path)
        assert list(results.measurements) == _three()
        assert results.environment == ENVIRONMENT
        assert results.broken is None

    def test_text_of_any_kind(self, tmp_path: Path) -> None:
        # U+2028 ends a line for some readers, not here.
        names = ["多", "a\u2028b", 'quo"te', "new\nline"]
        written = [make_measurement(id=name) for name in names]
        path = write_results(tmp_path / "r.jsonl", written)
        assert [m.id for m in read_results(path).measurements] == names

    def test_a_line_is_on_the_disk_when_append_returns(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        with ResultsWriter(path, ENVIRONMENT) as writer:
            for count, m in enumerate(_three(), 1):
                writer.append(m)
                assert len(read_results(path).measurements) == count
                assert len(writer.done) == count


class TestKilled:
    def test_wherever_the_last_line_was_cut(self, tmp_path: Path) -> None:
        whole = write_results(tmp_path / "whole.jsonl", [*_three(), make_measurement(id="多")])
        data = whole.read_bytes()
        start = data.rstrip(b"\n").rfind(b"\n") + 1
        character = data.index("多".encode())  # cut in the middle of it, too
        for end in (start + 1, start + 100, character + 1, len(data) - 2):
            path = tmp_path / "cut.jsonl"
            path.write_bytes(data[:end])
            results = read_results(path)
            assert (len(results.measurements), results.broken) == (3, 5)
            with ResultsWriter(path, ENVIRONMENT) as writer:
                assert len(writer.done) == 3
                writer.append(make_measurement(id="多"))
            results = read_results(path)
            assert (len(results.measurements), results.broken) == (4, None)

    def test_a_last_line_that_lacks_its_end_alone_is_kept(self, tmp_path: Path) -> None:
        path = write_results(tmp_path / "r.jsonl", _three())
        path.write_bytes(path.read_bytes().rstrip(b"\n"))
        assert len(read_results(path).measurements) == 3
        with ResultsWriter(path, ENVIRONMENT) as writer:
            writer.append(make_measurement(seed=1))
        assert len(read_results(path).measurements) == 4

    def test_in_the_first_line(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        path.write_text('{"environment": {"mod')
        with pytest.raises(ValueError, match="holds no results"):
            read_results(path)
        with ResultsWriter(path, ENVIRONMENT) as writer:
            writer.append(make_measurement())
        assert len(read_results(path).measurements) == 1

    def test_before_the_first_line(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        path.touch()
        with pytest.raises(ValueError, match="holds no results"):
            read_results(path)
        write_results(path, _three())
        assert len(read_results(path).measurements) == 3


class TestBroken:
    """Lines that were not cut off but are wrong. A file with three good lines before them."""

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ('{"task": "maths", "id"\n', "line 5: not JSON"),
            ("[1, 2]\n", "line 5: no JSON object"),
            ('{"environment": 3}\n', "line 5: the environment is no JSON object"),
            ('{"environment"\n', "line 5: "),
            (make_measurement().to_line() + "\n", "line 5: the same answer as line 3"),
            (_changed(seed=2, new=1), "line 5: unknown fields: new"),
            (_changed(seed="2"), "line 5: field seed is '2', which is no int"),
            (_changed(seed=True), "line 5: field seed is True, which is no int"),
            (_changed(id=["a"]), r"line 5: field id is \['a'\], which is no str"),
            (_changed(tau=float("inf")), "line 5: field tau is inf, which is no float"),
            (_changed(round_tokens=[1.5]), "line 5: field round_tokens .* no list"),
            (_changed(seconds={"draft": "1"}), "line 5: field seconds .* no dict"),
            (_changed(difference="no"), "line 5: field difference is 'no'"),
            (_changed(seed=2, round_tokens=[2]), "line 5: its lists of rounds"),
            (_changed(seed=2, rounds=4), "line 5: field rounds is 4, but it tells of 5 rounds"),
        ],
    )
    def test_a_wrong_line_is_named(self, tmp_path: Path, line: str, told: str) -> None:
        path = write_results(tmp_path / "r.jsonl", _three())
        with path.open("a", encoding="utf-8") as file:
            file.write(line + _changed(seed=9))
        with pytest.raises(ValueError, match=told):
            read_results(path)
        with pytest.raises(ValueError, match=told):
            ResultsWriter(path, ENVIRONMENT)

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        path = write_results(tmp_path / "r.jsonl", _three())
        path.write_bytes(path.read_bytes() + b"\xff\xfe\n")
        with pytest.raises(ValueError, match="line 5: "):
            read_results(path)

    def test_a_line_that_lacks_nearly_all_fields(self, tmp_path: Path) -> None:
        path = write_results(tmp_path / "r.jsonl", _three())
        with path.open("a") as file:
            file.write('{"mine": 1}\n')
        with pytest.raises(ValueError, match=r"missing: accepted_draft, \w+, batch and \d\d more;"):
            read_results(path)

    @pytest.mark.parametrize("name", ["tau", "task", "round_tokens", "seconds"])
    def test_missing_fields(self, tmp_path: Path, name: str) -> None:
        fields = json.loads(make_measurement(seed=2).to_line())
        del fields[name]
        path = write_results(tmp_path / "r.jsonl", _three())
        with path.open("a") as file:
            file.write(json.dumps(fields) + "\n")
        with pytest.raises(ValueError, match=f"line 5: fields missing: {name}"):
            read_results(path)

    def test_fields_that_may_be_missing(self, tmp_path: Path) -> None:
        fields = json.loads(make_measurement(seed=2).to_line())
        del fields["difference"], fields["excused"]
        path = write_results(tmp_path / "r.jsonl", _three())
        with path.open("a") as file:
            file.write(json.dumps(fields) + "\n")
        assert read_results(path).measurements[-1] == make_measurement(seed=2)

    def test_a_measurement_before_any_environment(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        path.write_text(make_measurement().to_line() + "\n")
        with pytest.raises(ValueError, match="line 1: a measurement before any environment"):
            read_results(path)


class TestPlaces:
    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"no\.jsonl cannot be read: No such file"):
            read_results(tmp_path / "no.jsonl")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="cannot be read: Is a directory"):
            read_results(tmp_path)
        with pytest.raises(ValueError, match="cannot be written: Is a directory"):
            ResultsWriter(tmp_path, ENVIRONMENT)

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        # A file in the folder's place: rights do not stop an administrator.
        (tmp_path / "file").touch()
        with pytest.raises(ValueError, match="cannot be written: "):
            ResultsWriter(tmp_path / "file" / "r.jsonl", ENVIRONMENT)

    def test_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with ResultsWriter(tmp_path / "r.jsonl", ENVIRONMENT) as writer:

            def full(_: int) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            monkeypatch.setattr(os, "fsync", full)
            with pytest.raises(ValueError, match="cannot be written: No space left"):
                writer.append(make_measurement())
            assert writer.done == set()


def test_every_field_is_explained() -> None:
    text = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
    table = text.partition("**Fields of an answer**")[2].partition("\n## ")[0]
    explained = {
        n for row in table.splitlines() for n in re.findall(r"`(\w+)`", row.split(" | ")[0])
    }
    assert explained == {f.name for f in fields(Measurement)}


class TestDifferences:
    def test_entries_of_dictionaries_one_by_one(self) -> None:
        other = {**ENVIRONMENT, "versions": {"torch": "2.14.0", "numpy": "2"}, "threads": 2}
        assert differences(ENVIRONMENT, other) == {
            "versions torch": ("2.13.0", "2.14.0"),
            "versions numpy": (None, "2"),
        }

    def test_time_and_command_do_not_count(self) -> None:
        assert differences(ENVIRONMENT, {**ENVIRONMENT, "time": "now", "command": "other"}) == {}
