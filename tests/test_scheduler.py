"""Requests that come and go while others decode say what they say alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st

from graft.engine import Engine
from graft.request import Request, StreamToken
from graft.scheduler import Scheduler
from graft.settings import EngineSettings
from tests.engines import small, tiny_engine

PROMPTS = [[3, 4, 5], [7], [1, 2, 3, 4, 5, 6, 7, 8], [9, 9], [2, 6], [5, 4, 3]]


def alone(prompt: list[int], count: int, temperature: float = 0.0) -> list[int]:
    return (
        small()
        .generate(prompt, max_new_tokens=count, temperature=temperature, seed=5, policy="plain")
        .token_ids
    )


def engine(max_batch: int = 3) -> Engine:
    return small(settings=EngineSettings(max_batch=max_batch, budget=4, k=8))


def finish(scheduler: Scheduler) -> list[StreamToken]:
    out = []
    while scheduler.busy:
        out += scheduler.step()
    return out


def test_requests_that_come_while_others_run() -> None:
    made = engine()
    with made.schedule() as scheduler:
        first = scheduler.add(PROMPTS[0], max_new_tokens=30)
        tokens = [*scheduler.step(), *scheduler.step()]
        second = scheduler.add(PROMPTS[1], max_new_tokens=12)
        assert scheduler.waiting == [second]
        tokens += scheduler.step()
        assert scheduler.running == [first, second]
        tokens += finish(scheduler)
        assert scheduler.step() == []
    for request, prompt, count in ((first, PROMPTS[0], 30), (second, PROMPTS[1], 12)):
        wanted = alone(prompt, count)
        assert request.result().token_ids == wanted
        assert [t.token_id for t in tokens if t.request == request.index] == wanted


def test_more_than_fit_wait_their_turn() -> None:
    with engine(2).schedule() as scheduler:
        requests = [scheduler.add(p, max_new_tokens=9) for p in PROMPTS]
        most = 0
        while scheduler.busy:
            scheduler.step()
            most = max(most, len(scheduler.running))
    assert most == 2
    for request, prompt in zip(requests, PROMPTS, strict=True):
        assert request.result().token_ids == alone(prompt, 9)


@pytest.mark.parametrize("policy", ["plain", "retrieval", "graft+"])
def test_a_cancelled_request_keeps_what_it_has_and_others_go_on(policy: str) -> None:
    with engine().schedule(policy=policy) as scheduler:
        requests = [scheduler.add(p, max_new_tokens=40) for p in PROMPTS[:4]]
        for _ in range(6):
            scheduler.step()
        assert scheduler.cancel(requests[0])  # another one takes its slot
        assert scheduler.cancel(requests[3])  # still waiting
        assert not scheduler.cancel(requests[0])
        assert requests[3] not in scheduler.waiting
        late = scheduler.add(PROMPTS[4], max_new_tokens=20)
        finish(scheduler)
        assert not scheduler.cancel(late)
    cut = requests[0].result()
    assert cut.finish_reason == "cancelled"
    assert 0 < len(cut.token_ids) < 40
    assert cut.token_ids == alone(PROMPTS[0], 40)[: len(cut.token_ids)]
    empty = requests[3].result()
    assert (empty.finish_reason, empty.token_ids, empty.text) == ("cancelled", [], "")
    for request, prompt, count in (
        (requests[1], PROMPTS[1], 40),
        (requests[2], PROMPTS[2], 40),
        (late, PROMPTS[4], 20),
    ):
        assert request.result().token_ids == alone(prompt, count)


@checked(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["add", "step", "step", "cancel"]), st.integers(0, 5))))
def test_any_order_of_adding_stepping_and_cancelling(todo: list[tuple[str, int]]) -> None:
    made: list[tuple[Request, list[int]]] = []
    with engine(2).schedule() as scheduler:
        for what, n in todo:
            if what == "add":
                request = scheduler.add(PROMPTS[n], max_new_tokens=5 + n, temperature=0.8, seed=5)
                made.append((request, alone(PROMPTS[n], 5 + n, 0.8)))
            elif what == "cancel" and made:
                scheduler.cancel(made[n % len(made)][0])
            else:
                scheduler.step()
        finish(scheduler)
    for request, wanted in made:
        found = request.result()
        assert found.token_ids == wanted[: len(found.token_ids)]
        assert found.finish_reason == "cancelled" or found.token_ids == wanted


def test_text_and_settings_are_those_of_a_call() -> None:
    made, other = tiny_engine(), tiny_engine()
    with made.schedule() as scheduler:
        requests = [
            scheduler.add("hello", max_new_tokens=8, raw=True),
            scheduler.add("hello", max_new_tokens=8, temperature=1.0, seed=3, raw=True),
        ]
        finish(scheduler)
        with pytest.raises(ValueError, match="temperature"):
            scheduler.add("hello", temperature=-1.0)
        with pytest.raises(ValueError, match=r"graft\.load"):
            scheduler.add("hello", budget=3)
    assert requests[0].result().text == other.generate("hello", max_new_tokens=8, raw=True).text
    sampled = other.generate("hello", max_new_tokens=8, temperature=1.0, seed=3, raw=True)
    assert requests[1].result().token_ids == sampled.token_ids


def test_the_engine_is_the_schedulers_own() -> None:
    made = engine()
    with made.schedule() as scheduler:
        scheduler.add(PROMPTS[0], max_new_tokens=9)
        scheduler.step()
        with pytest.raises(RuntimeError, match="another generation"):
            made.generate(PROMPTS[1])
    assert made.generate(PROMPTS[1], max_new_tokens=9).token_ids == alone(PROMPTS[1], 9)


def test_a_long_prompt_grows_the_cache() -> None:
    made = tiny_engine()
    with made.schedule() as scheduler:
        short = scheduler.add([1] * 4, max_new_tokens=50)
        scheduler.step()
        long = scheduler.add(list(range(1, 101)), max_new_tokens=50)
        finish(scheduler)
    for request, prompt in ((short, [1] * 4), (long, list(range(1, 101)))):
        plain = tiny_engine().generate(prompt, max_new_tokens=50, policy="plain")
        assert request.result().token_ids == plain.token_ids
