"""Groups: answers of like length that go through the models together.

Groups are made once and stay: epochs only change their order. So what the models compute of a
group does not depend on where a run began, and a resumed run repeats an uninterrupted one bit for
bit. A step takes several groups, so that it mixes lengths.

It knows token ids alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from graft.train.answers import Answer


class Group(NamedTuple):
    """Answers side by side, padded behind their ends.

    tokens: int64 [B, L], prompt and answer. prompts, answers: int64 [B], their lengths.
    """

    tokens: Tensor
    prompts: Tensor
    answers: Tensor

    def to(self, device: torch.device) -> Group:
        return Group(*(tensor.to(device) for tensor in self))


def make_groups(answers: Sequence[Answer], tokens: int) -> list[list[Answer]]:
    """Share answers out by length: groups of at most `tokens` tokens, padding included.

    An answer that is longer than that is a group by itself.
    """
    groups: list[list[Answer]] = []
    width = 0
    for answer in sorted(answers, key=lambda a: (-a.length, a.key)):
        if not groups or width * (len(groups[-1]) + 1) > tokens:
            groups.append([])
            width = answer.length  # the longest comes first
        groups[-1].append(answer)
    return groups


def collate(answers: Sequence[Answer]) -> Group:
    """Put the answers of a group side by side."""
    rows = [torch.tensor(a.prompt_ids + a.answer_ids) for a in answers]
    return Group(
        torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
        torch.tensor([len(a.prompt_ids) for a in answers]),
        torch.tensor([len(a.answer_ids) for a in answers]),
    )


def padding(groups: Sequence[Sequence[Answer]]) -> float:
    """Share of padding among the tokens of all groups."""
    used = sum(a.length for group in groups for a in group)
    return 1 - used / max(1, sum(max(a.length for a in g) * len(g) for g in groups))


def steps_of(count: int, per_step: int, epochs: float, seed: int) -> Iterator[list[int]]:
    """Indices of the groups of each optimiser step; a new order in every epoch.

    A group keeps its place in the step: where processes share steps out by place, each meets the
    same groups in every epoch and can remember them.

    Args:
        count: of groups. per_step: groups in a step; the last of an epoch may have fewer.
    """
    left = total_steps(count, per_step, epochs)
    epoch = 0
    while left:
        draw = random.Random(f"{seed}/{epoch}")
        places = [list(range(place, count, per_step)) for place in range(min(per_step, count))]
        for indices in places:
            draw.shuffle(indices)
        for step in islice(zip_longest(*places), left):
            yield [index for index in step if index is not None]
            left -= 1
        epoch += 1


def total_steps(count: int, per_step: int, epochs: float) -> int:
    """Optimiser steps of a run."""
    return max(1, round(-(-count // per_step) * epochs))
