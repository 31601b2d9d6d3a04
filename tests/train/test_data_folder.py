"""Data folders: nothing is lost, nothing is taken for what it is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graft.train import data_folder
from graft.train.answers import Answer
from graft.train.data_folder import DataWriter, Manifest, read_answers, read_file, read_manifest
from tests.train.making import answer

ANSWERS = [answer(seed=i) for i in range(7)]


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_folder, "SHARD", 3)


def manifest(**settings: Any) -> Manifest:
    return Manifest("tiny", "abc", 255, {"seed": 0, **settings})


def write(folder: Path, answers: list[Answer], *, finish: bool = False) -> None:
    writer = DataWriter(folder, manifest())
    for one in answers:
        writer.append(one)
    if finish:
        writer.finish()
    writer.close()


@pytest.mark.parametrize("count", [0, 1, 3, 4, 6, 7])
@pytest.mark.parametrize("finish", [False, True])
def test_what_is_written_is_read(tmp_path: Path, count: int, finish: bool) -> None:
    write(tmp_path / "data", ANSWERS[:count], finish=finish)
    assert list(read_answers(tmp_path / "data")) == ANSWERS[:count]
    assert read_manifest(tmp_path / "data").finished == finish


@pytest.mark.parametrize("count", range(8))
def test_a_broken_off_run_goes_on(tmp_path: Path, count: int) -> None:
    write(tmp_path, ANSWERS[:count])
    again = DataWriter(tmp_path, manifest())
    assert again.done == ANSWERS[:count]
    for one in ANSWERS[count:]:
        again.append(one)
    again.finish()
    assert list(read_answers(tmp_path)) == ANSWERS


def test_a_line_cut_off_by_a_kill_is_dropped(tmp_path: Path) -> None:
    write(tmp_path, ANSWERS[:5])
    tail = tmp_path / "answers-00001.jsonl"
    tail.write_bytes(tail.read_bytes() + ANSWERS[5].line().encode()[:20])
    assert list(read_answers(tmp_path)) == ANSWERS[:5]
    write(tmp_path, ANSWERS[5:])
    assert list(read_answers(tmp_path)) == ANSWERS


@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
def test_a_damaged_shard_is_named(tmp_path: Path, damage: str) -> None:
    write(tmp_path, ANSWERS)
    shard = tmp_path / "answers-00000.jsonl"
    data = shard.read_bytes()
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(data[:-30] if damage == "cut" else data.replace(b"chat", b"code", 1))
    with pytest.raises(ValueError, match=r"answers-00000\.jsonl"):
        list(read_answers(tmp_path))
    with pytest.raises(ValueError, match=r"answers-00000\.jsonl"):
        DataWriter(tmp_path, manifest())


def test_a_broken_line_of_the_open_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path, ANSWERS[:4])
    with (tmp_path / "answers-00001.jsonl").open("ab") as stream:
        stream.write(b'{"half": \n')
    with pytest.raises(ValueError, match=r"answers-00001\.jsonl, line 2 is not JSON"):
        list(read_answers(tmp_path))


@pytest.mark.parametrize(
    "other",
    [
        replace(manifest(), model="big"),
        replace(manifest(), fingerprint="xyz"),
        replace(manifest(), token_count=9),
        manifest(seed=1),
    ],
)
def test_other_settings_are_refused_and_nothing_is_lost(tmp_path: Path, other: Manifest) -> None:
    write(tmp_path, ANSWERS)
    with pytest.raises(ValueError, match="was made with"):
        DataWriter(tmp_path, other)
    assert list(read_answers(tmp_path)) == ANSWERS


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="holds other things"):
        DataWriter(tmp_path, manifest())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', '{"format": 1}'])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(ValueError, match=r"data\.json"):
        read_manifest(tmp_path)


def test_a_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="graft train data"):
        read_manifest(tmp_path)


def test_single_files(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(one.line() for one in ANSWERS) + "\n")
    assert list(read_file(path)) == ANSWERS
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(ValueError, match="line 1 is not UTF-8"):
        list(read_file(path))
    with pytest.raises(ValueError, match="cannot read"):
        list(read_file(tmp_path / "absent.jsonl"))


def test_the_manifest_is_json_that_people_can_read(tmp_path: Path) -> None:
    write(tmp_path, ANSWERS)
    found = json.loads((tmp_path / "data.json").read_text())
    assert found["model"] == "tiny"
    assert list(found["shards"]) == ["answers-00000.jsonl", "answers-00001.jsonl"]
