"""Choosing tokens for a batch of requests: their walk, and what is read of it on the host.

Joins the requests' settings (`Sampler`), their end rules where the walk must stop at them, and
their log-probabilities. It does not know where trees come from or what happens to the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graft.draft import Draft
from graft.grafting import Grafted
from graft.request import Drawn, Logprob, Request
from graft.sampling import Sampler, token_logprobs
from graft.sampling_params import SampleRequest
from graft.tree import Source, TokenTree
from graft.verify import Ends, Walk, walk

_ONE = 1 << 24  # confidences travel to the host as integers, in one piece with everything else


class RowOutcome(NamedTuple):
    """What one sequence's round came to, on the host."""

    path: list[int]  # accepted nodes
    block: list[Drawn]  # committed tokens: the accepted ones, then the bonus
    confidence: tuple[float, ...]  # at the checkpoints that were reached
    # Per accepted node, where it is known: its value, and its chance by retrieval alone.
    values: tuple[float, ...]
    unaided: tuple[float, ...]
    least: float  # the lowest value in the tree
    draft_nodes: int
    retrieved_nodes: int
    stage: int
    kept: int
    redirected: int
    lookups: int
    hits: int
    context_lookups: int
    context_hits: int
    unspent: int  # nodes that were not verified
    context_nodes: int
    accepted_context: int
    rows_written: int  # by the whole batch


class Chooser:
    """Chooses for the given requests, one per batch row, in this order."""

    def __init__(
        self, requests: Sequence[Request], vocab_size: int, token_count: int, device: torch.device
    ) -> None:
        rows = [
            SampleRequest(r.params, r.seed, r.row, len(r.prompt), tuple(r.stop_ids))
            for r in requests
        ]
        self._requests = tuple(requests)
        self._token_count = token_count
        self._sampler = Sampler(rows, vocab_size, token_count, device)
        widest = max((len(r.stop_ids) for r in requests), default=0)
        stops = [[*r.stop_ids, *[-1] * (widest - len(r.stop_ids))] for r in requests]
        self._stops = torch.tensor(stops, dtype=torch.int64, device=device)
        last = [len(r.prompt) + r.limit - 1 for r in requests]
        self._last = torch.tensor(last, device=device)  # position of the last token allowed
        banning = any(r.params.no_repeat_ngram_size for r in requests)
        self._must_end = self._sampler.host_bound or banning
        asked = [r.params.logprobs for r in requests]
        self._logprobs = max((n for n in asked if n is not None), default=None)

    def walk(self, tree: TokenTree, logits: Tensor, history: Tensor, length: Tensor) -> Walk:
        """Draw along every tree. A user's own processors see each output position once, and none
        behind a request's end; nor does an n-gram ban, which may leave no token there."""
        ends = self._end_rule() if self._must_end else None
        return walk(tree, logits, history, length, self._sampler.choose, ends)

    def read(
        self, draft: Draft, grafted: Grafted, path: Walk, logits: Tensor, written: Tensor
    ) -> list[RowOutcome]:
        """Bring a round's outcome to the host: the one wait for the device in a round (one more
        where log-probabilities are asked for)."""
        tree, levels = grafted.tree, path.tokens.shape[1]
        source = tree.sources.gather(1, path.nodes)
        proposed = [
            (tree.used & (tree.sources == s)).sum(1) for s in (Source.DRAFT, Source.RETRIEVED)
        ]
        numbers = [
            path.accepted,
            *proposed,
            draft.stage,
            grafted.kept,
            grafted.redirected,
            grafted.lookups,
            grafted.hits,
            grafted.context_lookups,
            grafted.context_hits,
            grafted.unspent,
            grafted.by_context.sum(1),
            _accepted(grafted.by_context, path),
            written.expand_as(path.accepted),
        ]
        columns = [path.tokens, path.nodes, source, *_valued(grafted, path)]
        parts = [*columns, torch.stack(numbers, 1), *_fixed(draft)]
        host = torch.cat(parts, dim=1).tolist()
        # The last draw of a row is its bonus; only there can the settings have left no token.
        self._sampler.check([row[row[len(columns) * levels]] for row in host])
        logprobs = self._read_logprobs(path, logits)
        out = []
        for row, known in zip(host, logprobs, strict=True):
            tokens, nodes, sources, *valued = (
                row[i * levels : (i + 1) * levels] for i in range(len(columns))
            )
            rest = row[len(columns) * levels :]
            accepted, *counts = rest[: len(numbers)]
            reached = [c / _ONE for c in rest[len(numbers) :] if c >= 0]
            # Level d visits the node that holds the token drawn at level d - 1.
            came_from = [Source(s) for s in sources[1 : accepted + 1]] + [Source.TARGET]
            drawn = zip(tokens[: accepted + 1], came_from, known, strict=False)
            out.append(
                RowOutcome(
                    nodes[1 : accepted + 1],
                    [Drawn(*d) for d in drawn],
                    tuple(reached),
                    *_worth(valued, accepted),
                    *counts,
                )
            )
        return out

    def _end_rule(self) -> Ends:
        looks = [request.look_ahead() for request in self._requests]
        if not any(looks):
            return self._ends

        def ends(token: Tensor, position: Tensor) -> Tensor:
            drawn = zip(looks, token.tolist(), strict=True)
            met = [look is not None and look(each) for look, each in drawn]
            return self._ends(token, position) | torch.tensor(met, device=token.device)

        return ends

    def _ends(self, token: Tensor, position: Tensor) -> Tensor:
        return (token.unsqueeze(1) == self._stops).any(1) | (position >= self._last)

    def _read_logprobs(self, path: Walk, logits: Tensor) -> list[list[Logprob | None]]:
        batch, levels = path.tokens.shape
        if self._logprobs is None:
            return [[None] * levels] * batch
        rows = torch.arange(batch, device=logits.device).unsqueeze(1)
        visited = logits[rows, path.nodes].flatten(0, 1)
        chosen, ids, values = token_logprobs(
            visited, path.tokens.flatten(), self._logprobs, self._token_count
        )
        found: list[Logprob | None] = [
            Logprob(c, dict(zip(i, v, strict=True)))
            for c, i, v in zip(chosen.tolist(), ids.tolist(), values.tolist(), strict=True)
        ]
        return [found[b * levels : (b + 1) * levels] for b in range(batch)]


