"""Evaluation of a head on answers that it does not learn from.

Two measures: how often its first choice is the target's, per step of the training-time test; and
tau, by real decoding of the prompts with trees of the head alone. It changes nothing: a run with
evaluations takes the same steps as one without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from graft.drafters.eagle3.drafter import Eagle3Drafter
from graft.drafters.eagle3.head import Eagle3Head
from graft.engine import Engine
from graft.looping import LOOPING, repeated_8grams
from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings
from graft.target import TransformersTarget
from graft.train.answers import Answer
from graft.train.groups import collate, make_groups
from graft.train.teacher import Teacher
from graft.train.test_time import training_test

# Prompts up to these lengths are reported together.
BUCKETS = (256, 1024, 4096, 16384)


@dataclass(frozen=True)
class Trees:
    """How tau is measured: budget, beam and depth of dense trees; prompts and answer tokens."""

    budget: int = 60
    beam: int = 8
    depth: int = 6
    prompts: int = 16
    tokens: int = 64


@dataclass(frozen=True)
class Tau:
    """mean: tokens per round over all answers that do not loop; NaN if all do. looping: answers
    left out. by_length: tau by prompt length, for buckets that hold any."""

    mean: float
    looping: int
    by_length: dict[str, float]


@torch.no_grad()
def accuracy_of(
    head: Eagle3Head,
    teacher: Teacher,
    embed: Callable[[Tensor], Tensor],
    answers: Sequence[Answer],
    *,
    steps: int,
    group_tokens: int,
) -> tuple[float, ...]:
    """Per step of the test, the share of rows whose first choice is the target's."""
    right, rows = torch.zeros(steps), torch.zeros(steps)
    for members in make_groups(answers, group_tokens):
        group = collate(members).to(teacher.target.device)
        outcome = training_test(head, embed, group, teacher.teach(group), steps=steps, decay=1.0)
        right += outcome.right.cpu()
        rows += outcome.rows.cpu()
    return tuple((right / rows.clamp(min=1)).tolist())


def tau_of(
    head: Eagle3Head,
    target: TransformersTarget,
    tokenizer: PreTrainedTokenizerBase,
    answers: Sequence[Answer],
    trees: Trees,
    *,
    token_count: int,
    eos_token_ids: Sequence[int],
) -> Tau:
    """Tokens per round when the prompts of `answers` are decoded greedily with the head."""
    embed = target.model.get_input_embeddings()
    assert embed is not None
    engine = Engine(
        target,
        tokenizer,
        name="target",
        token_count=token_count,
        eos_token_ids=eos_token_ids,
        drafter=Eagle3Drafter(head, embed, token_count),
        settings=EngineSettings(
            policy="dense", budget=trees.budget, beam=trees.beam, depth=trees.depth
        ),
    )
    params = SamplingParams(max_new_tokens=trees.tokens)
    found: dict[str, list[int]] = {}
    looping = 0
    for answer in answers[: trees.prompts]:
        result = engine.generate(answer.prompt_ids, params)
        if repeated_8grams(result.token_ids) > LOOPING:
            looping += 1
            continue
        counts = found.setdefault(_bucket(len(answer.prompt_ids)), [0, 0])
        rounds = result.stats.rounds
        counts[0] += round((result.stats.tau or 0.0) * rounds)
        counts[1] += rounds
    totals = [sum(column) for column in zip(*found.values(), strict=True)] or [0, 0]
    mean = totals[0] / totals[1] if totals[1] else float("nan")
    return Tau(mean, looping, {name: t / r for name, (t, r) in sorted(found.items()) if r})


def _bucket(length: int) -> str:
    limit = next((b for b in BUCKETS if length <= b), None)
    return f"over {BUCKETS[-1]}" if limit is None else f"up to {limit}"
