"""Draft: what a drafter proposes for a round, before retrieval fills the tree up.

Candidates stand best first, so the kept draft nodes are the first ones and the rest can fill gaps.
It knows trees and scores alone, not who drafted.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from graft.pruning import NO_DRAFT, DraftPlan
from graft.tree import TokenTree, root_tree


class Draft(NamedTuple):
    """What a drafter proposes for B sequences."""

    tree: TokenTree  # root and candidates, best first; at most `plan.budget` of them
    scores: Tensor  # float32 [B, N] sum of log-probabilities along the path; root 0, empty -inf
    kept: Tensor  # int64 [B] how many candidates are draft nodes; the others only fill gaps
    # int64 [B] checkpoint (its index) at which drafting stopped; their count: full; or NO_DRAFT.
    stage: Tensor
    confidence: Tensor  # float32 [B, C] c_d at each checkpoint reached, -1 elsewhere
    steps: int  # forwards of the draft model that expanded the tree
    anchor: Tensor | None = None  # int64 [B] kept node below which retrieval hangs; None: the root


def no_draft(roots: Tensor, plan: DraftPlan) -> Draft:
    """A draft of no nodes over `roots` (int64 [B])."""
    zero = roots.new_zeros(len(roots))
    scores = zero.float()
    return Draft(
        root_tree(roots),
        scores.unsqueeze(1),
        zero,
        zero + plan.stages - 1,
        scores.new_full((len(roots), plan.stages - 1), -1.0),
        0,
    )


def sat_out(roots: Tensor, plan: DraftPlan) -> Draft:
    """A draft of no nodes where the drafter was not asked."""
    nothing = no_draft(roots, plan)
    return nothing._replace(stage=nothing.stage.new_full(nothing.stage.shape, NO_DRAFT))
