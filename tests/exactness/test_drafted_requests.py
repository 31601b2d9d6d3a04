"""Drafted trees over the life of requests: turns, queues, long texts, ends. No token changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from graft.engine import Engine
from graft.exactness import compare
from graft.request import Result
from graft.sampling_params import SamplingParams
from tests.engines import check_arithmetic
from tests.exactness import drafting
from tests.exactness.cases import settings
from tests.exactness.drafting import DRAFTERS, agree, engine, plainly, tau
from tests.exactness.helpers import PROMPTS, assert_same, teach
from tests.tiny_models import EOS_ID

GREEDY = SamplingParams(max_new_tokens=24, ignore_eos=True)
LONG = [token for token in range(250) for _ in range(2)] + PROMPTS[2]  # 540 tokens


def turn(made: Engine, prompt: Sequence[int], policy: str = "graft") -> Result:
    """One turn of a chat, as far as possible on the rows of the turn before."""
    stream = made.stream(list(prompt), GREEDY, policy=policy, budget=16, reuse_prefix=True)
    for _ in stream:
        pass
    return stream.results[0]


# Queues -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_prompts_that_wait_for_a_slot(drafter: str, temperature: float) -> None:
    """Answers of different lengths, so that sequences move from slot to slot."""
    made = engine(DRAFTERS[drafter](), max_batch=2)
    prompts = [*PROMPTS, [5, 6], PROMPTS[1][:3]]
    params = settings(temperature=temperature, stop_token_ids=tuple(range(0, 250, 9)))()
    found = made.generate(prompts, params, policy="graft", budget=16)
    for row, (prompt, result) in enumerate(zip(prompts, found, strict=True)):
        assert result.token_ids == plainly(prompt, params, row)
        check_arithmetic(result, 16)
    assert len({len(r.token_ids) for r in found}) > 2
    assert max(r.batch for result in found for r in result.stats.round_records) == 2


def test_a_request_with_a_matrix_of_its_own_is_the_same_alone() -> None:
    """Not only its tokens: every tree it had."""
    made = engine(drafting.eagle3(), matrix_scope="request", thresholds=(1.5, 0, 0), budget=16)
    params = settings(ignore_eos=True)()
    together = made.generate(list(PROMPTS), params)
    for row, prompt in enumerate(PROMPTS):
        alone = made.continue_ids(prompt, params, row=row)
        assert alone.token_ids == together[row].token_ids
        ours, theirs = together[row].stats, alone.stats
        for name in ("rounds", "stage_histogram", "redirected", "proposed_draft"):
            assert getattr(ours, name) == getattr(theirs, name), name
        for name in ("proposed_retrieved", "accepted_draft", "accepted_retrieved", "empty_slots"):
            assert getattr(ours, name) == getattr(theirs, name), name
    assert sum(r.stats.accepted_retrieved for r in together) > 0


# Turns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_second_turn_is_a_fresh_run(drafter: str) -> None:
    for prompt in PROMPTS[1:]:
        fresh = turn(engine(DRAFTERS[drafter]()), prompt)
        made = engine(DRAFTERS[drafter]())
        first = turn(made, prompt[:-2])
        # The head knows these prompts' answers by heart: it must find its way back to them.
        second = turn(made, prompt)
        longer = turn(made, [*prompt, *second.token_ids, 9, 8])
        assert second.usage.cached_tokens >= len(prompt) - 4
        assert longer.usage.cached_tokens >= len(prompt) + len(second.token_ids) - 3
        assert first.token_ids == plainly(prompt[:-2], GREEDY)
        assert second.token_ids == fresh.token_ids == plainly(prompt, GREEDY)
        assert longer.token_ids == plainly([*prompt, *second.token_ids, 9, 8], GREEDY)
        assert tau([second]) >= tau([fresh]) > 2.0


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(
    "policies",
    [
        ("plain", "graft", "retrieval", "graft"),
        ("graft", "plain", "graft", "pruned"),
        ("lookup", "dense", "dense", "retrieval"),
    ],
)
def test_turns_with_different_policies(drafter: str, policies: tuple[str, ...]) -> None:
    made, prompt = engine(DRAFTERS[drafter]()), PROMPTS[1][:4]
    for policy in policies:
        found = turn(made, prompt, policy)
        assert found.token_ids == plainly(prompt, GREEDY)
        check_arithmetic(found, 0 if policy == "plain" else 16)
        prompt = [*prompt, *found.token_ids, 7]
    # Back to a known prompt: whatever was cached, the head is as good as new.
    last = turn(made, PROMPTS[1])
    assert last.token_ids == plainly(PROMPTS[1], GREEDY)
    assert tau([last]) > 2.0


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_turn_after_a_stream_that_was_closed(drafter: str) -> None:
    made = engine(DRAFTERS[drafter]())
    stream = made.stream(PROMPTS[2], GREEDY, policy="graft", budget=16)
    seen = [next(iter(stream)).token_id for _ in range(9)]
    stream.close()
    second = turn(made, [*PROMPTS[2], *seen])
    whole = plainly(PROMPTS[2], SamplingParams(max_new_tokens=33, ignore_eos=True))
    assert second.token_ids == whole[9:]
    assert second.usage.cached_tokens > 0


# Lengths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_prompt_longer_than_chunks_and_blocks(drafter: str) -> None:
    made = engine(DRAFTERS[drafter]())
    params = settings(max_new_tokens=40)
    found = compare(made, [LONG, PROMPTS[1]], params, policy="graft", budget=16, batch=2)
    assert_same(found)


LENGTHS: list[Any] = [
    ("eagle3", 200),
    *(pytest.param(d, n, marks=pytest.mark.slow) for d in DRAFTERS for n in (600, 2000)),
]


@pytest.mark.parametrize(("drafter", "count"), LENGTHS)
def test_long_answers(drafter: str, count: int) -> None:
    """Over several blocks of every cache. The head knows the beginning alone."""
    made = engine(DRAFTERS[drafter]())
    params = settings(max_new_tokens=count, ignore_eos=True)()
    found = compare(made, PROMPTS[1:2], params, policy="graft", budget=16)
    assert_same(found)
    assert found.tokens == count
    assert sum(p.accepted for p in found.prompts) > min(count // 15, 40)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_any_number_of_tokens(drafter: str) -> None:
    """The limit may fall anywhere in a block, and the last block is cut there."""
    made: Engine = engine(DRAFTERS[drafter](), thresholds=(0, 0, 0), budget=16)
    whole, trimmed = plainly(PROMPTS[1], GREEDY), set()
    for count in range(1, 15):
        params = SamplingParams(max_new_tokens=count, ignore_eos=True)
        found = made.generate(PROMPTS[1], params)
        assert found.token_ids == whole[:count]
        assert found.finish_reason == "length"
        check_arithmetic(found, 16)
        trimmed.add(found.stats.trimmed)
    assert {0, 1, 2} <= trimmed


# Ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["dense", "graft"])
@pytest.mark.parametrize("place", [1, 2, 3, 4, 5, 6])
def test_an_end_in_the_middle_of_a_block(place: int, policy: str) -> None:
    made = engine(drafting.eagle3(), thresholds=(0, 0, 0), budget=16)
    whole = plainly(PROMPTS[1], GREEDY)
    assert whole.index(whole[place]) == place, "the token is new there"
    token = SamplingParams(max_new_tokens=24, stop_token_ids=(whole[place],))
    found = made.generate(PROMPTS[1], token, policy=policy)
    assert found.token_ids == whole[: place + 1]
    assert (found.finish_reason, found.stop_reason) == ("stop", whole[place])
    check_arithmetic(found, 16)


def test_a_stop_string_in_the_middle_of_a_block() -> None:
    made = engine(drafting.eagle3(), thresholds=(0, 0, 0), budget=16)
    whole = made.generate(PROMPTS[1], GREEDY, policy="plain")
    blocks = 0
    for start in range(len(whole.text) - 2):
        stop = whole.text[start : start + 2]
        params = SamplingParams(max_new_tokens=24, ignore_eos=True, stop=(stop,))
        found = made.generate(PROMPTS[1], params)
        alone = made.generate(PROMPTS[1], params, policy="plain")
        assert (found.token_ids, found.text) == (alone.token_ids, alone.text)
        assert found.stop_reason == alone.stop_reason
        check_arithmetic(found, 16)
        blocks += found.stats.trimmed > 0
    assert blocks > 3


def test_an_end_of_sequence_that_is_drafted() -> None:
    """The target's own end, made likely after a while; the head drafts on behind it."""
    params = settings(temperature=0.0, min_new_tokens=6, logit_bias={EOS_ID: 30.0})()
    made = engine(drafting.eagle3())
    teach(made, [*plainly(PROMPTS[1], params), EOS_ID, 3, 4])
    found = made.generate(PROMPTS[1], params)
    assert found.token_ids == plainly(PROMPTS[1], params)
    assert found.token_ids[-1] == EOS_ID
    assert len(found.token_ids) == 7


def test_the_context_is_filled_to_the_last_position() -> None:
    """The last drafts reach beyond it."""
    made = engine(drafting.eagle3())
    made.target.max_context = len(PROMPTS[1]) + 20
    try:
        found = agree(made, "greedy", prompts=PROMPTS[1:2], batch=1)
    finally:
        made.target.max_context = 4096
    assert len(found[0].token_ids) == 20


def test_noise_in_the_history_is_not_read() -> None:
    """Random seeds that differ give answers that differ: nothing is remembered by mistake."""
    made = engine(drafting.eagle3())
    answers = [
        made.generate(PROMPTS[1], settings(seed=seed)(), budget=16).token_ids for seed in range(4)
    ]
    assert len({tuple(answer) for answer in answers}) == 4
    for seed, answer in enumerate(answers):
        assert answer == plainly(PROMPTS[1], settings(seed=seed)())
