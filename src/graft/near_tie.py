"""How near a choice came to being another one.

Purpose: two shapes of the same forward may round differently and so break a near-tie
differently. The margin says how much rounding a choice can bear, so that a comparison of two
decoders can tell such a near-tie from a fault.

Invariant: a choice with margin m stands if every processed logit / T moves by less than m / 2.
(First-order exact: no constant is hidden. The settings that read the history are left out: they
move a logit by a fixed amount, or by a factor.)

What it does not know: where the scores come from. The definition is ours.

A margin is a gap of the kind "score i less score j", in units of logit / T; for greedy rows,
of logits. Another token wins only if it makes up for the winner's lead, and is let in by every
cut that bars it: the larger of these gaps counts. The winner loses its place if a cut reaches
it. For top-p the mass at the cut counts by its log-odds, which change by no more than the gap.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from graft.ranking import best_scores
from graft.warpers import Warpers

__all__ = ["edges", "least_gap"]

_INF = float("inf")


def least_gap(scores: Tensor, winner: Tensor, need: Tensor | None) -> Tensor:
    """[B]: the least of max(lead over the token, its need [B, V]), over all but the winner."""
    lead = scores.gather(1, winner) - scores
    if need is not None:
        lead = lead.maximum(need)
    return lead.scatter(1, winner, _INF).amin(dim=1)


def edges(warpers: Warpers, scores: Tensor, winner: Tensor) -> tuple[Tensor, Tensor]:
    """How far the cuts are from letting each token in, and the winner [B, 1] out.

    Args:
        warpers: the cuts.
        scores: [B, V] processed logits / T.
        winner: [B, 1] int64.

    Returns:
        need [B, V], 0 for tokens that are in; slack [B, 1], infinite without a cut.
    """
    ranked, _ = best_scores(scores, scores.shape[1])
    best = scores.gather(1, winner)
    pairs = [(torch.zeros_like(scores), torch.full_like(best, _INF))]
    if warpers.top_k is not None:
        pairs.append(_rank_edge(scores, best, ranked, warpers.top_k))
    if warpers.top_p is not None:
        pairs.append(_nucleus_edge(warpers, warpers.top_p, scores, best, ranked))
    if warpers.log_min_p is not None:
        # The cut hangs on the best score; for the best token itself, on the second best.
        rival = ranked[:, :2][:, -1:].where(best >= ranked[:, :1], ranked[:, :1])
        slack = best - rival - warpers.log_min_p
        pairs.append((ranked[:, :1] + warpers.log_min_p - scores, slack))
    needs, slacks = zip(*pairs, strict=True)
    # A banned token's need may be a difference of two infinities; its lead bars it already.
    numbers = [need.nan_to_num(nan=0.0, posinf=_INF, neginf=0.0) for need in needs]
    return functools.reduce(torch.maximum, numbers), functools.reduce(torch.minimum, slacks)


def _rank_edge(scores: Tensor, best: Tensor, ranked: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Need and slack of a cut below the ``kept`` [B, 1] best tokens; kept = V is no cut."""
    last = ranked.shape[1] - 1
    beyond = ranked.gather(1, kept.clamp(max=last)).where(kept <= last, -_INF)
    return ranked.gather(1, kept - 1) - scores, best - beyond


def _nucleus_edge(
    warpers: Warpers, top_p: Tensor, scores: Tensor, best: Tensor, ranked: Tensor
) -> tuple[Tensor, Tensor]:
    """Need and slack of the nucleus, which is taken by rank: so equals at its edge leave none."""
    on = top_p <= 1.0
    mass = warpers.mass(scores, ranked)
    kept = 1 + (mass[:, :-1] < top_p).sum(dim=1, keepdim=True)
    kth = warpers.kth(ranked)
    if kth is not None:
        kept = kept.minimum((ranked >= kth).sum(dim=1, keepdim=True))
    kept = kept.where(on, ranked.shape[1])
    need, slack = _rank_edge(scores, best, ranked, kept)
    # p lies between the mass of all that stay but the last, and of all that stay.
    below = mass.gather(1, (kept - 2).clamp(min=0)).where(kept > 1, 0.0)
    above = mass.gather(1, kept - 1)
    entry = (_log_odds(above) - _log_odds(top_p)).where(on, _INF)
    slack = slack.minimum((_log_odds(top_p) - _log_odds(below)).where(on, _INF))
    if warpers.top_k is not None and kth is not None:
        # Equals at the k-th place all weigh in the mass, so a tie that breaks there moves it.
        _, gap = _rank_edge(scores, kth, ranked, warpers.top_k)
        slack = slack.minimum(gap.where(on & (kth > -_INF), _INF))
    return need.minimum(entry), slack


def _log_odds(share: Tensor) -> Tensor:
    share = share.clamp(max=1.0)
    return share.log() - torch.log1p(-share)
