"""The log of a run: what it did, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graft.train.log import TrainLog, facts_in


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_begins_with_the_facts(tmp_path: Path) -> None:
    log = TrainLog(tmp_path / "deep" / "log.jsonl", {"dtype": "bfloat16"}, 0)
    log.add({"step": 1, "loss": 1 / 3, "accuracy": (0.1234567, 1)})
    expected = [{"dtype": "bfloat16"}, {"step": 1, "loss": 0.333333, "accuracy": [0.123457, 1]}]
    assert lines(log.path) == expected
    assert facts_in(log.path) == {"dtype": "bfloat16"}
    assert log.text() == log.path.read_text()


def test_steps_that_will_be_done_again_are_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = TrainLog(path, {}, 0)
    for step in (10, 20, 30):
        log.add({"step": step})
    with path.open("a") as stream:
        stream.write('{"step": 4')
    TrainLog(path, {"seed": 1}, 20)
    assert lines(path) == [{"seed": 1}, {"step": 10}, {"step": 20}]
    TrainLog(path, {"seed": 2}, 0)
    assert lines(path) == [{"seed": 2}]


def test_others_write_nothing(tmp_path: Path) -> None:
    TrainLog(tmp_path / "log.jsonl", {}, 0, writes=False).add({"step": 1})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", [None, "", "{", "[1]"])
def test_no_log_has_no_facts(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "log.jsonl").write_text(text)
    assert facts_in(tmp_path / "log.jsonl") == {}
