"""A choice is a function of its row's own inputs alone, and impossible ones are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graft.sampling import NO_TOKEN, Sampler, SampleRequest, SamplingParams, token_logprobs
from tests.sampling_cases import (
    SETTINGS,
    VOCAB,
    batch,
    generator,
    request,
    row_of,
    sampler,
    single_thread,
)

one_thread = pytest.fixture(autouse=True)(single_thread)


# --- a row alone ------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(SETTINGS), min_size=1, max_size=6), st.integers(0, 10**6))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_a_row_does_not_depend_on_its_batch(rows: list[dict[str, Any]], seed: int) -> None:
    inputs = batch(len(rows), seed)
    together = sampler(*rows)
    scores, chosen = together.scores(*inputs), together.choose(*inputs)
    assert torch.equal(chosen, scores.argmax(dim=1))
    for row, each in enumerate(rows):
        alone = Sampler([request(row, **each)], VOCAB, VOCAB, "cpu")
        assert torch.equal(alone.scores(*row_of(inputs, row)), scores[row : row + 1])
        assert torch.equal(alone.choose(*row_of(inputs, row)), chosen[row : row + 1])


@pytest.mark.parametrize("vocab", [VOCAB, 6000])
def test_choosing_among_few_is_choosing_among_all(vocab: int) -> None:
    rows = [row for row in SETTINGS if row.keys() & {"top_k", "top_p", "min_p"}]
    few, all_ = sampler(*rows, vocab=vocab), sampler(*rows, vocab=vocab)
    all_._warpers._may_ask = False
    for seed in range(5):
        logits, *rest = batch(len(rows), seed, vocab)
        for levels in (1.0, 1000.0):  # with many equals, and without
            rounded = (logits * levels).round() / levels
            assert torch.equal(few.choose(rounded, *rest), all_.choose(rounded, *rest))
            assert torch.equal(few.choose(rounded, *rest), few.scores(rounded, *rest).argmax(1))


@pytest.mark.gpu
def test_a_gpu_chooses_the_same() -> None:
    requests = [request(row, **each) for row, each in enumerate(SETTINGS)]
    here, there = (Sampler(requests, VOCAB, 300, device) for device in ("cpu", "cuda"))
    for seed in range(20):
        inputs = batch(len(SETTINGS), seed)
        chosen = there.choose(*[each.cuda() for each in inputs]).cpu()
        clear = here.margin(*inputs) > 1e-3
        assert torch.equal(chosen[clear], here.choose(*inputs)[clear])
        assert clear.float().mean() > 0.8


def test_equal_scores_go_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "graft.noise.GumbelNoise.bits",
        lambda self, position, tokens=None: torch.zeros(
            len(position), VOCAB if tokens is None else tokens.shape[1], dtype=torch.int32
        ),
    )
    rows = ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2}, {"top_k": 2})
    for row in (*rows, {"temperature": 1.0, "top_p": 0.6}, {"repetition_penalty": 1.1}):
        for seed in range(5):
            logits, history, length, alive = batch(1, seed)
            history[:] = 0
            best = torch.randperm(VOCAB - 1, generator=generator(seed))[:3] + 1
            logits[0, best] = 40.0
            assert sampler(row).choose(logits, history, length, alive).item() == best.min()


def test_padding_is_never_chosen() -> None:
    for row in SETTINGS:
        logits, *rest = batch(1, 1)
        logits[:, 300:] = 100.0
        one = sampler(row, count=300)
        assert one.choose(logits, *rest).item() < 300
        assert one.scores(logits, *rest)[:, 300:].isneginf().all() or one._only_argmax


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_float_logits(dtype: torch.dtype) -> None:
    logits, *rest = batch(len(SETTINGS), 4)
    mixed = sampler(*SETTINGS)
    chosen = mixed.choose(logits.to(dtype), *rest)
    assert torch.equal(chosen, mixed.choose(logits.to(dtype).float(), *rest))


def test_rows_that_are_over_do_not_crash_or_call() -> None:
    def never(ids: Tensor, scores: Tensor) -> Tensor:
        raise AssertionError("called for a row that is over")

    rows = [*SETTINGS, {"logits_processors": (never,), "temperature": 1.0}]
    logits, history, length, alive = batch(len(rows), 4)
    mixed = sampler(*rows)
    alive[1:] = False
    expected = sampler(rows[0]).choose(*row_of((logits, history, length, alive), 0))
    logits[1:] = float("nan")
    history[1:] = -7
    length[1:] = -(10**9)
    chosen = mixed.choose(logits, history, length, alive)
    assert chosen[0] == expected
    few = Sampler([request(temperature=1.0, top_k=3)] * len(rows), VOCAB, 300, "cpu")
    for tokens, count in ((chosen, VOCAB), (few.choose(logits, history, length, alive), 300)):
        assert ((tokens >= 0) & (tokens < count)).all()


# --- the batch --------------------------------------------------------------------------------


def test_only_users_processors_bind_the_walk_to_the_host() -> None:
    assert not sampler({}, {"repetition_penalty": 1.1}).host_bound
    assert sampler({}, {"logits_processors": (lambda ids, scores: scores,)}).host_bound


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"logit_bias": {300: 1.0}}, "logit_bias: 300 is not supported; supported: ids 0 to 299"),
        ({"banned_tokens": (1, 300)}, "banned_tokens: 300"),
        ({"stop_token_ids": (301,)}, "stop_token_ids: 301"),
        ({"banned_tokens": range(300)}, "banned_tokens.* forbid all 300 tokens"),
        ({"banned_tokens": set(range(300)) - {0, 4}, "min_new_tokens": 1}, "forbid all 300"),
    ],
)
def test_what_the_vocabulary_refuses(row: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sampler(row, count=300)


def test_odd_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="token_count"):
        Sampler([request()], 300, 301, "cpu")
    with pytest.raises(ValueError, match="prompt_length"):
        Sampler([SampleRequest(SamplingParams(), 0, 0, -1)], 300, 300, "cpu")


def test_a_row_left_without_tokens_is_told_so() -> None:
    nothing = {"logits_processors": (lambda ids, scores: scores - float("inf"),)}
    inputs = batch(4)
    inputs[3][2] = False
    mixed = sampler({}, nothing | {"temperature": 1.0}, nothing, nothing | {"top_k": 3})
    chosen = mixed.choose(*inputs)
    assert (chosen == NO_TOKEN).tolist() == [False, True, False, True]
    with pytest.raises(ValueError, match=r"batch row 1: no token can be chosen.*logits_processors"):
        mixed.check(chosen.tolist())
    mixed.check([1, 2, 3, 4])


@pytest.mark.parametrize("row", [{"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}, {"top_k": VOCAB}])
def test_logits_that_are_no_numbers_are_told(row: dict[str, Any]) -> None:
    logits, *rest = batch(2)
    logits[0, 17] = float("nan")
    one = sampler(row | {"temperature": 1.0}, {"temperature": 1.0, "top_k": 4})
    chosen = one.choose(logits, *rest).tolist()
    assert chosen[0] == NO_TOKEN != chosen[1]
    with pytest.raises(ValueError, match="the logits themselves are at fault"):
        one.check(chosen)


def test_every_token_banned_by_the_history() -> None:
    for row in ({"temperature": 1.0, "top_p": 0.5}, {"temperature": 1.0}, {}):
        one = sampler(row | {"no_repeat_ngram_size": 1}, vocab=5)
        history = torch.arange(5)[None]
        inputs = (torch.randn(1, 5), history, torch.tensor([5]), torch.tensor([True]))
        assert one.choose(*inputs).item() == NO_TOKEN
        with pytest.raises(ValueError, match="no_repeat_ngram_size=1"):
            one.check([NO_TOKEN])


# --- log-probabilities ------------------------------------------------------------------------


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_token_logprobs_are_those_of_the_raw_logits(top: int) -> None:
    logits = torch.randn(6, 50, generator=generator(9)).bfloat16()
    tokens = torch.randint(0, 40, (6,), generator=generator(9))
    chosen, ids, values = token_logprobs(logits, tokens, top, token_count=40)
    law = logits[:, :40].float().log_softmax(dim=1)
    torch.testing.assert_close(chosen, law.gather(1, tokens[:, None])[:, 0])
    assert ids.shape == values.shape == (6, top)
    torch.testing.assert_close(values, law.topk(top, dim=1).values)
    torch.testing.assert_close(values, law.gather(1, ids))
