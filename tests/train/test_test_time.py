"""The training-time test equals what the head reads when it drafts, row by row and step by step.

The reference runs each path on its own, as decoding does: committed rows go into a real cache,
then the nodes of the path one by one, each reading the output of the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from graft.attention import Step
from graft.drafters.eagle3.head import Eagle3Head
from graft.train import test_time
from graft.train.groups import Group
from graft.train.teacher import Lesson
from graft.train.test_time import training_test
from tests.tiny_heads import head_cache, tiny_head
from tests.train.making import random_lesson, tiny_group

STEPS, DECAY = 4, 0.8
SIZES = ((5, 7), (1, 9), (8, 2), (12, 6))
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 4},
    "normed residual": {"norm_before_residual": True},
    "normed output": {"norm_output": True},
    "per-head norms": {"qk_norm": True},
    "normed features": {"fc_norm": True},
    "biases": {"attention_bias": True},
}


def words(head: Eagle3Head) -> Callable[[Tensor], Tensor]:
    made = torch.Generator().manual_seed(3)
    table = torch.randn(head.config.vocab_size, head.config.hidden_size, generator=made)
    return lambda tokens: table[tokens]


def chain(head: Eagle3Head, cache: Any, rows: Tensor, embeddings: Tensor) -> Tensor:
    """Run rows [n, H] behind what the cache holds, and commit them."""
    start, count = cache.lengths[0], len(rows)
    step = Step.chain(0, [start], count, rows.device)
    positions = start + torch.arange(count)[None]
    hidden = head(rows[None], embeddings[None], positions, step, cache)
    cache.commit(0, [range(1, count)])
    return hidden[0]


def rollout(head: Eagle3Head, tokens: Tensor, features: Tensor, embed: Any, t: int, s: int) -> Any:
    """Logits of the row at position t at step s: committed up to t - s, then a path of s nodes."""
    cache = head_cache(head)
    joined = embed(tokens)[1:]  # row t joins the token at t + 1
    first = t - s
    hidden = chain(head, cache, head.fuse(features[: first + 1]), joined[: first + 1])[-1:]
    for node in range(first + 1, t + 1):
        hidden = chain(head, cache, head.feedback(hidden), joined[node : node + 1])
    return head.logits(hidden)[0]


def reference(head: Eagle3Head, group: Group, lesson: Lesson) -> tuple[Tensor, list[int]]:
    """Loss, and rows whose first choice is right, path by path."""
    embed, count = words(head), int(group.answers.max()) - 1
    loss, right = torch.zeros(()), [0] * STEPS
    for n, flat in enumerate(lesson.rows.tolist()):
        b, r = divmod(flat, count)
        t = int(group.prompts[b]) - 1 + r
        for s in range(min(r, STEPS - 1) + 1):
            if lesson.named[n]:
                logits = rollout(head, group.tokens[b], lesson.features[b], embed, t, s)
                loss = loss - DECAY**s * (lesson.wanted[n] * logits.log_softmax(0)).sum()
                right[s] += int(logits.argmax() == lesson.wanted[n].argmax())
    return loss, right


def both(head: Eagle3Head) -> tuple[Tensor, Tensor]:
    group = tiny_group(*SIZES)
    lesson = random_lesson(group, head)
    found = training_test(head, words(head), group, lesson, steps=STEPS, decay=DECAY)
    return found.loss, reference(head, group, lesson)[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loss_equals_a_naive_rollout(variant: str) -> None:
    head = tiny_head(**VARIANTS[variant])
    group = tiny_group(*SIZES)
    lesson = random_lesson(group, head)
    found = training_test(head, words(head), group, lesson, steps=STEPS, decay=DECAY)
    loss, right = reference(head, group, lesson)
    torch.testing.assert_close(found.loss, loss, rtol=1e-4, atol=1e-3)
    assert found.right.tolist() == right
    rows = [sum(max(n - 1 - s, 0) for _, n in SIZES) for s in range(STEPS)]
    assert found.rows.tolist() == rows


def test_gradients_equal_those_of_the_rollout() -> None:
    heads = [tiny_head().requires_grad_(True) for _ in range(2)]
    group = tiny_group((3, 5), (1, 4))
    lesson = random_lesson(group, heads[0])
    training_test(heads[0], words(heads[0]), group, lesson, steps=3, decay=DECAY).loss.backward()
    embed, count = words(heads[1]), int(group.answers.max()) - 1
    loss = torch.zeros(())
    for n, flat in enumerate(lesson.rows.tolist()):
        b, r = divmod(flat, count)
        t = int(group.prompts[b]) - 1 + r
        for s in range(min(r, 2) + 1):
            if lesson.named[n]:
                logits = _with_gradients(heads[1], group.tokens[b], lesson.features[b], embed, t, s)
                loss = loss - DECAY**s * (lesson.wanted[n] * logits.log_softmax(0)).sum()
    loss.backward()
    for (name, found), (_, expected) in zip(
        heads[0].named_parameters(), heads[1].named_parameters(), strict=True
    ):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-4, msg=name)


def _with_gradients(
    head: Eagle3Head, tokens: Tensor, features: Tensor, embed: Any, t: int, s: int
) -> Tensor:
    """As `rollout`, with keys in a list instead of the cache, whose writes pass no gradient."""
    keys: Any = test_time.PathKeys()
    joined, fused, start = embed(tokens)[1:], head.fuse(features), 0
    hidden = torch.zeros(0)
    for rows in (fused[: t - s + 1], *[None] * s):
        rows = head.feedback(hidden) if rows is None else rows
        count, end = len(rows), start + len(rows)
        visible = torch.ones(1, count, end, dtype=torch.bool).tril(start)
        step = Step(0, [0], visible, torch.arange(end)[None])
        places = torch.arange(start, end)[None]
        hidden = head(rows[None], joined[None, start:end], places, step, keys)[0, -1:]
        start = end
    return head.logits(hidden)[0]


def _sees_too_much(prompt: Tensor, answer: Tensor, prompts: Tensor, s: int) -> Step:
    step = test_time._step(prompt, answer, prompts, s)
    whole = torch.ones_like(step._visible).tril(prompt.shape[1])
    return Step(0, [0] * step.batch, step._visible | whole, step._depths)


def _forgets_its_path(prompt: Tensor, answer: Tensor, prompts: Tensor, s: int) -> Step:
    step = test_time._step(prompt, answer, prompts, s)
    visible = step._visible.clone()
    width = prompt.shape[1] + answer.shape[1]
    if s > 1:
        visible[:, :, width : width + answer.shape[1] * (s - 1)] = False
    return Step(0, [0] * step.batch, visible, step._depths)


def _sees_padding(prompt: Tensor, answer: Tensor, prompts: Tensor, s: int) -> Step:
    step = test_time._step(prompt, answer, prompts, s)
    visible = step._visible.clone()
    visible[:, :, : prompt.shape[1]] = True
    return Step(0, [0] * step.batch, visible, step._depths)


@pytest.mark.parametrize("fault", [_sees_too_much, _forgets_its_path, _sees_padding])
def test_a_wrong_sight_is_found(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the comparison notices each."""
    true = test_time._step
    monkeypatch.setattr(test_time, "_step", lambda *args: _swapped(fault, true, monkeypatch, *args))
    found, expected = both(tiny_head())
    assert abs(found - expected) > 1e-3 * abs(expected)


