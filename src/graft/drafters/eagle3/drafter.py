"""Eagle3Drafter: beam drafting with an EAGLE-3 head.

The head's own cache keeps committed positions only. Row j of a sequence needs the target's feature
at position j and the token at j + 1, so features wait until that token is known: those of a round
until the next one drafts. Then, in one forward, the head catches up with what was committed, and
its last row, the root's, gives depth 1. Rows of the tree stand behind the committed ones until
they are overwritten.

    [0 .. length - 1)   committed rows of a sequence whose history has `length` tokens
    [length - 1 ..)     b rows per frontier of this round's tree

It knows the head and the beam: not the target, not retrieval.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from graft.attention import FixedStep, Step, causal
from graft.beam import search
from graft.cache import KVCache, LayerShape, RowShape
from graft.drafters.base import Draft
from graft.drafters.eagle3.head import Eagle3Head
from graft.footprint import Part, of_drafter
from graft.frontier import Children, Expand, Frontier, children_of
from graft.pruning import DraftPlan
from graft.recordings import ROWS, Recorder, Recordings, Results
from graft.rows import rows_at
from graft.upload import upload

log = logging.getLogger("graft")

# Features of a sequence that wait at most: when it drafts, since rows whose output nobody reads
# cost a ninth where they are run apart; and in rounds that it sits out, to bound their memory.
FEW, MANY = 16, 64


class Eagle3Drafter:
    """Drafts with a head.

    Args:
        head: in evaluation mode, on the target's device.
        embed: the target's embeddings, used where the head has none of its own.
        token_count: ids the tokenizer knows; others are never drafted.
        window: positions back that the head sees; None leaves what it was trained with.
        recorder: records draft steps where the device gains by it; None runs them one by one.
    """

    name = "eagle3"
    stepwise = True
    waits = True

    def __init__(
        self,
        head: Eagle3Head,
        embed: Callable[[Tensor], Tensor],
        token_count: int,
        window: int | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.head = head
        self.feature_layers = head.config.feature_layers
        self._embed = head.embed_tokens or embed
        self._unknown = head.target_ids >= token_count
        self._masks = bool(self._unknown.any())
        if window is not None:
            head.limit_window(window)
        # Positions it was trained for; None where they are no matter.
        limited = window is not None or head.config.sliding_window is not None
        self._trained = None if limited else head.config.max_position_embeddings
        shape = head.config.num_key_value_heads, head.config.head_dim
        rows = RowShape(*shape, head.dtype, head.target_ids.device)
        self._layers = [LayerShape(rows, rows)] * head.config.num_hidden_layers
        self._recordings = None if recorder is None else Recordings(recorder, "the head")
        self._cache: KVCache | None = None
        # Features [n, F] per slot that no row was run for yet.
        self._waiting: list[Tensor] = []
        self._hidden = torch.empty(0)  # h of the frontier that was run last

    @property
    def cache(self) -> KVCache:
        assert self._cache is not None, "open() comes first"
        return self._cache

    def open(self, slots: int, capacity: int) -> None:
        """Room for `slots` sequences: sized as the target's cache."""
        if self._cache is None or not self._cache.serves(slots, capacity):
            self._cache = None  # frees the old one first
            self._cache = KVCache(self._layers, slots, capacity)
        width = len(self.feature_layers) * self.head.config.target_hidden_size
        nothing = self.head.target_ids.new_zeros(0, width)
        self._waiting = [nothing.to(self.head.dtype)] * slots

    def reusable(self, slot: int, common: int) -> int:
        """One token less: the feature in front of a new token must be computed again, for a head
        whose rows do not keep it."""
        if self._cache is None:
            return 0
        known = self.cache.lengths[slot] + len(self._waiting[slot])
        return max(min(common - 1, known), 0)

    def prefill(self, slot: int, context: Tensor, features: Tensor | None) -> None:
        """Run the rows whose next token is known."""
        assert features is not None
        rows = torch.cat([self._waiting[slot], features.to(self.head.dtype)])
        self._waiting[slot] = rows
        self._remember(slot, context, min(len(rows), len(context) - 1 - self.cache.lengths[slot]))

    def draft(self, history: Tensor, length: Tensor, plan: DraftPlan) -> Draft:
        """The best candidates of a beam search."""
        batch = len(length)
        self._shorten(history, batch, FEW)
        begin = (length - 1).unsqueeze(1)
        roots = history.gather(1, begin).squeeze(1)
        recordings = self._recordings
        if recordings is not None and batch * self._ahead(batch, plan) <= ROWS:
            first, expand = self._replayed(recordings, history, begin, plan)
        else:
            self._hidden = self._catch_up(history, batch)
            first = children_of(self._logits(self._hidden), plan.beam)
            starts = self.cache.lengths[:batch]

            def expand(frontier: Frontier) -> Children:
                step = Step(0, starts, frontier.visible, frontier.depths)
                self._hidden, children = self._grow(self._hidden, frontier, begin, step)
                return children

        return search(roots, first, expand, plan, self._target_ids)

    def keep_up(self, history: Tensor, length: Tensor) -> None:
        """Let no more than some features wait."""
        self._shorten(history, len(length), MANY)

    def commit(self, paths: Sequence[Sequence[int]], features: Tensor | None) -> None:
        """Let the features of root and accepted nodes wait for the next draft."""
        assert features is not None
        width = features.shape[1]
        nodes = [b * width + n for b, path in enumerate(paths) for n in (0, *path)]
        index = upload(nodes, features.device)
        seen = features.flatten(0, 1)[index].to(self.head.dtype)
        parts = seen.split([len(path) + 1 for path in paths])
        for slot, part in enumerate(parts):
            self._waiting[slot] = torch.cat([self._waiting[slot], part])

    def truncate(self, slot: int, length: int) -> None:
        """Keep the rows and the waiting features of positions before `length`."""
        rows = self.cache.lengths[slot]
        self.cache.truncate(slot, length)
        self._waiting[slot] = self._waiting[slot][: max(length - rows, 0)]

    def move(self, source: int, target: int) -> None:
        """Move rows and waiting features."""
        self.cache.move(source, target)
        self._waiting[target] = self._waiting[source]

    def footprint(self) -> list[Part]:
        """Weights and cache."""
        return of_drafter("head", self.head, self._cache)

    def _shorten(self, history: Tensor, batch: int, most: int) -> None:
        """Where more than `most` features wait, run the rows of all but the last one."""
        for slot in range(batch):
            if len(self._waiting[slot]) > most:
                self._remember(slot, history[slot], len(self._waiting[slot]) - 1)

    def _remember(self, slot: int, context: Tensor, count: int) -> None:
        """Run rows for the first `count` features that wait, for their keys and values alone."""
        if count < 1:
            return
        start, waiting = self.cache.lengths[slot], self._waiting[slot]
        tokens = context[start + 1 : start + 1 + count].unsqueeze(0)
        fused = self.head.fuse(waiting[:count]).unsqueeze(0)
        self._run(slot, [start], fused, tokens, self.head.remember)
        self.cache.commit(slot, [range(1, count)])
        self._waiting[slot] = waiting[count:]

    def _grow(
        self, hidden: Tensor, frontier: Frontier, begin: Tensor, step: Step
    ) -> tuple[Tensor, Children]:
        """Run a frontier, behind h [B, n, H] of the one before; h [B, b, H] of its own.

        `begin`: int64 [B, 1], committed rows of each sequence, on the device.
        """
        features = self.head.feedback(rows_at(hidden, frontier.parents))
        positions = (begin + frontier.depth - 1).expand_as(frontier.tokens)
        words = self._words(frontier.tokens, features)
        hidden = self.head(features, words, positions, step, self.cache)
        return hidden, children_of(self._logits(hidden), frontier.tokens.shape[1])

    def _catch_up(self, history: Tensor, batch: int) -> Tensor:
        """Run the waiting features of all sequences in one forward; h [B, 1, H] of the roots."""
        starts, waiting = self.cache.lengths[:batch], self._waiting[:batch]
        counts = [len(rows) for rows in waiting]
        fused = self.head.fuse(torch.cat(waiting)).split(counts)
        features = torch.nn.utils.rnn.pad_sequence(fused, batch_first=True)  # [B, W, H]
        tokens = _next_tokens(history[:batch], upload(starts, history.device), max(counts))
        hidden = self._run(0, starts, features, tokens, self.head)
        self._caught_up(counts)
        last = upload(counts, history.device) - 1
        return rows_at(hidden, last.unsqueeze(1))

    def _caught_up(self, counts: Sequence[int]) -> None:
        """Rows were run for all that waited."""
        self.cache.commit(0, [range(1, count) for count in counts])
        for slot in range(len(counts)):
            self._waiting[slot] = self._waiting[slot][:0]

    def _ahead(self, batch: int, plan: DraftPlan) -> int:
        """Rows per sequence that are run at once at most."""
        return max(plan.beam, *(len(rows) for rows in self._waiting[:batch]))

    def _replayed(
        self, recordings: Recordings, history: Tensor, begin: Tensor, plan: DraftPlan
    ) -> tuple[Children, Expand]:
        """As `draft` does it, in few shapes: the children of the roots, and how to go on."""
        batch, device = len(begin), history.device
        starts, waiting = self.cache.lengths[:batch], self._waiting[:batch]
        counts = [len(rows) for rows in waiting]
        width = 1 << (max(counts) - 1).bit_length()
        self._check_length(max(starts) + max(counts))
        # Of this whole round: rows of its frontiers stand behind those that are caught up with.
        end = self.cache.bound(max(starts) + width + plan.depth * plan.beam)
        recordings.hold(self.cache.addresses)

        def catch_up(features: Tensor, tokens: Tensor, starts: Tensor, counts: Tensor) -> Results:
            step = FixedStep(starts, end, *causal(batch, width, device))
            fused = self.head.fuse(features)
            positions = step.depths + starts.unsqueeze(1)
            hidden = self.head(fused, self._words(tokens, fused), positions, step, self.cache)
            hidden = rows_at(hidden, counts.unsqueeze(1) - 1)
            return hidden, *children_of(self._logits(hidden), plan.beam)

        features = torch.nn.utils.rnn.pad_sequence(waiting, batch_first=True)
        first = upload(starts, device)
        arguments = (
            torch.nn.functional.pad(features, (0, 0, 0, width - max(counts))),
            _next_tokens(history[:batch], first, width),
            first,
            upload(counts, device),
        )
        key = "catch up", batch, width, end, plan.beam
        self._hidden, *children = recordings.run(key, catch_up, arguments)
        self._caught_up(counts)
        # The search keeps the first level as it is, over further runs.
        first_level = Children(*(part.clone() for part in children))

        def expand(frontier: Frontier) -> Children:
            def grow(hidden: Tensor, begin: Tensor, *given: Tensor) -> Results:
                again = Frontier(frontier.depth, *given)
                step = FixedStep(begin.squeeze(1), end, again.visible, again.depths)
                hidden, children = self._grow(hidden, again, begin, step)
                return hidden, *children

            key = "grow", *frontier.visible.shape, end, self._hidden.shape[1]
            arguments = self._hidden, begin, *frontier[1:]
            self._hidden, *children = recordings.run(key, grow, arguments)
            return Children(*children)

        return first_level, expand

    def _run(
        self,
        slot: int,
        starts: Sequence[int],
        features: Tensor,
        tokens: Tensor,
        run: Callable[..., Any],
    ) -> Any:
        """Rows one behind the other from `slot` on, through the head or a part of it."""
        step = Step.chain(slot, starts, tokens.shape[1], tokens.device)
        self._check_length(step.end)
        positions = step.depths + upload(starts, tokens.device).unsqueeze(1)
        return run(features, self._words(tokens, features), positions, step, self.cache)

    def _check_length(self, rows: int) -> None:
        """Warn once where a text is longer than those the head was trained with."""
        if self._trained is None or rows <= self._trained:
            return
        log.warning(
            "the text has grown past %d tokens, the length that the head was trained for: it may "
            "draft badly from here on. The output is not affected. A window (--head-window, "
            "head_window=), as in 1024, lets it see recent tokens alone.",
            self._trained,
        )
        self._trained = None

    def _words(self, tokens: Tensor, like: Tensor) -> Tensor:
        """Embeddings of tokens in the head's dtype."""
        return self._embed(tokens).to(like.dtype)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.head.logits(hidden)
        return logits.masked_fill(self._unknown, -torch.inf) if self._masks else logits

    def _target_ids(self, ids: Tensor) -> Tensor:
        return self.head.target_ids[ids]


def _next_tokens(history: Tensor, starts: Tensor, width: int) -> Tensor:
    """int64 [B, W]: tokens behind the positions of W rows from `starts` int64 [B] on.

    Padding reads whatever token stands there; its rows are overwritten.
    """
    index = starts.unsqueeze(1) + 1 + torch.arange(width, device=history.device)
    return history.gather(1, index.clamp(max=history.shape[1] - 1))
