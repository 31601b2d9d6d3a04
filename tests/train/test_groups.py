"""Groups and steps: every answer once per epoch, within the room, in an order that repeats."""

from __future__ import annotations

from itertools import chain

import pytest

from graft.train.groups import collate, make_groups, padding, steps_of, total_steps
from graft.train.world import World
from tests.train.making import answer, mixed


@pytest.mark.parametrize("tokens", [1, 16, 64, 1000])
def test_all_answers_are_in_one_group_each(tokens: int) -> None:
    answers = mixed(40)
    groups = make_groups(answers, tokens)
    assert sorted(a.key for a in chain(*groups)) == sorted(a.key for a in answers)
    for group in groups:
        assert len(group) == 1 or len(group) * max(a.length for a in group) <= tokens


def test_groups_do_not_depend_on_the_order_of_the_answers() -> None:
    answers = mixed(20)
    assert make_groups(answers, 64) == make_groups(answers[::-1], 64)


def test_padding_is_the_share_that_is_no_text() -> None:
    groups = [[answer(5, 5), answer(2, 3)], [answer(4, 4)]]
    assert padding(groups) == pytest.approx(1 - 23 / 28)


def test_collate_puts_texts_side_by_side() -> None:
    first, second = answer(3, 4), answer(2, 2)
    group = collate([first, second])
    assert group.tokens.tolist() == [
        first.prompt_ids + first.answer_ids,
        second.prompt_ids + second.answer_ids + [0, 0, 0],
    ]
    assert group.prompts.tolist() == [3, 2]
    assert group.answers.tolist() == [4, 2]


@pytest.mark.parametrize(("count", "per_step"), [(1, 1), (7, 3), (9, 3), (2, 5)])
def test_an_epoch_takes_every_group_once(count: int, per_step: int) -> None:
    steps = list(steps_of(count, per_step, 2, seed=0))
    half = len(steps) // 2
    assert len(steps) == total_steps(count, per_step, 2)
    for epoch in (steps[:half], steps[half:]):
        assert sorted(chain(*epoch)) == list(range(count))


def test_epochs_differ_and_seeds_repeat() -> None:
    steps = list(steps_of(50, 5, 2, seed=0))
    assert steps[:10] != steps[10:]
    assert steps == list(steps_of(50, 5, 2, seed=0)) != list(steps_of(50, 5, 2, seed=1))


@pytest.mark.parametrize("size", [2, 3])
def test_a_process_meets_the_same_groups_in_every_epoch(size: int) -> None:
    """So that it finds in memory what it heard of them before."""
    steps = list(steps_of(50, 6, 3, seed=0))
    for rank in range(size):
        world = World(rank, size)
        epochs = [steps[start : start + 9] for start in (0, 9, 18)]
        met = [sorted(chain(*(world.share(step) for step in epoch))) for epoch in epochs]
        assert met[0] == met[1] == met[2]
        assert len(met[0]) == pytest.approx(50 / size, abs=6)


def test_part_of_an_epoch() -> None:
    assert len(list(steps_of(50, 5, 1.5, seed=0))) == 15
    assert len(list(steps_of(50, 5, 0.01, seed=0))) == 1
