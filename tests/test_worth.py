"""Worth: when a step pays, and the pace that says what it costs."""

from __future__ import annotations

import random

import pytest
import torch

from graft.worth import ALWAYS_STOP, BOUNDS, MARKS, Worth


def test_before_anything_is_known_the_pace_is_that_of_plain_decoding() -> None:
    assert Worth().pace(40.0) == pytest.approx(40.0)


def test_the_pace_converges_to_tokens_over_seconds_and_follows_a_change() -> None:
    worth = Worth()
    for tokens in (3, 1):
        for _ in range(2000):
            worth.learn_pace(tokens, 0.05)
        assert worth.pace(1.0) == pytest.approx(tokens / 0.05, rel=0.01)


def test_a_guess_stops_where_the_head_is_unsure() -> None:
    worth = Worth()
    low, high = worth.threshold(0, 0.02), worth.threshold(0, 0.2)
    assert 0 < low < high < 1
    assert worth.threshold(0, 0.0) == 0.0
    assert worth.threshold(0, 10.0) == ALWAYS_STOP


@pytest.mark.parametrize("price", [0.1, 0.3])
def test_it_learns_from_which_confidence_on_a_step_pays(price: float) -> None:
    """A drafter whose best path is accepted half as often as it says: a step pays from
    2 x price on."""
    worth, draw = Worth(), random.Random(0)
    for _ in range(20_000):
        sure = draw.random()
        gain = draw.random() < sure / 2
        worth.learn_steps((sure,), [int(gain)])
    found = worth.threshold(0, price)
    place = BOUNDS.index(found)
    assert BOUNDS[place] <= 2 * price + 0.1
    assert BOUNDS[place + 1] >= 2 * price - 0.1


def test_a_round_that_stopped_says_nothing_of_what_it_left_out() -> None:
    worth = Worth()
    before = worth.tensors()["worth.steps"].clone()
    worth.learn_steps((0.5,), [])
    assert torch.equal(worth.tensors()["worth.steps"], before)


def test_every_checkpoint_that_went_on_is_counted() -> None:
    worth = Worth()
    worth.learn_steps((0.95, 0.95, 0.95), [2, 2])
    rounds, tokens, steps = worth.tensors()["worth.steps"][:, :3, len(BOUNDS) - 1].tolist()
    assert rounds == [1, 1, 0]
    assert tokens == [2, 2, 0]
    assert steps == [2, 1, 0]


def test_steps_that_bring_nothing_are_not_taken() -> None:
    worth = Worth()
    for _ in range(200):
        worth.learn_steps((0.99,), [0])
    assert worth.threshold(0, 0.05) == ALWAYS_STOP


def test_what_a_draft_brings_is_learnt_by_promise() -> None:
    worth, draw = Worth(), random.Random(0)
    before = [worth.of_draft(p).tokens for p in (0.0, 0.3, 0.99)]
    assert before == sorted(before, reverse=True)
    for _ in range(5000):
        promise = draw.random()
        worth.learn_draft(promise, int(draw.random() < 1 - promise), 2)
    for promise in (0.05, 0.45, 0.85):
        found = worth.of_draft(promise)
        assert found.tokens == pytest.approx(1 - promise, abs=0.15)
        assert found.steps == pytest.approx(2.0)


def test_there_is_room_for_the_deepest_draft() -> None:
    worth = Worth()
    worth.learn_steps((1.0,) * MARKS, [MARKS] * MARKS)
    assert worth.threshold(MARKS - 1, 0.1) <= 1.0
