"""The round: draft, graft, verify, commit, update, for a batch of running requests.

`BatchDecoder` holds the requests that run at this moment. They share one forward per round and
differ in length, acceptance and settings; they come and go one by one. Running requests fill the
slots 0 .. n-1 without gaps.

It does not know text, models, or how requests reach it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graft.choice import Chooser, RowOutcome
from graft.drafters.base import Drafter
from graft.grafting import Lookups, Retriever
from graft.metrics import RoundRecord, RoundTimes, Stopwatch
from graft.request import Request, StreamToken
from graft.target import Target
from graft.tree import TokenTree, root_tree


class BatchDecoder:
    """Running requests and their rounds.

    Args:
        target: opened with enough slots.
        drafter, retriever: who fills the trees.
        budget: K, nodes per tree without the root; 0 is plain decoding.
        token_count: ids the tokenizer knows; others are never chosen.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        retriever: Retriever,
        *,
        budget: int,
        token_count: int,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.retriever = retriever
        self.budget = budget
        self.token_count = token_count
        self.running: list[Request] = []
        self.last_records: list[RoundRecord] = []  # of the last round, one per sequence
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
        tree = self.drafter.draft(roots, self.budget)
        watch.lap("draft")
        tree, lookups = self.retriever.fill(tree, self.budget)
        tree = _drop_empty(tree)
        watch.lap("graft")
        seen = self.target.verify(tree)
        watch.lap("verify")
        path = chooser.walk(tree, seen.logits, history, length)
        watch.lap("other")
        written = self.retriever.update(tree, seen.logits, path)
        rows = chooser.read(tree, path, seen.logits, lookups, written)
        self.target.commit([row.path for row in rows])
        self.drafter.commit([row.path for row in rows], seen.features)
        watch.lap("commit_update")
        return self._deliver(rows, watch.read())

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
        request.cached_tokens = _common(reuse, context[:-1])
        self.target.truncate(slot, request.cached_tokens)
        observe = self.retriever.learn_prompt(tokens)
        logits = self.target.prefill(slot, tokens[request.cached_tokens :], observe)
        # The first token is the bonus of a tree that has only its root: it belongs to no round.
        tree, logits = root_tree(tokens[-1:]), logits.expand(1, 1, -1)
        chooser = self._new_chooser([request])
        length = torch.tensor([len(context)], device=self.target.device)
        path = chooser.walk(tree, logits, self._history[slot : slot + 1], length)
        nothing = Lookups(torch.zeros_like(length), torch.zeros_like(length))
        (row,) = chooser.read(tree, path, logits, nothing, length.new_zeros(()))
        watch.lap("verify")
        request.prefill_seconds = watch.read().total
        self.running.append(request)
        self._lengths.append(len(context) + 1)
        out = request.take(row.block)
        self._chooser = None
        self._retire_finished()
        return out

    def _state(self) -> tuple[Tensor, Tensor, Tensor]:
        """History [B, T], length [B] and roots [B] of the running requests (int64)."""
        length = torch.tensor(self._lengths, device=self.target.device)
        room = max(self._lengths) + self.budget + 2  # a walk writes its draws behind the length
        self._reserve(len(self.running), room)
        history = self._history[: len(self.running)]
        return history, length, history.gather(1, length.unsqueeze(1) - 1).squeeze(1)

    def _deliver(self, rows: Sequence[RowOutcome], times: RoundTimes) -> list[StreamToken]:
        """Hand every request its block and its record; let finished ones go."""
        out: list[StreamToken] = []
        self.last_records = []
        for slot, (request, row) in enumerate(zip(self.running, rows, strict=True)):
            record = _record(row, self.budget, len(rows), self._lengths[slot], times)
            request.records.append(record)
            self.last_records.append(record)
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
                self.target.move(last, slot)
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


def _drop_empty(tree: TokenTree) -> TokenTree:
    """On a CPU each row of a forward costs time and a look at the tree costs none, so slots that
    are empty in every tree are left out. Elsewhere shapes stay fixed."""
    if tree.tokens.device.type != "cpu":
        return tree
    return tree.narrow(int(tree.used.sum(1).max()))


def _record(
    row: RowOutcome, budget: int, batch: int, context: int, times: RoundTimes
) -> RoundRecord:
    accepted = [drawn.source.name.lower() for drawn in row.block[:-1]]
    return RoundRecord(
        proposed_draft=row.draft_nodes,
        proposed_retrieved=row.retrieved_nodes,
        empty_slots=budget - row.draft_nodes - row.retrieved_nodes,
        accepted_draft=accepted.count("draft"),
        accepted_retrieved=accepted.count("retrieved"),
        lookups=row.lookups,
        hits=row.hits,
        rows_written=row.rows_written,
        batch=batch,
        context=context,
        times=times,
    )


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
