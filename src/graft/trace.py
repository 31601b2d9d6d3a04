"""Provenance: which tokens of a generation came from where, and the tree behind each of them.

A `Tracer` looks at every round of one request and copies what it saw to the host; with the tokens
that were streamed it becomes a `Trace`, which is plain data.

Invariants: the texts of `Trace.committed` joined are the result's text, and its ids are the
result's ids. What a round committed behind the end of the request is counted, never shown.

Looking costs a copy to the host per round; it changes nothing of what is decoded. How a trace is
shown is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from graft.metrics import RoundRecord
from graft.pruning import DraftPlan
from graft.request import Result, StreamToken
from graft.text import Decode
from graft.tree import Source

if TYPE_CHECKING:
    from graft.decoder import RoundView

__all__ = ["Committed", "TokenTexts", "Trace", "TraceNode", "TraceRound", "Tracer"]


class Committed(NamedTuple):
    """One token of the answer. Texts joined are the whole text; one may be empty."""

    token: int
    text: str
    source: str  # "target", "draft" or "retrieved"


@dataclass(frozen=True)
class TraceNode:
    """A node of a verified tree.

    Attributes:
        text: the token decoded alone; bytes that are no character become U+FFFD.
        parent: index of the parent in the round's nodes; 0 for the root itself.
        source: "draft" or "retrieved"; "target" for the root.
        probability: the draft model's probability of the node's path; None where it gave none, and
            for the root.
        redirected: it was drafted and retrieved; the retrieved entry was redirected to it.
    """

    token: int
    text: str
    parent: int
    depth: int
    source: str
    probability: float | None
    redirected: bool
    accepted: bool


@dataclass(frozen=True)
class TraceRound:
    """A round: its tree (node 0 is the root), what it committed, and its numbers.

    `committed` holds the accepted tokens and then the bonus, up to the end of the request.
    """

    nodes: tuple[TraceNode, ...]
    committed: tuple[Committed, ...]
    record: RoundRecord
    plan: DraftPlan

    @property
    def trimmed(self) -> int:
        """Tokens that the round committed behind the end of the request."""
        return self.record.accepted + 1 - len(self.committed)


@dataclass(frozen=True)
class Trace:
    """A finished generation with its rounds.

    Attributes:
        prompt: as the user gave it.
        settings: what else to tell of how it was made, by name; plain values.
        first: the token that was drawn from the prefill and belongs to no round.
        alone: text of each committed token, decoded alone, by token id.
    """

    prompt: str
    model: str
    policy: str
    settings: Mapping[str, Any]
    first: Committed
    rounds: tuple[TraceRound, ...]
    alone: Mapping[int, str]
    result: Result

    @property
    def committed(self) -> tuple[Committed, ...]:
        """Every token of the answer, in order."""
        return (self.first, *(c for r in self.rounds for c in r.committed))


class TokenTexts:
    """The text of single tokens, each decoded once.

    A tokenizer may drop the space before a first word, so a token is decoded behind itself.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        if token not in self._known:
            alone, twice = self._decode([token]), self._decode([token, token])
            self._known[token] = twice[len(alone) :] if twice.startswith(alone) else alone
        return self._known[token]


class _Seen(NamedTuple):
    """A round as `Tracer.watch` saw it, on the host."""

    nodes: tuple[TraceNode, ...]
    block: int  # tokens the round committed
    record: RoundRecord
    plan: DraftPlan


class Tracer:
    """Collects the rounds of one request.

    Args:
        text_of: the text of a single token.
        request: index of the request in its call; rounds without it are passed over.
    """

    def __init__(self, text_of: TokenTexts, request: int = 0) -> None:
        self._text_of = text_of
        self._request = request
        self._seen: list[_Seen] = []

    def watch(self, view: RoundView) -> None:
        """Take in a round. Copies one row of the tree and of the scores [B, N] to the host."""
        indices = [request.index for request in view.requests]
        if self._request not in indices:
            return
        row = indices.index(self._request)
        outcome = view.rows[row]
        nodes = self._nodes(view, row, frozenset(outcome.path))
        self._seen.append(_Seen(nodes, len(outcome.block), view.records[row], view.plan))

    def trace(
        self,
        tokens: Sequence[StreamToken],
        result: Result,
        *,
        prompt: str,
        model: str,
        policy: str,
        settings: Mapping[str, Any],
    ) -> Trace:
        """Join the rounds with the tokens that the request streamed.

        Raises:
            ValueError: if these tokens are not what the rounds committed: some were not watched.
        """
        given = [Committed(t.token_id, t.text, t.source.name.lower()) for t in tokens]
        rounds, start = [], 1
        for nodes, block, record, plan in self._seen:
            rounds.append(TraceRound(nodes, tuple(given[start : start + block]), record, plan))
            start += block
        if not given or not start - _last_block(self._seen) < len(given) <= start:
            raise ValueError(
                f"{len(given)} tokens do not fit the {len(self._seen)} rounds that were watched: "
                "watch all rounds of one generation, and give all of its tokens"
            )
        return Trace(
            prompt=prompt,
            model=model,
            policy=policy,
            settings=dict(settings),
            first=given[0],
            rounds=tuple(rounds),
            alone={c.token: self._text_of(c.token) for c in given},
            result=result,
        )

    def _nodes(self, view: RoundView, row: int, path: frozenset[int]) -> tuple[TraceNode, ...]:
        tree = view.tree
        used = int(tree.used[row].sum())  # used nodes come first
        columns = [tree.tokens, tree.parents, tree.depths, tree.sources, view.scores, view.shared]
        host = [column[row, :used].tolist() for column in columns]
        return tuple(
            TraceNode(
                token,
                self._text_of(token),
                parent,
                depth,
                Source(source).name.lower(),
                _probability(score) if index else None,
                shared,
                index in path,
            )
            for index, (token, parent, depth, source, score, shared) in enumerate(
                zip(*host, strict=True)
            )
        )


def _probability(score: float) -> float | None:
    """Of a summed log-probability, whose rounding may lift it above 0."""
    return None if math.isnan(score) else min(math.exp(score), 1.0)


def _last_block(seen: Sequence[_Seen]) -> int:
    """Tokens that the last round committed; of the prefill, if there was no round."""
    return seen[-1].block if seen else 1
