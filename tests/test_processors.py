"""The processors before the temperature, against Transformers' own and against plain loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from graft.processors import Processors
from tests.sampling_cases import PROMPT, SETTINGS, VOCAB, batch, request, row_of

NEVER = float("-inf")


def processed(inputs: tuple[Tensor, ...], *rows: dict[str, Any], count: int = VOCAB) -> Tensor:
    requests = [request(row, **each) for row, each in enumerate(rows)]
    return Processors(requests, VOCAB, count, torch.device("cpu"))(*inputs)


def known(inputs: tuple[Tensor, ...], row: int) -> Tensor:
    """[1, n]: the row's tokens, without the rubbish."""
    return inputs[1][row : row + 1, : inputs[2][row]]


def theirs(inputs: tuple[Tensor, ...], processor: Any) -> Tensor:
    logits = inputs[0]
    return torch.cat(
        [processor(known(inputs, row), logits[row : row + 1]) for row in range(len(logits))]
    )


@pytest.mark.parametrize(
    ("name", "value", "processor"),
    [
        ("repetition_penalty", 1.7, RepetitionPenaltyLogitsProcessor(1.7)),
        ("repetition_penalty", 0.6, RepetitionPenaltyLogitsProcessor(0.6)),
        ("no_repeat_ngram_size", 1, NoRepeatNGramLogitsProcessor(1)),
        ("no_repeat_ngram_size", 2, NoRepeatNGramLogitsProcessor(2)),
        ("no_repeat_ngram_size", 3, NoRepeatNGramLogitsProcessor(3)),
        ("no_repeat_ngram_size", 9, NoRepeatNGramLogitsProcessor(9)),
        ("min_new_tokens", 3, MinNewTokensLengthLogitsProcessor(PROMPT, 3, [0, 4])),
    ],
)
def test_as_in_transformers(name: str, value: Any, processor: Any) -> None:
    changed = 0
    for seed in range(25):
        inputs = batch(4, seed, width=14)
        inputs[1][inputs[1] < 10**12] %= 3  # few tokens, so that n-grams repeat
        expected = theirs(inputs, processor)
        found = processed(inputs, *[{name: value}] * 4)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        changed += int((expected != inputs[0]).any())
    assert changed > 0 or value == 9  # the comparison was about something


def test_a_long_ngram_that_does_repeat_is_banned() -> None:
    cycle = torch.arange(10).repeat(1, 3)
    inputs = (torch.zeros(1, VOCAB), cycle, torch.tensor([25]), torch.tensor([True]))
    banned = processed(inputs, {"no_repeat_ngram_size": 9}).isinf().nonzero()
    assert banned.tolist() == [[0, 5]]


def test_order_is_that_of_transformers() -> None:
    inputs = batch(1, 3)
    row = {"repetition_penalty": 2.0, "frequency_penalty": 0.5, "logit_bias": {5: 1.0}}
    row |= {"no_repeat_ngram_size": 2, "banned_tokens": (7,), "min_new_tokens": 200}
    row["logits_processors"] = (lambda ids, scores: scores * 3, lambda ids, scores: scores + 1)
    ids = known(inputs, 0)
    scores = RepetitionPenaltyLogitsProcessor(2.0)(ids, inputs[0])
    scores = scores - 0.5 * torch.bincount(ids[0, PROMPT:], minlength=VOCAB)
    scores = NoRepeatNGramLogitsProcessor(2)(ids, scores)
    scores[0, 5] += 1.0
    scores[0, [7, 0, 4]] = NEVER
    torch.testing.assert_close(processed(inputs, row), scores * 3 + 1)


@given(st.integers(0, 10**6), st.floats(-2, 2), st.floats(-2, 2))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_count_penalties_see_the_output_alone(seed: int, frequency: float, presence: float) -> None:
    inputs = batch(3, seed)
    row = {"frequency_penalty": frequency, "presence_penalty": presence}
    expected = inputs[0].clone()
    for index in range(3):
        for token in known(inputs, index)[0, PROMPT:].unique():
            count = int((known(inputs, index)[0, PROMPT:] == token).sum())
            expected[index, token] -= count * frequency + presence
    torch.testing.assert_close(processed(inputs, row, row, row), expected)


def test_bias_and_bans() -> None:
    inputs = batch(2)
    found = processed(inputs, {"logit_bias": {3: 1.5, 8: -2.0}}, {"banned_tokens": [3, 5, 5]})
    expected = inputs[0].clone()
    expected[0, 3] += 1.5
    expected[0, 8] -= 2.0
    expected[1, [3, 5]] = NEVER
    assert torch.equal(found, expected)


