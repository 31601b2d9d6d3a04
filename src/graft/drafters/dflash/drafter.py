"""DFlashDrafter: the confident prefix of a denoised block as a chain of draft nodes.

One pass names the most likely token of each position behind the root, all at once; the chain of
them is the draft. A node's score sums the log-probabilities along the chain, so the probability
of a path only falls with depth, and the draft nodes kept are a prefix: those whose path
probability reaches the plan's first threshold [ours]. Retrieval hangs below the last one.

It does not know files or formats (`graft.drafters.dflash.loader`), nor who verifies the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from graft.cache import LayerShape, RowShape
from graft.draft import Draft, no_draft
from graft.drafters.dflash.model import DFlashModel, block_steps
from graft.drafters.dflash.store import ContextStore
from graft.footprint import Part, of_drafter
from graft.pruning import DraftPlan
from graft.ranking import first_argmax
from graft.tree import Source, TokenTree
from graft.upload import upload

__all__ = ["DFlashDrafter"]


class DFlashDrafter:
    """Drafts one block per round. See `graft.drafters.base.Drafter`.

    Args:
        model: the network, on the target's device, in evaluation mode.
        embeddings: float [V, H], rows of the tokens before any norm or scale of the target's own.
        lm_head: logits [..., V'] of hidden states [..., H] in the dtype of the network.
        token_count: ids the tokenizer knows; others are never drafted. None: all are known.
    """

    name = "dflash"
    stepwise = False
    waits = False

    def __init__(
        self,
        model: DFlashModel,
        embeddings: Tensor,
        lm_head: Callable[[Tensor], Tensor],
        token_count: int | None = None,
    ) -> None:
        self.model = model
        self.feature_layers = model.config.feature_layers
        self._embeddings = embeddings
        self._lm_head = lm_head
        self._token_count = len(embeddings) if token_count is None else token_count
        self._sights = model.sights()
        self._rows = torch.arange(model.config.block_size, device=embeddings.device)
        self._store: ContextStore | None = None

    @property
    def store(self) -> ContextStore:
        assert self._store is not None, "open() comes first"
        return self._store

    def open(self, slots: int, capacity: int) -> None:
        """Make room, in the storage there is if it is large enough."""
        if self._store is not None and self._store.serves(slots, capacity):
            return
        self._store = None  # frees the old one first
        config, weight = self.model.config, self.model.fc.weight
        row = RowShape(config.num_key_value_heads, config.head_dim, weight.dtype, weight.device)
        layers = [LayerShape(row, row)] * config.num_hidden_layers
        self._store = ContextStore(layers, slots, capacity)

    def reusable(self, slot: int, common: int) -> int:
        """All of them: a row comes from the feature of its own position alone."""
        # `is None`: a cache of Transformers is false where its own list of layers is empty.
        return 0 if self._store is None else min(common, self._store.lengths[slot])

    @torch.no_grad()
    def prefill(self, slot: int, context: Tensor, features: Tensor | None) -> None:
        """Store keys and values of the features; the tokens themselves are not read."""
        assert features is not None, "this drafter reads the target's features"
        self._take(slot, features.unsqueeze(0), [len(features)])

    @torch.no_grad()
    def draft(self, history: Tensor, length: Tensor, plan: DraftPlan) -> Draft:
        """The chain of one block. There is one pass, so one decision: the plan's first threshold
        says which nodes are kept; its beam, depth and later checkpoints have no meaning here."""
        roots = history.gather(1, length.unsqueeze(1) - 1)  # [B, 1]
        width = min(plan.budget, self.model.config.block_size - 1)
        if width < 1:
            return no_draft(roots.squeeze(1), plan)
        logits = self.logits(roots, width).flatten(0, 1)  # [B * width, V]
        best = first_argmax(logits)
        sure = logits.gather(1, best.unsqueeze(1)).squeeze(1) - logits.logsumexp(dim=1)
        scores = sure.clamp(max=0).view(-1, width).cumsum(dim=1)
        chain = self._target_ids(best).view(-1, width)
        return _chain_draft(roots, chain, scores, plan)

    def logits(self, roots: Tensor, width: int) -> Tensor:
        """float32 [B, width, V'] of the `width` positions behind the roots (int64 [B, 1]).

        The whole block is run, as it was trained, however few of its rows are asked for.
        """
        block = self._rows.new_full((len(roots), len(self._rows)), self.model.config.mask_token_id)
        block[:, :1] = roots
        starts = self.store.lengths[: len(roots)]
        positions = upload(starts, block.device).unsqueeze(1) + self._rows
        steps = block_steps(self._sights, starts, self._rows)
        embedded = F.embedding(block, self._embeddings)
        hidden = self.model(embedded, positions, steps, self.store)[:, 1 : width + 1]
        logits = self.model.scale_logits(self._lm_head(hidden))
        offsets = self.model.d2t
        if offsets is None:
            return logits[..., : self._token_count]
        drafted = self._target_ids(torch.arange(len(offsets), device=offsets.device))
        return logits.masked_fill(drafted >= self._token_count, -torch.inf)

    @torch.no_grad()
    def keep_up(self, history: Tensor, length: Tensor) -> None:
        """Never: it drafts in every round."""

    def commit(self, paths: Sequence[Sequence[int]], features: Tensor | None) -> None:
        """Store keys and values of the root's features and of the accepted nodes'."""
        assert features is not None, "this drafter reads the target's features"
        width = 1 + max(len(path) for path in paths)
        # Root and accepted nodes, padded with the root to one width.
        nodes = [[0, *path] + [0] * (width - 1 - len(path)) for path in paths]
        index = upload(nodes, features.device).unsqueeze(2)
        rows = features.gather(1, index.expand(-1, -1, features.shape[2]))
        self._take(0, rows, [1 + len(path) for path in paths])

    def truncate(self, slot: int, length: int) -> None:
        """Forget positions from `length` on."""
        self.store.truncate(slot, length)

    def move(self, source: int, target: int) -> None:
        """Copy the rows of one slot into another."""
        self.store.move(source, target)

    def footprint(self) -> list[Part]:
        """Weights and cache; embeddings and output layer are the target's."""
        return of_drafter("drafter", self.model, self._store)

    def _take(self, first: int, features: Tensor, counts: Sequence[int]) -> None:
        """Store features [B, W, F], of which `counts` rows count, behind what is known."""
        starts = self.store.lengths[first : first + len(counts)]
        ahead = torch.arange(features.shape[1], device=features.device)
        positions = upload(starts, features.device).unsqueeze(1) + ahead
        self.store.append(first, self.model.context(features, positions), counts)

    def _target_ids(self, ids: Tensor) -> Tensor:
        offsets = self.model.d2t
        return ids if offsets is None else ids + offsets[ids]


def _chain_draft(roots: Tensor, chain: Tensor, scores: Tensor, plan: DraftPlan) -> Draft:
    """A draft of the chains [B, w] below the roots [B, 1], as far as the plan trusts them."""
    batch, width = chain.shape
    index = torch.arange(width + 1, device=chain.device).expand(batch, -1)
    tree = TokenTree(
        tokens=torch.cat([roots, chain], dim=1),
        parents=(index - 1).clamp(min=0),
        depths=index,
        used=torch.ones_like(index, dtype=torch.bool),
        sources=torch.full_like(index, Source.DRAFT).where(index > 0, int(Source.TARGET)),
        max_depth=width,
    )
    limit = min(plan.kept[-1], width)
    stages = plan.stages - 1  # the index of "full"
    confidence = scores.new_full((batch, stages), -1.0)
    kept, stage, anchor = (index[:, 0] + limit), index[:, 0] + stages, None
    if plan.checkpoints:
        confidence[:, 0] = scores[:, 0].exp()
        sure = (scores.exp() >= plan.thresholds[0]).sum(dim=1)  # path probabilities only fall
        kept = anchor = sure.clamp(min=1).clamp(max=limit)
        stage = stage.where(sure >= limit, 0)
    padded = torch.cat([torch.zeros_like(scores[:, :1]), scores], dim=1)
    return Draft(tree, padded, kept, stage, confidence, 1, anchor)
