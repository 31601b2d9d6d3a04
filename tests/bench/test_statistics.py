"""Statistics against numbers worked out by hand, and intervals against planted truths."""

from __future__ import annotations

import math
import random

import pytest

from graft.bench.statistics import (
    Estimate,
    alone,
    draft_accept_ratio,
    draft_steps_per_token,
    hit_rate,
    interval,
    mean_latency,
    pair,
    quantiles,
    ratio,
    retrieved_accept_ratio,
    speed_up,
    tau,
    time_share,
    token_intervals,
    tokens_per_second,
    verified_rows_per_token,
    waste,
)
from tests.bench.factory import make_measurement, make_plain, synthetic


def _value(estimate: Estimate) -> float:
    assert estimate.value is not None
    return estimate.value


def _covers(estimate: Estimate, truth: float) -> bool:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low <= truth <= estimate.high


class TestByHand:
    """Two answers. First: 11 tokens, 0.5 s, 5 rounds of 2. Second: 5 tokens, 0.1 s, one round of 5
    (of which one was trimmed), in a tree of 8 nodes."""

    answers = (
        make_measurement(),
        make_measurement(
            id="maths/1",
            completion_tokens=5,
            decode_seconds=0.1,
            latency_seconds=0.2,
            draft_steps=3,
            proposed_draft=6,
            proposed_retrieved=2,
            accepted_draft=4,
            accepted_retrieved=0,
            lookups=10,
            hits=0,
            trimmed=1,
            tau=5.0,
            rounds=1,
            seconds={"draft": 0.1, "verify": 0.4},
            round_tokens=[5],
            round_stages=["full"],
            round_draft=[6],
            round_retrieved=[2],
        ),
    )

    @pytest.mark.parametrize(
        ("measure", "expected"),
        [
            (tokens_per_second, (10 + 4) / (0.5 + 0.1)),
            (tau, (10 + 5) / (5 + 1)),  # not the mean of 2 and 5
            (mean_latency, (0.6 + 0.2) / 2),
            (draft_steps_per_token, (5 + 3) / 15),
            (verified_rows_per_token, (20 + 5 + 8 + 1) / 15),
            (draft_accept_ratio, (4 + 4) / (10 + 6)),
            (retrieved_accept_ratio, (1 + 0) / (10 + 2)),
            (waste, 1 - 9 / 28),
            (hit_rate, 30 / 50),
            (time_share("draft"), 0.2 / 1.0),
            (time_share("graft"), 0.05 / 1.0),
        ],
    )
    def test_a_measure_is_a_ratio_of_sums(self, measure, expected) -> None:  # type: ignore[no-untyped-def]
        found = interval(pair(self.answers), alone(measure))
        assert _value(found) == pytest.approx(expected)

    def test_nothing_accepted_is_tau_one(self) -> None:
        assert _value(interval(pair([make_plain()]), alone(tau))) == 1.0

    def test_speed_up_is_over_the_same_prompts(self) -> None:
        plain = [make_plain(), make_plain(id="maths/1", completion_tokens=9, decode_seconds=2.0)]
        # (14 / 0.6) / ((10 + 8) / 3)
        assert _value(interval(pair(self.answers, plain), speed_up)) == pytest.approx(14 / 0.6 / 6)

    def test_a_measure_over_itself_is_one_with_no_width(self) -> None:
        three = (*self.answers, make_measurement(id="maths/2"))
        found = interval(pair(three, three), speed_up)
        assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)

    def test_the_mean_over_tasks_counts_each_task_the_same(self) -> None:
        fast = [make_measurement(task="code", id=f"code/{i}", decode_seconds=0.25) for i in (0, 1)]
        slow = [make_measurement(id=f"maths/{i}") for i in range(8)]
        plain = [make_plain(task=m.task, id=m.id) for m in (*fast, *slow)]
        pairs = pair([*fast, *slow], plain)
        assert _value(interval(pairs, speed_up, macro=True)) == pytest.approx((4 + 2) / 2)
        assert _value(interval(pairs, speed_up)) == pytest.approx(10 / (2 * 0.25 + 8 * 0.5))
        assert _value(interval(pairs.of_task("code"), speed_up)) == pytest.approx(4)

    def test_the_bootstrap_of_three_items_reaches_from_the_slowest_to_the_fastest(self) -> None:
        # One of 27 draws is three times the same item: more than is cut off on a side.
        seconds = (0.5, 0.25, 0.4)
        plain = [make_plain(id=str(i)) for i in range(3)]
        own = [make_measurement(id=str(i), decode_seconds=s) for i, s in enumerate(seconds)]
        found = interval(pair(own, plain), speed_up)
        assert (found.low, found.value, found.high) == pytest.approx((2, 30 / 1.15 / 10, 4))


