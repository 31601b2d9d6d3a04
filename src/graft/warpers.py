"""Temperature, top-k, top-p and min-p, as one cut per row.

Purpose: a row keeps the tokens whose score (processed logit / T) is at or above its cut. Each
setting gives a cut of its own, and the greatest counts, as if they ran one after the other in the
order of Transformers: top-k, then top-p over what is left, then min-p.

Invariant: a row's cut depends on that row alone, and on its scores, not on their order. Scores
equal to the cut are all kept, for top-k as in Transformers, and for top-p too (ours:
Transformers keeps some of the equals, by their place in an unstable sort).

What it does not know: history, noise, the draw. Greedy rows have temperature 1 and no cut.

Shapes: scores [B, V] float32; settings and cuts [B, 1].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from graft.processors import column
from graft.ranking import best_scores
from graft.sampling_params import SampleRequest, SamplingParams

__all__ = ["Kept", "Warpers"]

_INF = float("inf")
_NO_TOP_P: Final = 2.0  # more than all mass

# On a CPU look at the best few tokens first, and at more only if they are not enough: a sort of
# the vocabulary costs more than all else together. Measured, ours.
_FIRST_WINDOW: Final = 64
_WINDOW_GROWTH: Final = 8


class Kept(NamedTuple):
    """What the cuts leave of a batch of scores."""

    cut: Tensor | None  # [B, 1] the least score that stays, -inf for no cut; None: none anywhere
    few: tuple[Tensor, Tensor] | None  # scores and ids [B, W] that hold all that can be chosen


class _Settings(NamedTuple):
    temperature: float
    top_k: int  # V is off
    top_p: float
    log_min_p: float  # -inf is off
    open: bool  # any token may be chosen: sampled without a cut


def _settings(params: SamplingParams, vocab_size: int) -> _Settings:
    if params.greedy:
        return _Settings(1.0, vocab_size, _NO_TOP_P, -_INF, open=False)
    top_k = min(params.top_k or vocab_size, vocab_size)
    top_p = params.top_p if params.top_p < 1.0 else _NO_TOP_P
    log_min_p = math.log(params.min_p) if params.min_p > 0.0 else -_INF
    uncut = top_k == vocab_size and top_p == _NO_TOP_P and log_min_p == -_INF
    return _Settings(params.temperature, top_k, top_p, log_min_p, open=uncut)


class Warpers:
    """The warpers of a batch of requests.

    Args:
        requests: one per batch row.
        vocab_size: V.
        device: where the scores will be.
    """

    def __init__(
        self, requests: Sequence[SampleRequest], vocab_size: int, device: torch.device
    ) -> None:
        rows = [_settings(request.params, vocab_size) for request in requests]
        sampled = [not request.params.greedy for request in requests]
        self.idle = not any(sampled)  # every row is greedy
        # [B, 1] 1 in rows that sample, 0 in greedy ones; None if all sample.
        self.sampled = column([float(each) for each in sampled], 1.0, device)
        self.temperature = column([row.temperature for row in rows], 1.0, device)
        self.top_k = column([row.top_k for row in rows], vocab_size, device)
        self.top_p = column([row.top_p for row in rows], _NO_TOP_P, device)
        self.log_min_p = column([row.log_min_p for row in rows], -_INF, device)
        self._vocab_size = vocab_size
        self._widest = max((row.top_k for row in rows if row.top_k < vocab_size), default=0)
        self._any_open = any(row.open for row in rows)
        # Top-k bounds every nucleus, so that the best `widest` scores and their equals decide it.
        self._bounded = all(row.top_k < vocab_size for row in rows if row.top_p <= 1.0)
        # Asking whether a window is enough would make an accelerator wait.
        self._may_ask = device.type == "cpu"

    def scaled(self, scores: Tensor) -> Tensor:
        """Scores over the temperature; [B, V] -> [B, V], in place."""
        return scores if self.temperature is None else scores.div_(self.temperature)

    def keep(self, scores: Tensor, alive: Tensor) -> Kept:
        """The cut of scores [B, V], already scaled; on a CPU with the few that matter, if few.

        Rows that are not ``alive`` [B] do not make others look at more tokens.
        """
        if self.top_k is None and self.top_p is None and self.log_min_p is None:
            return Kept(None, None)
        for window in self._windows():
            few = best_scores(scores, window)
            cut = self._cut(scores, few[0])
            if self._may_ask and self._enough(few[0], cut, alive):
                return Kept(cut, None if self._any_open else few)
        return Kept(cut, None)

    def _windows(self) -> Iterator[int]:
        """How many of the best scores to look at; the last is enough in any case."""
        if not self._may_ask:
            yield max(self._widest, 1) if self._bounded else self._vocab_size
            return
        window = max(2 * self._widest, _FIRST_WINDOW)
        # Beyond that a ranking costs as much as a sort.
        while window * _WINDOW_GROWTH <= self._vocab_size:
            yield window
            window *= _WINDOW_GROWTH
        yield self._vocab_size

    def _enough(self, ranked: Tensor, cut: Tensor, alive: Tensor) -> bool:
        """True if all that stays is among the ranked scores, in every row; reads one value."""
        # A row without a cut of its own is greedy (or open, for which no window is enough): its
        # best score and that one's equals must be there.
        least = ranked[:, :1].where(cut == -_INF, cut)
        kth = self.kth(ranked)
        if kth is not None:
            # All equals of the k-th score weigh in the mass, even where top-p then cuts them off.
            least = least.where(kth == -_INF, kth)
        return bool(((ranked[:, -1:] < least) | ~alive[:, None]).all())

    def kth(self, ranked: Tensor) -> Tensor | None:
        """[B, 1]: each row's k-th best score, -inf where top-k is off; None if off in all."""
        if self.top_k is None:
            return None
        place = (self.top_k - 1).clamp(max=ranked.shape[1] - 1)
        return ranked.gather(1, place).where(self.top_k < self._vocab_size, -_INF)

    def _cut(self, scores: Tensor, ranked: Tensor) -> Tensor:
        kth = self.kth(ranked)
        cuts = [] if kth is None else [kth]
        if self.top_p is not None:
            # A token stays if the mass of those above it has not reached p.
            above = (self.mass(scores, ranked)[:, :-1] < self.top_p).sum(dim=1, keepdim=True)
            cuts.append(ranked.gather(1, above).where(self.top_p <= 1.0, -_INF))
        if self.log_min_p is not None:
            cuts.append(ranked[:, :1] + self.log_min_p)
        return functools.reduce(torch.maximum, cuts)

    def mass(self, scores: Tensor, ranked: Tensor) -> Tensor:
        """[B, W]: the probability of each ranked token and all above it, after top-k."""
        best = ranked[:, :1]
        weight = (ranked - best).exp_()
        kth = self.kth(ranked)
        if kth is None:
            return weight.cumsum(dim=1) / self._total(scores, best)
        weight = weight.masked_fill_(ranked < kth, 0.0)
        total = weight.sum(dim=1, keepdim=True)
        if not self._may_ask:
            # Equals of the k-th score may lie beyond a window that nobody asked about.
            missed = (scores == kth).sum(dim=1, keepdim=True) - (ranked == kth).sum(1, keepdim=True)
            total = total + missed * (kth - best).exp()
        if not self._bounded:
            total = total.where(kth > -_INF, self._total(scores, best))
        return weight.cumsum(dim=1) / total

    @staticmethod
    def _total(scores: Tensor, best: Tensor) -> Tensor:
        """[B, 1]: the weight of the whole vocabulary, where the best token weighs 1."""
        return (scores.logsumexp(dim=1, keepdim=True) - best).exp_()
