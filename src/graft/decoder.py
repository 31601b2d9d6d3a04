"""The round: draft, graft, verify, commit, update, for a batch of running requests.

`BatchDecoder` holds the requests that run at this moment. They share one forward per round and
differ in length, acceptance and settings; they come and go one by one. Running requests fill the
slots 0 .. n-1 without gaps.

It does not know text, models, or how requests reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graft.aside import Aside, side_stream
from graft.choice import Chooser, RowOutcome
from graft.draft import Draft, no_draft, sat_out
from graft.drafters.base import Drafter
from graft.grafter import Grafter, TemplateGrafter
from graft.grafting import Grafted, graft
from graft.metrics import RoundRecord, RoundTimes, Stopwatch
from graft.pruning import DraftPlan, dense
from graft.request import Request, StreamToken
from graft.retrieval import NoRetriever
from graft.spending import Spending, Spent
from graft.target import Target
from graft.tree import TokenTree
from graft.upload import upload

# Grafts nothing: the root alone is verified, which is a round of plain decoding.
BARE = TemplateGrafter(NoRetriever(), 0)


class RoundView(NamedTuple):
    """A round as it was decided, for observers. Reading its tensors waits for the device."""

    tree: TokenTree  # verified, [B, N]
    scores: Tensor  # float32 [B, N] log-probability of each path, NaN where nobody drafted it
    shared: Tensor  # bool [B, N] draft nodes that were retrieved too
    rows: Sequence[RowOutcome]
    requests: Sequence[Request]  # in batch order
    records: Sequence[RoundRecord]
    plan: DraftPlan


Observer = Callable[[RoundView], None]


class BatchDecoder:
    """Running requests and their rounds.

    Args:
        target, drafter: opened with enough slots.
        drafter, grafter: who fills the trees.
        spending: how deep rounds draft and what they verify; its budget 0 is plain decoding.
        token_count: ids the tokenizer knows; others are never chosen.
        watch: is shown every round.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        grafter: Grafter,
        *,
        spending: Spending,
        token_count: int,
        watch: Observer | None = None,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.grafter = grafter
        self.spending = spending
        self.token_count = token_count
        self.running: list[Request] = []
        self.last_records: list[RoundRecord] = []  # of the last round, one per sequence
        self._watch = watch
        self._stream = side_stream(target.device)
        self._lengths: list[int] = []  # committed tokens per slot, the root included
        self._history = torch.zeros(0, 0, dtype=torch.int64, device=target.device)
        self._chooser: Chooser | None = None  # of the running requests, made when they round

    @torch.inference_mode()
    def round(self) -> list[StreamToken]:
        """One target forward for all running requests; returns the tokens it committed."""
        watch = Stopwatch(self.target.device)
        history, length, roots = self._state()
        chooser = self._chooser = self._chooser or self._new_chooser(self.running)
        watch.lap("other")
        plan = self.spending.plan(len(self.running))
        trees = not self.drafter.waits or self.spending.speculates()
        grafter = self.grafter if trees else BARE
        lookup = Aside(lambda: grafter.look_up(roots), self._stream)
        drafting = trees and self._drafts(history, length)
        watch.lap("graft")
        if drafting:
            draft = self.drafter.draft(history, length, plan)
        else:
            draft = sat_out(roots, plan)
            self.drafter.keep_up(history, length)
        watch.lap("draft")
        grafted = grafter.graft(draft, lookup.result(), history, length)
        grafted = self._sized(grafted, draft)
        watch.lap("graft")
        seen = self.target.verify(grafted.tree)
        watch.lap("verify")
        path = chooser.walk(grafted.tree, seen.logits, history, length)
        watch.lap("other")
        written = grafter.learn(grafted, seen.logits, path, history, length)
        rows = chooser.read(draft, grafted, path, seen.logits, written)
        self.target.commit([row.path for row in rows])
        self.drafter.commit([row.path for row in rows], seen.features)
        watch.lap("commit_update")
        self.spending.settle([_spent(row) for row in rows])
        return self._deliver(rows, plan, draft, grafted, watch.read(lookup.seconds()))

    @torch.inference_mode()
    def admit(self, request: Request, reuse: Sequence[int] = ()) -> list[StreamToken]:
        """Prefill a request into the next slot and draw its first token.

        `reuse`: tokens behind the cache rows that the slot still holds from an earlier turn.
        """
        watch = Stopwatch(self.target.device)
        slot, context = len(self.running), request.context
        self._reserve(slot + 1, len(context) + 1)
        tokens = torch.tensor(context, device=self.target.device)
        self._history[slot, : len(context)] = tokens
        logits = self._prefill(request, slot, tokens, _common(reuse, context[:-1]))
        # The first token is the bonus of a tree that has only its root: it belongs to no round.
        draft = no_draft(tokens[-1:], dense(0, 1, 1))
        grafted = graft(draft, None, 0)
        chooser = self._new_chooser([request])
        length = torch.tensor([len(context)], device=self.target.device)
        logits = logits.expand(1, 1, -1)
        path = chooser.walk(grafted.tree, logits, self._history[slot : slot + 1], length)
        (row,) = chooser.read(draft, grafted, path, logits, length.new_zeros(()))
        watch.lap("verify")
        request.prefill_seconds = watch.read().total
        self.running.append(request)
        self._lengths.append(len(context) + 1)
        out = request.take(row.block)
        self._chooser = None
        self._retire_finished()
        return out

    @torch.inference_mode()
    def drop(self, request: Request) -> None:
        """End a running request where it stands; its slot is free again."""
        request.finish_reason = "cancelled"
        self._retire_finished()

    def _prefill(self, request: Request, slot: int, tokens: Tensor, common: int) -> Tensor:
        """Run what is new of a prompt through target and drafter; logits [V] at its end."""
        drafter = self.drafter
        cached = request.cached_tokens = drafter.reusable(slot, common) if common else 0
        self.target.truncate(slot, cached)
        drafter.truncate(slot, cached)
        observe = self.grafter.admit(slot, tokens, common)
        absorb = None
        if drafter.feature_layers:

            def absorb(features: Tensor) -> None:
                drafter.prefill(slot, tokens, features)

        logits = self.target.prefill(slot, tokens[cached:], observe, absorb)
        if not drafter.feature_layers:
            drafter.prefill(slot, tokens, None)
        return logits

    def _state(self) -> tuple[Tensor, Tensor, Tensor]:
        """History [B, T], length [B] and roots [B] of the running requests (int64)."""
        length = upload(self._lengths, self.target.device)
        # A walk writes its draws behind the length, and padded rows of a drafter read there.
        room = max(self._lengths) + self.spending.budget + 2
        self._reserve(len(self.running), room)
        history = self._history[: len(self.running)]
        return history, length, history.gather(1, length.unsqueeze(1) - 1).squeeze(1)

    def _drafts(self, history: Tensor, length: Tensor) -> bool:
        """Whether the drafter is asked in this round."""
        if not self.drafter.waits:
            return True
        return self.spending.drafts(lambda: self.grafter.promise(history, length))

    def _sized(self, grafted: Grafted, draft: Draft) -> Grafted:
        """Without the slots that are not worth verifying."""
        width = self.spending.width(grafted.tree.used, grafted.values, draft.steps)
        return grafted.narrow(width)

    def _deliver(
        self,
        rows: Sequence[RowOutcome],
        plan: DraftPlan,
        draft: Draft,
        grafted: Grafted,
        times: RoundTimes,
    ) -> list[StreamToken]:
        """Hand every request its block and its record; let finished ones go."""
        out: list[StreamToken] = []
        self.last_records = [
            _record(row, plan, draft.steps, len(rows), context, times)
            for row, context in zip(rows, self._lengths, strict=True)
        ]
        if self._watch is not None:
            shown = tuple(self.running)
            seen = (grafted.tree, grafted.scores, grafted.shared)
            self._watch(RoundView(*seen, rows, shown, self.last_records, plan))
        for slot, (request, row) in enumerate(zip(self.running, rows, strict=True)):
            request.records.append(self.last_records[slot])
            self._lengths[slot] += len(row.block)
            out += request.take(row.block)
        self._retire_finished()
        return out

    def _retire_finished(self) -> None:
        """Close the gaps that finished requests leave: the last running one moves in."""
        for slot in reversed(range(len(self.running))):
            if not self.running[slot].finished:
                continue
            self._chooser = None
            last = len(self.running) - 1
            if slot < last:
                for part in (self.target, self.drafter, self.grafter):
                    part.move(last, slot)
                self._history[slot] = self._history[last]
                self._lengths[slot], self.running[slot] = self._lengths[last], self.running[last]
            self._lengths.pop()
            self.running.pop()

    def _new_chooser(self, requests: Sequence[Request]) -> Chooser:
        target = self.target
        return Chooser(requests, target.vocab_size, self.token_count, target.device)

    def _reserve(self, slots: int, length: int) -> None:
        """Make the history hold `length` tokens for each of `slots` sequences."""
        have, room = self._history.shape
        if slots <= have and length <= room:
            return
        shape = (max(slots, have), max(2 * room, length, 256) if length > room else room)
        history = self._history.new_zeros(shape)
        history[:have, :room] = self._history
        self._history = history


