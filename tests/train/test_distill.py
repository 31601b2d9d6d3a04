"""Self-distillation: the target's own answers, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from graft.bench.item import Item
from graft.engine import Engine
from graft.sampling_params import SamplingParams
from graft.train.data_folder import DataWriter, Manifest, read_answers
from graft.train.distill import DistillSettings, distill
from tests.tiny_files import save_folder

SETTINGS = DistillSettings(max_new_tokens=12, sampled=0.5, temperature=0.9)
ITEMS = [Item("chat", str(i), (f"{'words ' * (i % 4)}number {i}",)) for i in range(9)]
ITEMS.append(Item("chat", "talk", ("Hello", "And then?", "Go on")))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    from graft import load

    folder = tmp_path_factory.mktemp("model")
    save_folder(folder, max_position_embeddings=200)
    return load(folder, policy="plain", max_batch=4)


def answers_of(engine: Engine, folder: Path, stop: int | None = None) -> dict[object, object]:
    writer = DataWriter(folder, Manifest("tiny", "abc", engine.token_count, {}))
    for told in distill(engine, ITEMS, writer, SETTINGS):
        if told.done == stop:
            break
    writer.close()
    return {a.key: a for a in read_answers(folder)}


def test_answers_are_those_of_plain_decoding(engine: Engine, tmp_path: Path) -> None:
    writer = DataWriter(tmp_path, Manifest("tiny", "abc", engine.token_count, {}))
    told = list(distill(engine, ITEMS, writer, SETTINGS))
    assert (told[-1].done, told[-1].total, told[-1].left_out) == (12, 12, 0)
    answers = [one.answer for one in told if one.answer is not None]
    greedy = [a for a in answers if a.temperature == 0]
    assert 0 < len(greedy) < 12
    for one in greedy:
        params = SamplingParams(max_new_tokens=12)
        assert engine.generate(one.prompt_ids, params).token_ids == one.answer_ids


def test_later_turns_hold_the_answers_before(engine: Engine, tmp_path: Path) -> None:
    found = answers_of(engine, tmp_path)
    first, second = found["chat", "talk", 0], found["chat", "talk", 1]
    said = engine.tokenizer.decode(first.answer_ids, skip_special_tokens=True)  # type: ignore[attr-defined]
    asked = engine.tokenizer.decode(second.prompt_ids)  # type: ignore[attr-defined]
    assert asked == f"<user>Hello<assistant>{said}<user>And then?"


@pytest.mark.parametrize("stop", [1, 5, 11])
def test_a_broken_off_run_gives_the_same_answers(engine: Engine, tmp_path: Path, stop: int) -> None:
    whole = answers_of(engine, tmp_path / "whole")
    assert len(answers_of(engine, tmp_path / "part", stop)) == stop
    assert answers_of(engine, tmp_path / "part") == whole


def test_prompts_without_room_are_left_out_and_counted(engine: Engine, tmp_path: Path) -> None:
    items = [*ITEMS[:2], Item("chat", "long", ("word " * 60,))]
    writer = DataWriter(tmp_path, Manifest("tiny", "abc", engine.token_count, {}))
    told = list(distill(engine, items, writer, SETTINGS))
    assert (told[-1].done, told[-1].left_out) == (2, 1)


@pytest.mark.parametrize("change", [{"max_new_tokens": 1}, {"sampled": 2}, {"temperature": 0}])
def test_settings_out_of_range_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        DistillSettings(**change)  # type: ignore[arg-type]
