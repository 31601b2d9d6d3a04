"""Frontiers: what a draft model is asked in a beam search, and what it answers.

It knows tensors alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from graft.ranking import best_scores


class Frontier(NamedTuple):
    """The nodes that the draft model expands next: b per sequence, all of one depth."""

    depth: int
    tokens: Tensor  # int64 [B, b]
    parents: Tensor  # int64 [B, b] row of the parent in the frontier before; 0 at depth 1
    visible: Tensor  # bool [B, b, depth * b] rows of all frontiers so far on each node's path

    @property
    def depths(self) -> Tensor:
        """int64 [B, depth * b]: depth of the rows of all frontiers so far, from 0 on."""
        batch, beam = self.tokens.shape
        depths = torch.arange(self.depth, device=self.tokens.device)
        return depths.repeat_interleave(beam).expand(batch, -1)


class Children(NamedTuple):
    """The likeliest tokens behind each of n nodes, [B, n, b] each."""

    scores: Tensor  # float32 log-probabilities, <= 0
    ids: Tensor  # int64, of the draft vocabulary


Expand = Callable[[Frontier], Children]


def children_of(logits: Tensor, beam: int) -> Children:
    """The `beam` likeliest tokens, or all there are, by logits [B, n, V'] of the draft model."""
    flat = logits.flatten(0, 1).float()
    values, ids = best_scores(flat, min(beam, flat.shape[1]))
    scores = (values - flat.logsumexp(1, keepdim=True)).clamp(max=0.0)
    # A draft model may overflow: what is no number is worth nothing, and the output stays right.
    scores = scores.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    shape = (*logits.shape[:2], -1)
    return Children(scores.view(shape), ids.view(shape))
