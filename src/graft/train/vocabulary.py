"""The draft vocabulary: the tokens that answers use most.

A head names one of these; where the target says another token, a draft ends. It knows token ids
alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from graft.train.answers import Answer


def choose_vocabulary(
    answers: Iterable[Answer], size: int, token_count: int, always: Sequence[int] = ()
) -> Tensor:
    """The most frequent tokens of answers; of equally frequent ones, those with lower ids.

    Args:
        size: tokens to choose.
        token_count: ids of the tokenizer.
        always: ids that are in it in any case: those that end a text.

    Returns:
        int64 [size], ascending.
    """
    counts = _counts(answers)
    first = set(always)
    order = sorted(range(token_count), key=lambda i: (i not in first, -counts[i], i))
    return torch.tensor(sorted(order[:size]))


def coverage(answers: Iterable[Answer], ids: Sequence[int]) -> float:
    """Share of all answer tokens that are among `ids`."""
    counts = _counts(answers)
    return sum(counts[i] for i in ids) / max(counts.total(), 1)


def _counts(answers: Iterable[Answer]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for answer in answers:
        counts.update(answer.answer_ids)
    return counts
