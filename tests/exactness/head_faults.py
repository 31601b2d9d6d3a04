"""Faults on purpose of a head's state, put in by hand.

By the theorem none of them can change a token: a wrong draft is a legal tree like any other. So no
comparison of answers sees them; the trees themselves must be looked at (`test_head_state`).
Each takes a drafter and a monkeypatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from torch import Tensor

from graft.attention import Step
from graft.cache import KVCache
from graft.drafters.eagle3.drafter import Eagle3Drafter

HeadFault = Callable[[Eagle3Drafter, pytest.MonkeyPatch], None]


def uncommitted_kept(drafter: Eagle3Drafter, patch: pytest.MonkeyPatch) -> None:
    """Accepted rows of the tree stay as if they were final: made of the head's own features."""
    commit = drafter.commit

    def keep(paths: Sequence[Sequence[int]], features: Tensor | None) -> None:
        commit(paths, features)
        for slot, path in enumerate(paths):
            drafter.cache.lengths[slot] += len(path)
            drafter._waiting[slot] = drafter._waiting[slot][len(path) :]

    patch.setattr(drafter, "commit", keep)


def late_positions(drafter: Eagle3Drafter, patch: pytest.MonkeyPatch) -> None:
    """Rows of the tree from its second level on stand one position too far."""
    forward = drafter.head.forward

    def late(
        features: Tensor, words: Tensor, positions: Tensor, step: Step, cache: KVCache
    ) -> Tensor:
        return forward(features, words, positions + int(step.offset > 0), step, cache)

    patch.setattr(drafter.head, "forward", late)


def neighbours_features(drafter: Eagle3Drafter, patch: pytest.MonkeyPatch) -> None:
    """Features of the node before the accepted one."""
    commit = drafter.commit

    def shifted(paths: Sequence[Sequence[int]], features: Tensor | None) -> None:
        commit([[node - 1 for node in path] for path in paths], features)

    patch.setattr(drafter, "commit", shifted)


def late_features(drafter: Eagle3Drafter, patch: pytest.MonkeyPatch) -> None:
    """Each row reads the feature of the token that it embeds, not of the one before."""
    commit = drafter.commit

    def shifted(paths: Sequence[Sequence[int]], features: Tensor | None) -> None:
        commit(paths, features)
        drafter._waiting = [rows.roll(-1, 0) for rows in drafter._waiting]

    patch.setattr(drafter, "commit", shifted)


def forgotten_move(drafter: Eagle3Drafter, patch: pytest.MonkeyPatch) -> None:
    """The waiting features of a sequence that moves stay behind."""
    patch.setattr(drafter, "move", lambda source, to: drafter.cache.move(source, to))


def normed_feedback(drafter: Eagle3Drafter, patch: pytest.MonkeyPatch) -> None:
    """What a child reads has gone through the final norm, though this head does not want it."""
    patch.setattr(drafter.head, "feedback", drafter.head.norm.forward)


HEAD_FAULTS: list[HeadFault] = [
    uncommitted_kept,
    late_positions,
    neighbours_features,
    late_features,
    forgotten_move,
    normed_feedback,
]