def _accepted(nodes: Tensor, path: Walk) -> Tensor:
    """How many of `nodes` (bool [B, N]) were accepted: int64 [B]."""
    level = torch.arange(path.nodes.shape[1], device=nodes.device)
    inside = (level > 0) & (level <= path.accepted.unsqueeze(1))
    return (nodes.gather(1, path.nodes) & inside).sum(1)


def _valued(grafted: Grafted, path: Walk) -> list[Tensor]:
    """Values, chances by retrieval alone and the lowest value of the tree as int64 [B, levels];
    nothing where values are not known."""
    if grafted.values is None or grafted.unaided is None:
        return []
    least = grafted.values.where(grafted.tree.used, 1.0).amin(1, keepdim=True)
    parts = [t.gather(1, path.nodes) for t in (grafted.values, grafted.unaided)]
    return [(t * _ONE).long() for t in (*parts, least.expand(path.nodes.shape))]


def _worth(
    valued: Sequence[Sequence[int]], accepted: int
) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    if not valued:
        return (), (), 0.0
    values, unaided, least = ([n / _ONE for n in row] for row in valued)
    return tuple(values[1 : accepted + 1]), tuple(unaided[1 : accepted + 1]), least[0]


def _fixed(draft: Draft) -> list[Tensor]:
    """Confidences as int64 [B, C]; none is negative."""
    return [(draft.confidence * _ONE).long()] if draft.confidence.shape[1] else []
