"""What tests of training share: answers, a tiny target, and random lessons."""

from __future__ import annotations

import random
from typing import Any

import torch

from graft.drafters.eagle3.head import Eagle3Head
from graft.models import LoadedModel, load_model
from graft.target import TransformersTarget
from graft.train.answers import Answer
from graft.train.groups import Group, collate
from graft.train.teacher import Lesson, Teacher
from tests.tiny_files import tiny_tokenizer
from tests.tiny_models import tiny_model


def answer(prompt: int = 5, length: int = 7, seed: int = 0, **changes: Any) -> Answer:
    """An answer of random tokens."""
    draw = random.Random(f"{prompt}/{length}/{seed}")
    fields: dict[str, Any] = {
        "task": "chat",
        "id": f"{prompt}-{length}-{seed}",
        "turn": 0,
        "temperature": 0.0,
        "prompt_ids": [draw.randrange(250) for _ in range(prompt)],
        "answer_ids": [draw.randrange(250) for _ in range(length)],
    }
    return Answer(**{**fields, **changes})


def mixed(count: int = 12) -> list[Answer]:
    """Answers of several lengths, with prompts of several lengths."""
    return [answer(1 + 3 * (i % 4), 2 + 5 * (i % 3), seed=i) for i in range(count)]


def tiny_loaded(family: str = "llama", **changes: Any) -> LoadedModel:
    """A tiny target that is loaded."""
    model = tiny_model(family, **changes)
    model.requires_grad_(False)
    return load_model(model, tokenizer=tiny_tokenizer())


def tiny_teacher(loaded: LoadedModel, head: Eagle3Head, memory: int = 0) -> Teacher:
    """Teaches a head's vocabulary."""
    target = TransformersTarget(loaded.model, feature_layers=head.config.feature_layers)
    return Teacher(target, head.target_ids, loaded.token_count, memory)


def random_lesson(group: Group, head: Eagle3Head, seed: int = 0) -> Lesson:
    """A lesson that no target gave: random features and labels."""
    made = torch.Generator().manual_seed(seed)
    config = head.config
    width = config.target_hidden_size * len(config.feature_layers)
    count = int(group.answers.max()) - 1
    rows = (torch.arange(count) < (group.answers - 1).unsqueeze(1)).flatten().nonzero().squeeze(1)
    wanted = torch.randn(len(rows), config.draft_vocab_size, generator=made).mul(3).softmax(1)
    return Lesson(
        torch.randn(*group.tokens.shape, width, generator=made),
        rows,
        wanted,
        wanted.argmax(1),
        torch.rand(len(rows), generator=made) < 0.8,
    )


def tiny_group(*sizes: tuple[int, int]) -> Group:
    """Answers with prompts of these lengths (prompt, answer)."""
    return collate([answer(*size, seed=i) for i, size in enumerate(sizes)])
