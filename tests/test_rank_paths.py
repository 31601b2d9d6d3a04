"""Ranks along recorded answers, counted by hand, and the templates of each stage."""

from __future__ import annotations

from typing import Any

import torch

from graft.draft import Draft, no_draft
from graft.matrix import Best
from graft.pruning import DraftPlan, dense
from graft.rank_paths import ranks_of, stage_templates
from graft.replay import Recording, stage_of

PLAN = DraftPlan(4, 2, 3, (0, 1), (0.5, 0.2), (1, 2, 4))
V = 20


def recording(tokens: list[int], start: int, said: list[list[int]], **more: Any) -> Recording:
    ids = torch.tensor(said)
    return Recording("task", torch.tensor(tokens), start, best=Best(ids, ids.float()), **more)


def draft(*confidence: float) -> Draft:
    made = no_draft(torch.tensor([1]), dense(0, 1, 1))
    return made._replace(confidence=torch.tensor([confidence]))


def test_ranks_are_those_of_the_matrix_before_the_target_spoke() -> None:
    # The prompt says that 2 follows 1 and 3 follows 2. In the answer 1 2 1 4 1 4 the target says
    # [4, 2] behind every 1, [1, 3] behind 2 and [1, 9] behind 4.
    said = [[4, 2], [1, 3], [4, 2], [1, 9], [4, 2], [1, 9]]
    one = recording([1, 2, 3, 1, 2, 1, 4, 1, 4], 3, said, drafts=[])
    # 1 -> 2 by the prompt: rank 0. 2 -> 1: not held. 1 -> 4: rank 0 by now. 4 -> 1: not held.
    assert ranks_of([one], V) == [[0, -1, 0, -1, 0]]
    # A second answer finds what the first has left: 1 -> 2 at rank 1, 2 -> 1 at rank 0.
    other = recording([7, 1, 2, 1], 1, said[:3], drafts=[])
    assert ranks_of([one, other], V)[1] == [1, 0]


def test_stages_are_those_at_which_rounds_stop() -> None:
    assert stage_of(draft(0.4, 0.9), PLAN) == 0
    assert stage_of(draft(0.6, 0.1), PLAN) == 1
    assert stage_of(draft(0.6, 0.3), PLAN) == 2


def test_a_stage_counts_from_its_own_positions() -> None:
    # Tokens 1 and 2 in turn, then 1 again: behind 1 the matrix has the next token at rank 0,
    # behind 2 at rank 1. The drafter is sure behind 1 alone.
    turns = 60
    text = [1, 2] * turns + [1]
    said = [[2, 9] if token == 1 else [9, 1] for token in text]
    drafts = [draft(0.9, 0.9) if token == 1 else draft(0.1, 0.1) for token in text[:-1]]
    one = recording([5, *text], 1, said, drafts=drafts)
    unsure, middle, sure = stage_templates([one], PLAN, V, 3)
    assert sure.paths == ((0,), (0, 1), (0, 1, 0))
    assert unsure.paths == ((1,), (1, 0), (1, 0, 1))
    assert len(middle) == 3  # nobody stops there: what ranks are worth anywhere
    whole, *more = stage_templates([one], dense(4, 1, 1), V, 4)
    assert not more
    assert set(whole.paths) == {(0,), (0, 1), (1,), (0, 1, 0)}


def test_nothing_is_asked_of_a_recording_that_is_not_there() -> None:
    (only,) = stage_templates(
        [recording([5, 1, 2], 1, [[2, 3]] * 2, drafts=[])], dense(4, 1, 1), V, 2
    )
    assert len(only) == 0
