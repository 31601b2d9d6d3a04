"""What is trained on: filtered, split by prompt, checked against the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from graft.train.answers import Answer
from graft.train.data_folder import DataWriter, Manifest
from graft.train.dataset import Dataset, read_dataset
from graft.train.settings import TrainSettings
from tests.train.making import answer


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**{"held_out": 0, "max_length": 64, **changes})


def read(folder: Path, answers: Sequence[Answer], **changes: Any) -> Dataset:
    path = folder / "answers.jsonl"
    path.write_text("".join(one.line() for one in answers))
    return read_dataset([path], settings(**changes), fingerprint="abc", token_count=255)


def test_looping_answers_are_left_out_and_counted(tmp_path: Path) -> None:
    loops = answer(id="loops", answer_ids=[1, 2] * 20)
    found = read(tmp_path, [answer(), loops])
    assert (found.train, found.looping) == ([answer()], 1)
    assert found.looping_share == pytest.approx(0.5)
    assert read(tmp_path, [answer(), loops], looping=1.0).looping == 0


def test_long_answers_are_cut_and_long_prompts_left_out(tmp_path: Path) -> None:
    answers = [answer(10, 60), answer(63, 9), answer(62, 9), answer(5, 1)]
    found = read(tmp_path, answers)
    assert (found.cut, found.long, found.short) == (2, 1, 1)
    assert [a.length for a in found.train] == [64, 64]
    assert found.train[0].answer_ids == answers[0].answer_ids[:54]


def test_turns_of_a_prompt_stay_together(tmp_path: Path) -> None:
    answers = [answer(id=str(i), turn=t, seed=9 * i + t) for i in range(20) for t in range(2)]
    found = read(tmp_path, answers, held_out=4)
    aside, kept = {a.id for a in found.held_out}, {a.id for a in found.train}
    assert len(aside) == 4
    assert not aside & kept
    assert len(found.held_out) == 8
    assert read(tmp_path, answers, held_out=4, seed=1).held_out != found.held_out


def test_the_split_does_not_depend_on_the_order(tmp_path: Path) -> None:
    answers = [answer(id=str(i), seed=i) for i in range(20)]
    one, other = (read(tmp_path, some, held_out=4) for some in (answers, answers[::-1]))
    assert {a.id for a in one.held_out} == {a.id for a in other.held_out}


def test_the_digest_tells_data_apart(tmp_path: Path) -> None:
    assert read(tmp_path, [answer()]).digest == read(tmp_path, [answer()]).digest
    assert read(tmp_path, [answer()]).digest != read(tmp_path, [answer(seed=1)]).digest


def test_tokens_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds token 255, but this model has ids 0 to 254"):
        read(tmp_path, [answer(answer_ids=[1, 255])])


def test_data_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    writer = DataWriter(tmp_path / "data", Manifest("other", "xyz", 255, {}))
    writer.append(answer())
    writer.close()
    with pytest.raises(ValueError, match="answers of other, whose tokenizer"):
        read_dataset([tmp_path / "data"], settings(), fingerprint="abc", token_count=255)
    found = read_dataset([tmp_path / "data"], settings(), fingerprint="xyz", token_count=255)
    assert found.train == [answer()]


def test_nothing_left_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"1 answers were read, 1 loop"):
        read(tmp_path, [answer(answer_ids=[1, 2] * 20)])


@pytest.mark.parametrize(
    "change",
    [
        {"test_steps": 0},
        {"draft_vocab": True},
        {"rate": float("nan")},
        {"decay": 1.5},
        {"epochs": 0},
        {"clip": 0},
        {"looping": -0.1},
        {"warm_up": 0.6, "cool_down": 0.6},
        {"window": 0},
        {"seed": -1},
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        TrainSettings(**change)