class TestPairs:
    def test_prompts_without_a_partner_are_left_out_and_counted(self) -> None:
        own = [make_measurement(id=f"maths/{i}") for i in (0, 1, 2)]
        plain = [make_plain(id=f"maths/{i}") for i in (1, 2, 3, 4)]
        pairs = pair(own, plain)
        assert (pairs.answers, pairs.items, pairs.only_own, pairs.only_base) == (2, 2, 1, 2)

    def test_order_does_not_matter(self) -> None:
        plain, own = synthetic(speed_up=1.3, items=8)
        one = interval(pair(own, plain), speed_up)
        assert interval(pair(own, plain[::-1]), speed_up) == one

    def test_turns_and_seeds_of_an_item_are_one_item(self) -> None:
        own = [make_measurement(turn=t, seed=s) for t in (0, 1) for s in (0, 1)]
        pairs = pair(own)
        assert (pairs.items, pairs.answers) == (1, 4)

    def test_one_turn_is_not_paired_with_another(self) -> None:
        assert pair([make_measurement(turn=0)], [make_plain(turn=1)]).items == 0

    def test_two_answers_to_one_prompt_are_refused(self) -> None:
        with pytest.raises(ValueError, match="give the answers of one case"):
            pair([make_measurement(), make_measurement(budget=8)])

    def test_turns_that_move_together_widen_the_interval(self) -> None:
        rng = random.Random(1)
        effects = [math.exp(rng.gauss(0, 0.2)) for _ in range(40)]
        turns = [(i, t) for i in range(40) for t in range(5)]
        together = [
            make_measurement(id=str(i), turn=t, decode_seconds=effects[i]) for i, t in turns
        ]
        apart = [make_measurement(id=f"{i} {t}", decode_seconds=effects[i]) for i, t in turns]
        widths = []
        for own in (together, apart):
            found = interval(pair(own), alone(tokens_per_second))
            assert found.low is not None
            assert found.high is not None
            widths.append(found.high - found.low)
        assert widths[0] > 1.8 * widths[1]  # the square root of 5 is 2.2


class TestNoNumber:
    def test_no_prompts(self) -> None:
        assert interval(pair([]), alone(tau)) == Estimate(None, None, None, 0)
        assert interval(pair([]), alone(tau), macro=True) == Estimate(None, None, None, 0)

    def test_nothing_to_divide_by(self) -> None:
        plain = [make_plain(id=str(i)) for i in range(3)]
        assert interval(pair(plain), alone(draft_accept_ratio)) == Estimate(None, None, None, 3)
        still = [make_measurement(id=str(i), decode_seconds=0.0) for i in range(3)]
        assert interval(pair(still), alone(tokens_per_second)).value is None

    @pytest.mark.parametrize("prompts", [1, 2, 3])
    def test_fewer_than_three_prompts_have_no_interval(self, prompts: int) -> None:
        own = [make_measurement(id=str(i)) for i in range(prompts)]
        found = interval(pair(own), alone(tau))
        assert (found.value, found.low is None) == (2.0, prompts < 3)

    def test_nor_has_a_mean_over_tasks_with_one_of_two_prompts(self) -> None:
        own = [make_measurement(id=str(i)) for i in range(5)]
        own += [make_measurement(task="code", id=str(i)) for i in range(2)]
        assert interval(pair(own), alone(tau), macro=True).low is None
        assert interval(pair(own), alone(tau)).low is not None

    def test_nor_has_a_number_that_few_prompts_carry(self) -> None:
        own = [make_plain(id="maths/1"), make_plain(id="maths/2"), make_measurement()]
        found = interval(pair(own), alone(draft_accept_ratio))
        assert found == Estimate(0.4, None, None, 3)


class TestIntervals:
    def test_the_same_seed_gives_the_same_interval(self) -> None:
        plain, own = synthetic(speed_up=1.2, items=10)
        pairs = pair(own, plain)
        assert interval(pairs, speed_up, seed=3) == interval(pairs, speed_up, seed=3)
        assert interval(pairs, speed_up, seed=3) != interval(pairs, speed_up, seed=4)

    def test_five_per_cent_are_found_and_nothing_is_not(self) -> None:
        def found(factor: float) -> int:
            count = 0
            for seed in range(60):
                plain, own = synthetic(speed_up=factor, items=30, seed=seed)
                estimate = interval(pair(own, plain), speed_up, resamples=500)
                assert estimate.low is not None
                count += estimate.low > 1
            return count

        assert found(1.05) >= 57
        assert found(1.0) <= 5  # one side: 2.5 % of 60 are expected

    @pytest.mark.parametrize("macro", [False, True])
    def test_the_interval_covers_the_truth_as_often_as_it_says(self, macro: bool) -> None:
        # Times of a prompt are independent of its effect, so the truth is the ratio of mean times;
        # the mean of a lognormal is exp(variance / 2).
        runs, hits, wrong = 200, 0, 0
        for seed in range(runs):
            plain, own = synthetic(speed_up=1.05, items=30, seed=seed, of_answer=0.05)
            estimate = interval(pair(own, plain), speed_up, macro=macro, resamples=400)
            truth = 1.05 * math.exp(-(0.06**2) / 2)
            hits += _covers(estimate, truth)
            wrong += _covers(estimate, truth * 1.05)
        assert 0.89 <= hits / runs <= 0.99
        assert wrong / runs < 0.2

    def test_ratios_of_anything(self) -> None:
        plain, own = synthetic(speed_up=2, items=10)
        found = interval(pair(own, plain), ratio(mean_latency))
        assert 0.5 < _value(found) < 0.6


class TestQuantiles:
    def test_by_hand(self) -> None:
        assert quantiles([4.0, 1.0, 3.0, 2.0], (0.5, 0.99, 1)) == pytest.approx([2.5, 3.97, 4])

    def test_none(self) -> None:
        assert quantiles([], (0.5, 0.99)) == [None, None]

    def test_answers_of_one_token_have_no_time_between_tokens(self) -> None:
        answers = [make_measurement(), make_measurement(completion_tokens=1)]
        assert token_intervals(answers) == pytest.approx([0.05])