def test_end_ids_come_back_at_the_minimum_length() -> None:
    logits, history, _, alive = batch(3)
    inputs = (logits, history, torch.tensor([PROMPT, PROMPT + 1, PROMPT + 2]), alive)
    row = {"min_new_tokens": 2}
    assert processed(inputs, row, row, row)[:, [0, 4]].isinf().all(dim=1).tolist() == [1, 1, 0]


def test_padding_is_never_left_open() -> None:
    inputs = batch(2)
    inputs[0][:, 300:] = float("nan")
    raises = {"logits_processors": (lambda ids, scores: torch.zeros_like(scores),)}
    found = processed(inputs, {}, raises, count=300)
    assert found[:, 300:].isinf().all()
    assert found[:, :300].isfinite().all()


@given(st.lists(st.sampled_from(SETTINGS), min_size=2, max_size=5), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_row_does_not_depend_on_its_batch(rows: list[dict[str, Any]], seed: int) -> None:
    inputs = batch(len(rows), seed)
    together = processed(inputs, *rows)
    for row, each in enumerate(rows):
        assert torch.equal(together[row : row + 1], processed(row_of(inputs, row), each))


def test_rubbish_beyond_the_length_does_not_matter() -> None:
    inputs = batch(len(SETTINGS), 5)
    rows = [dict(each) for each in SETTINGS]
    before = processed(inputs, *rows)
    beyond = inputs[1] == 10**12
    for rubbish in (-1, 3, VOCAB):
        inputs[1][beyond] = rubbish
        assert torch.equal(processed(inputs, *rows), before)
    inputs[1][:, 0] = 19 - inputs[1][:, 0]  # control: what lies before does matter
    assert not torch.equal(processed(inputs, *rows), before)


def test_users_processors_run_once_per_living_row_in_order() -> None:
    calls: list[tuple[str, list[int]]] = []

    def record(name: str) -> Any:
        def processor(ids: Tensor, scores: Tensor) -> Tensor:
            calls.append((name, ids[0].tolist()))
            assert scores.shape == (1, VOCAB)
            ids.fill_(1)  # a rude one: neither the history nor the logits may suffer
            return scores.mul_(2.0)

        return processor

    logits, history, length, alive = inputs = batch(3, 2)
    alive[1] = False
    kept = [each.clone() for each in inputs]
    rows = [{"logits_processors": (record(f"{row}a"), record(f"{row}b"))} for row in range(3)]
    rows[2]["logits_processors"] = rows[2]["logits_processors"][:1]
    found = processed(inputs, *rows)
    assert [name for name, _ in calls] == ["0a", "0b", "2a"]
    assert calls[0][1] == history[0, : length[0]].tolist()
    assert calls[2][1] == history[2, : length[2]].tolist()
    assert torch.equal(found[[0, 2]], logits[[0, 2]] * torch.tensor([[4.0], [2.0]]))
    assert all(torch.equal(now, then) for now, then in zip(inputs, kept, strict=True))


@pytest.mark.parametrize("bad", [lambda ids, scores: None, lambda ids, scores: scores[0]])
def test_users_processors_must_return_scores(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"logits_processors.*supported: a tensor \(1, 320\)"):
        processed(batch(1), {"logits_processors": (bad,)})


def test_rows_that_are_over_may_hold_anything() -> None:
    logits, history, length, alive = batch(len(SETTINGS))
    alive[:] = False
    history[:] = -7
    length[:] = 10**9
    processed((logits, history, length, alive), *SETTINGS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_float_logits(dtype: torch.dtype) -> None:
    logits, *rest = batch(2)
    found = processed((logits.to(dtype), *rest), {"repetition_penalty": 1.5}, {})
    same = processed((logits.to(dtype).float(), *rest), {"repetition_penalty": 1.5}, {})
    assert found.dtype == torch.float32
    assert torch.equal(found, same)


def test_an_empty_history_changes_nothing() -> None:
    logits, _, _, alive = batch(len(SETTINGS) - 1)
    nothing = torch.zeros(len(logits), 0, dtype=torch.int64)
    length = torch.zeros(len(logits), dtype=torch.int64)
    processed((logits, nothing, length, alive), *SETTINGS[:-1])
    some = torch.zeros(len(logits), 3, dtype=torch.int64)
    row = {"repetition_penalty": 1.5, "presence_penalty": 1.0, "no_repeat_ngram_size": 1}
    same = processed((logits, some, length, alive), *[row] * len(logits))
    assert torch.equal(same, logits)
