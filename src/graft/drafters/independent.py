"""ModelDrafter: beam drafting with an independent draft model.

Any smaller causal language model with the target's tokenizer. It is run like a target: the same
attention, the same cache, so a frontier is one forward. Its cache keeps committed positions; what
a round committed is run at the beginning of the next one, in one forward whose last row, the
root's, gives depth 1.

It knows a model and the beam: not the target, not retrieval.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graft.attention import Step
from graft.beam import search
from graft.drafters.base import Draft
from graft.footprint import Part, of_drafter
from graft.frontier import Children, Frontier, children_of
from graft.pruning import DraftPlan
from graft.target import TransformersTarget
from graft.upload import upload


class ModelDrafter:
    """Drafts with a model.

    Args:
        model: the draft model, on the target's device.
        token_count: ids the tokenizer knows; others are never drafted.
    """

    name = "model"
    stepwise = True
    waits = False
    feature_layers: tuple[int, ...] = ()

    def __init__(self, model: TransformersTarget, token_count: int) -> None:
        self.model = model
        self.token_count = token_count
        self._ahead: list[int] = []  # committed tokens per slot that its cache does not hold yet

    def open(self, slots: int, capacity: int) -> None:
        """Room for `slots` sequences: sized as the target's cache."""
        self.model.open(slots, capacity)
        self._ahead = [0] * slots

    def reusable(self, slot: int, common: int) -> int:
        """What its cache holds."""
        return min(common, self.model.length(slot) if self._ahead else 0)

    def prefill(self, slot: int, context: Tensor, features: Tensor | None) -> None:
        """Run the prompt."""
        self.model.prefill(slot, context[self.model.length(slot) :])
        self._ahead[slot] = 1  # the root, which is still to be drawn

    def draft(self, history: Tensor, length: Tensor, plan: DraftPlan) -> Draft:
        """The best candidates of a beam search."""
        batch = len(length)
        logits = self._catch_up(history, batch).unsqueeze(1)
        first = children_of(logits, plan.beam)

        def expand(frontier: Frontier) -> Children:
            starts = self._starts(batch)
            step = Step(0, starts, frontier.visible, frontier.depths)
            return children_of(self._logits(frontier.tokens, step, step.width), plan.beam)

        roots = history.gather(1, length.unsqueeze(1) - 1).squeeze(1)
        return search(roots, first, expand, plan, lambda ids: ids)

    def keep_up(self, history: Tensor, length: Tensor) -> None:
        """Never: it drafts in every round."""

    def commit(self, paths: Sequence[Sequence[int]], features: Tensor | None) -> None:
        """Count what is to be caught up with."""
        for slot, path in enumerate(paths):
            self._ahead[slot] += len(path) + 1

    def truncate(self, slot: int, length: int) -> None:
        """Forget rows."""
        self.model.truncate(slot, length)

    def move(self, source: int, target: int) -> None:
        """Move rows."""
        self.model.move(source, target)
        self._ahead[target] = self._ahead[source]

    def footprint(self) -> list[Part]:
        """Weights and cache."""
        cache = self.model.cache if self._ahead else None
        return of_drafter("draft model", self.model.model, cache)

    def _catch_up(self, history: Tensor, batch: int) -> Tensor:
        """Run what was committed since; logits [B, V] behind the roots."""
        counts = self._ahead[:batch]
        width = max(counts)
        step = Step.chain(0, self._starts(batch), width, history.device)
        # Padding reads whatever token stands there; its rows are overwritten.
        index = step.depths + upload(step.starts, history.device).unsqueeze(1)
        tokens = history[:batch].gather(1, index.clamp(max=history.shape[1] - 1))
        keep = width - min(counts) + 1
        logits = self._logits(tokens, step, keep)
        self.model.commit([range(1, count) for count in counts])
        self._ahead[:batch] = [0] * batch
        last = upload(counts, history.device) - 1 - (width - keep)
        return logits[torch.arange(batch, device=history.device), last]

    def _starts(self, batch: int) -> list[int]:
        return [self.model.length(slot) for slot in range(batch)]

    def _logits(self, tokens: Tensor, step: Step, keep: int) -> Tensor:
        """Logits [B, keep, V] of new rows."""
        logits = self.model.forward(tokens, step.depths, step, keep)
        return logits[..., : self.token_count]