def _swapped(fault: Any, true: Any, monkeypatch: pytest.MonkeyPatch, *args: Any) -> Step:
    with monkeypatch.context() as inner:
        inner.setattr(test_time, "_step", true)
        made: Step = fault(*args)
        return made


@pytest.mark.parametrize("fault", ["no feedback", "no roll", "late word"])
def test_a_wrong_input_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "no feedback":
        monkeypatch.setattr(Eagle3Head, "feedback", lambda self, hidden: torch.zeros_like(hidden))
    elif fault == "no roll":
        monkeypatch.setattr(torch.Tensor, "roll", lambda self, *args: self)
    else:
        true = test_time.rows_at
        monkeypatch.setattr(
            test_time, "rows_at", lambda rows, index: true(rows, (index - 1).clamp(min=0))
        )
    if fault == "no feedback":
        head = tiny_head()
        group = tiny_group(*SIZES)
        lesson = random_lesson(group, head)
        found = training_test(head, words(head), group, lesson, steps=STEPS, decay=DECAY).loss
        monkeypatch.undo()
        expected = reference(head, group, lesson)[0]
    else:
        found, expected = both(tiny_head())
    assert abs(found - expected) > 1e-3 * abs(expected)


def test_rows_that_have_nothing_to_name_teach_nothing() -> None:
    head = tiny_head().requires_grad_(True)
    group = tiny_group((4, 6))
    lesson = random_lesson(group, head)
    lesson = lesson._replace(named=torch.zeros_like(lesson.named))
    found = training_test(head, words(head), group, lesson, steps=3, decay=1.0)
    assert found.loss == 0
    assert found.right.tolist() == [0, 0, 0]
    assert found.rows.tolist() == [5, 4, 3]
