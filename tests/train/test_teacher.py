"""The teacher says what the target says of each answer alone."""

from __future__ import annotations

import pytest
import torch

from graft.target import TransformersTarget
from graft.train import teacher as module
from graft.train.groups import collate
from graft.train.teacher import Teacher
from tests.tiny_models import VOCAB_SIZE
from tests.train.making import answer, tiny_loaded

LAYERS = (1, 2, 3)
ANSWERS = [answer(4, 6), answer(1, 3), answer(9, 5)]
TOKENS = 250  # the others are padding of the logits


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2", "mistral"])
@pytest.mark.parametrize("size", [40, VOCAB_SIZE])
def test_it_says_what_the_target_says(
    family: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 4)
    loaded = tiny_loaded(family)
    target = TransformersTarget(loaded.model, feature_layers=LAYERS)
    ids = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(1))[:size].sort().values
    lesson = Teacher(target, ids, TOKENS).teach(collate(ANSWERS))
    count = max(len(a.answer_ids) for a in ANSWERS) - 1
    wanted, named, rows = [], [], []
    for b, one in enumerate(ANSWERS):
        tokens = torch.tensor([one.prompt_ids + one.answer_ids])
        out = loaded.model(tokens, output_hidden_states=True)
        logits = out.logits[0, len(one.prompt_ids) : -1]
        wanted.append(logits[:, ids].softmax(1))
        named.append(torch.isin(logits[:, :TOKENS].argmax(1), ids))
        rows += [b * count + r for r in range(len(logits))]
        inner = torch.cat([out.hidden_states[i][0] for i in LAYERS[:-1]], 1)
        found = lesson.features[b, : tokens.shape[1]]
        torch.testing.assert_close(found[:, : inner.shape[1]], inner, rtol=1e-3, atol=1e-3)
    assert lesson.rows.tolist() == rows
    torch.testing.assert_close(lesson.wanted, torch.cat(wanted), rtol=1e-3, atol=1e-4)
    assert torch.equal(lesson.named, torch.cat(named))
    assert size == VOCAB_SIZE or not lesson.named.all()


def test_a_model_that_caps_its_logits_is_refused() -> None:
    loaded = tiny_loaded("gemma2")
    target = TransformersTarget(loaded.model, feature_layers=LAYERS)
    with pytest.raises(ValueError, match="changes its logits"):
        Teacher(target, torch.arange(10), TOKENS)


def memorising(monkeypatch: pytest.MonkeyPatch, memory: int) -> tuple[Teacher, list[int]]:
    """A teacher with memory, and the sizes of the groups that its target has read."""
    target = TransformersTarget(tiny_loaded().model, feature_layers=LAYERS)
    teacher = Teacher(target, torch.arange(40), TOKENS, memory)
    read: list[int] = []
    run = teacher._run

    def counted(tokens: torch.Tensor) -> torch.Tensor:
        read.append(tokens.numel())
        return run(tokens)

    monkeypatch.setattr(teacher, "_run", counted)
    return teacher, read


def test_what_is_kept_is_said_again_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, read = memorising(monkeypatch, 1 << 30)
    groups = [collate(ANSWERS), collate(ANSWERS[:2])]
    lessons = [teacher.teach(group, i) for i, group in enumerate(groups)]
    assert len(read) == 2
    for i, group in enumerate(groups):
        for again in (teacher.teach(group, i), Teacher.teach(teacher, group)):
            for field, found, expected in zip(again._fields, again, lessons[i], strict=True):
                assert torch.equal(found, expected), field
    assert len(read) == 4  # those without a key


def test_memory_holds_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    group = collate(ANSWERS)
    size = memorising(monkeypatch, 0)[0]._hear(group).nbytes
    for room, asked in ((0, 3), (size - 1, 3), (size, 1), (2 * size - 1, 1)):
        teacher, read = memorising(monkeypatch, room)
        for _ in range(3):
            teacher.teach(group, 0)
        assert len(read) == asked, room
        teacher.teach(group, 1)
        teacher.teach(group, 1)
        assert len(read) == asked + 2, room