def _spent(row: RowOutcome) -> Spent:
    path = len(row.path), row.values, row.unaided
    return Spent(row.confidence, row.stage, *path, row.least)


def _record(
    row: RowOutcome, plan: DraftPlan, steps: int, batch: int, context: int, times: RoundTimes
) -> RoundRecord:
    accepted = [drawn.source.name.lower() for drawn in row.block[:-1]]
    kept = min(row.kept, row.draft_nodes)  # a drafter may propose what it has retrieved
    return RoundRecord(
        stage=plan.stage_name(row.stage),
        confidence=row.confidence,
        draft_steps=steps,
        kept_draft=kept,
        released_slots=plan.budget - kept,
        redirected=row.redirected,
        proposed_draft=row.draft_nodes,
        proposed_retrieved=row.retrieved_nodes,
        empty_slots=plan.budget - row.draft_nodes - row.retrieved_nodes - row.unspent,
        unspent_slots=row.unspent,
        accepted_draft=accepted.count("draft"),
        accepted_retrieved=accepted.count("retrieved"),
        lookups=row.lookups,
        hits=row.hits,
        context_lookups=row.context_lookups,
        context_hits=row.context_hits,
        proposed_context=row.context_nodes,
        accepted_context=row.accepted_context,
        rows_written=row.rows_written,
        batch=batch,
        context=context,
        times=times,
    )


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
