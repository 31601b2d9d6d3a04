"""Prompt lookup: a chain copied from where the last tokens occurred before. A baseline.

The last n tokens, n from `MAX_NGRAM` down to 1, are looked for in the sequence itself; the tokens
that followed their latest earlier occurrence make the chain. No model, no state.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graft.drafters.base import Draft, no_draft
from graft.drafters.none import NoDrafter
from graft.pruning import DraftPlan
from graft.tree import Source, TokenTree

MAX_NGRAM = 3  # as in the published prompt lookup decoding


class LookupDrafter(NoDrafter):
    """Drafts by copying from the sequence's own past."""

    name = "lookup"
    stepwise = False
    waits = True

    def draft(self, history: Tensor, length: Tensor, plan: DraftPlan) -> Draft:
        """Chains of up to `plan.budget` copied tokens."""
        last = length.unsqueeze(1) - 1
        place = torch.arange(plan.budget, device=history.device)
        start = _latest_match(history, length).unsqueeze(1)
        used = (start >= 0) & (start + place <= last)
        tokens = history.gather(1, (start + place).clamp(min=0).minimum(last)).where(used, 0)
        none = no_draft(history.gather(1, last).squeeze(1), plan)
        root = none.tree

        def behind(first: Tensor, rest: Tensor) -> Tensor:
            return torch.cat([first, rest], 1)

        tree = TokenTree(
            behind(root.tokens, tokens),
            behind(root.parents, place.expand_as(tokens).where(used, 0)),
            behind(root.depths, (place + 1).expand_as(tokens).where(used, 1)),
            behind(root.used, used),
            behind(root.sources, torch.full_like(tokens, Source.RETRIEVED).where(used, 0)),
            plan.budget,
        )
        # Nobody scored them: a copied token has no probability.
        scores = torch.full_like(tokens, torch.nan, dtype=torch.float32)
        return none._replace(tree=tree, scores=behind(none.scores, scores), kept=used.sum(1))


def _latest_match(history: Tensor, length: Tensor) -> Tensor:
    """int64 [B]: where the continuation of the longest repeated ending starts, -1 if nowhere."""
    batch, room = history.shape
    index = torch.arange(room, device=history.device)
    last = length.unsqueeze(1) - 1
    # matching[b, j]: the n tokens that end at j are the n that end at the root.
    matching = (index < last) & torch.ones_like(history, dtype=torch.bool)
    start = torch.full((batch,), -1, device=history.device)
    for back in range(MAX_NGRAM):
        token = history.gather(1, (last - back).clamp(min=0))
        before = history.roll(back, 1)
        matching = matching & (before == token) & (index >= back) & (last >= back)
        latest = torch.where(matching, index + 1, -1).amax(1)
        start = torch.where(latest > 0, latest, start)
    return start
