"""Training learns, and goes on bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graft.models import LoadedModel
from graft.train.answers import Answer
from graft.train.groups import make_groups
from graft.train.settings import TrainSettings
from graft.train.start import running_copy, start_new
from graft.train.teacher import Teacher
from graft.train.trainer import StepRecord, Trainer
from tests.train.making import mixed, tiny_loaded, tiny_teacher

SETTINGS = TrainSettings(
    draft_vocab=256,
    test_steps=3,
    epochs=4,
    rate=3e-3,
    group_tokens=64,
    groups_per_step=2,
    max_length=64,
    weight_decay=0.0,
    clip=1e3,
)


def make_trainer(
    folder: Path,
    answers: Sequence[Answer],
    settings: TrainSettings = SETTINGS,
    loaded: LoadedModel | None = None,
    memory: int = 0,
    **facts: Any,
) -> Trainer:
    loaded = loaded or tiny_loaded()
    start = start_new(loaded, answers, settings, None)
    head = running_copy(start, loaded.model)
    teacher: Teacher = tiny_teacher(loaded, head, memory)
    embed = loaded.model.get_input_embeddings()
    assert embed is not None
    groups = make_groups(answers, settings.group_tokens)
    return Trainer(
        head, start.weights, teacher, embed, groups, settings, facts=facts, folder=folder
    )


def test_a_head_knows_one_batch_by_heart(tmp_path: Path) -> None:
    """At every step of the test it makes the target's choice, always."""
    settings = replace(SETTINGS, epochs=150, groups_per_step=8, rate=8e-3, warm_up=0.05)
    records = list(make_trainer(tmp_path, mixed(6), settings).run())
    assert records[-1].accuracy == (1.0, 1.0, 1.0)
    assert records[0].accuracy < (0.5, 0.5, 0.5)
    assert records[-1].loss < 0.9 * records[0].loss


def strip(records: Sequence[StepRecord]) -> list[StepRecord]:
    return [replace(record, seconds=0.0) for record in records]


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, stop: int) -> None:
    whole = make_trainer(tmp_path / "whole", mixed())
    expected = strip(list(whole.run()))
    part = make_trainer(tmp_path / "part", mixed())
    found = []
    for record in part.run():
        found.append(record)
        if record.step == stop:
            break
    part.save()
    again = make_trainer(tmp_path / "part", mixed())
    assert again.done == stop
    found += list(again.run())
    assert strip(found) == expected
    assert again.weights.keys() == whole.weights.keys()
    for name, weight in whole.weights.items():
        assert torch.equal(again.weights[name], weight), name


@pytest.mark.parametrize("memory", [5000, 1 << 30])
def test_a_teacher_that_remembers_changes_nothing(tmp_path: Path, memory: int) -> None:
    """Neither where it remembers some groups, nor all."""
    expected, found = (
        make_trainer(tmp_path / str(size), mixed(), memory=size) for size in (0, memory)
    )
    assert strip(list(found.run())) == strip(list(expected.run()))
    for name, weight in expected.weights.items():
        assert torch.equal(found.weights[name], weight), name


def test_the_comparison_notices_a_lost_moment(tmp_path: Path) -> None:
    """The negative control: without AdamW's moments the run would be another."""
    whole = make_trainer(tmp_path / "whole", mixed())
    list(whole.run())
    part = make_trainer(tmp_path / "part", mixed())
    for record in part.run():
        if record.step == 4:
            break
    part.save()
    again = make_trainer(tmp_path / "part", mixed())
    for optimizer in again._optimizer._optimizers:
        optimizer.state.clear()
    list(again.run())
    assert any(not torch.equal(again.weights[n], w) for n, w in whole.weights.items())


def test_a_run_with_other_facts_is_refused(tmp_path: Path) -> None:
    first = make_trainer(tmp_path, mixed(), data="abc", rate=1)
    next(first.run())
    first.save()
    with pytest.raises(ValueError, match="data='abc', now it is 'xyz'"):
        make_trainer(tmp_path, mixed(), data="xyz", rate=1)
    assert make_trainer(tmp_path, mixed(), data="abc", rate=1).done == 1


def test_the_target_is_left_alone(tmp_path: Path) -> None:
    loaded = tiny_loaded()
    before = {n: p.clone() for n, p in loaded.model.named_parameters()}
    list(make_trainer(tmp_path, mixed(), loaded=loaded).run())
    assert all(torch.equal(before[n], p) for n, p in loaded.model.named_parameters())


def test_records_count_tokens_and_steps(tmp_path: Path) -> None:
    answers = mixed()
    records = list(make_trainer(tmp_path, answers).run())
    assert [record.step for record in records] == list(range(1, len(records) + 1))
    assert records[-1].tokens == 4 * sum(len(a.answer_ids) - 1 for a in answers)


def test_a_step_that_is_broken_off_halfway_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the weights would be moved: the checkpoint before it stays the last."""
    whole = make_trainer(tmp_path / "whole", mixed())
    list(whole.run())
    part = make_trainer(tmp_path / "part", mixed())
    steps = part.run()
    next(steps)
    part.save()

    def broken_off(rate: float) -> float:
        next(iter(part.weights.values())).add_(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(part._optimizer, "step", broken_off)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    part.save()
    again = make_trainer(tmp_path / "part", mixed())
    assert again.done == 1
    list(again.run())
    assert all(torch.equal(again.weights[n], w) for n, w in whole.weights.items())
