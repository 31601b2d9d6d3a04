"""Rank paths of recorded answers, and the templates that they ask for. [ours]

Beside a recorded answer a matrix learns as it does in decoding, and the rank is taken at which it
held each next token. The paths that text follows most often make a template; where rounds stop
drafting at a checkpoint other text follows than where they draft to the end, so each stage gets
its own, from the positions at which a round would stop there.

It knows recordings, plans and ranks: not engines, not whether a template pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from graft.matrix import AdjacencyMatrix, Best
from graft.pruning import DraftPlan
from graft.replay import Recording, stage_of
from graft.template import Template, derive


def stage_templates(
    recordings: Sequence[Recording], plan: DraftPlan, token_count: int, size: int
) -> tuple[Template, ...]:
    """A template of `size` paths for each stage of a plan, from recordings of some length."""
    ranks = ranks_of(recordings, token_count)
    if plan.stages == 1:
        return (derive(ranks, size),)
    stages = [[stage_of(draft, plan) for draft in recording.drafts] for recording in recordings]
    return tuple(
        derive(ranks, size, starts=[[s == stage for s in text] for text in stages])
        for stage in range(plan.stages)
    )


def ranks_of(recordings: Sequence[Recording], token_count: int) -> list[list[int]]:
    """For each answer, at each position from its first token on, the rank at which a matrix held
    the next token, -1 where it did not. The matrix is kept over the answers."""
    k = recordings[0].best.ids.shape[1]
    matrix = AdjacencyMatrix(token_count, k, torch.device("cpu"))
    first = torch.zeros(1, dtype=torch.int64)
    out = []
    for recording in recordings:
        matrix.learn_text(recording.tokens[: recording.start])
        answer = recording.tokens[recording.start :]
        ranks = []
        for i, (token, following) in enumerate(pairwise(answer)):
            held = matrix.ids[token].tolist()
            ranks.append(held.index(int(following)) if int(following) in held else -1)
            said = Best(*(part[i : i + 1] for part in recording.best))
            matrix.write(token.unsqueeze(0), said, first)
        out.append(ranks)
    return out
