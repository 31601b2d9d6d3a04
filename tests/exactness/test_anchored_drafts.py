"""Drafts with an anchor: retrieval hangs below the last draft node that is kept.

The drafter here knows the answers and copies them, with a mistake now and then, so that rounds end
in the draft, at its end, and in what was retrieved behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from graft.decoder import RoundView
from graft.draft import Draft
from graft.drafters.base import no_draft
from graft.drafters.none import NoDrafter
from graft.engine import Engine
from graft.pruning import DraftPlan
from graft.tree import Source, TokenTree
from tests.exactness.cases import SETTINGS
from tests.exactness.drafting import agree, engine, plain, tau, taught
from tests.exactness.helpers import PROMPTS
from tests.exactness.merge_faults import MERGE_FAULTS

LENGTH = 5  # nodes of a chain


class Copying(NoDrafter):
    """Chains from known texts; of each, as many nodes are kept as the length of the text decides.

    Args:
        texts: what the sequences are going to be.
    """

    name = "copying"

    def __init__(self, texts: Sequence[list[int]]) -> None:
        self._texts = texts

    def draft(self, history: Tensor, length: Tensor, plan: DraftPlan) -> Draft:
        width = min(LENGTH, plan.budget)
        rows = [
            self._chain(past[:count], width)
            for past, count in zip(history.tolist(), length.tolist(), strict=True)
        ]
        chain = torch.tensor(rows)  # [B, w]
        index = torch.arange(width + 1).expand(len(rows), -1)
        none = no_draft(history.gather(1, length.unsqueeze(1) - 1).squeeze(1), plan)
        tree = TokenTree(
            torch.cat([none.tree.tokens, chain], 1),
            (index - 1).clamp(min=0),
            index,
            torch.ones_like(index, dtype=torch.bool),
            torch.where(index > 0, int(Source.DRAFT), int(Source.TARGET)),
            width,
        )
        kept = (length % (width + 1)).clamp(min=1)
        scores = -index.float()
        return none._replace(tree=tree, scores=scores, kept=kept, steps=1, anchor=kept)

    def _chain(self, past: list[int], width: int) -> list[int]:
        known = [text for text in self._texts if text[: len(past)] == past]
        text = known[0][len(past) :] if known else []
        chain = (text + [0] * width)[:width]
        if len(past) % 4 == 0:  # a mistake
            chain[-1] = (chain[-1] + 1) % 256
        return chain


def copying(setting: str, batch: int, **settings: Any) -> Engine:
    answers = plain(PROMPTS, setting, batch)
    texts = [[*p, *a] for p, a in zip(PROMPTS, answers, strict=True)]
    return taught(engine(Copying(texts), budget=16, **settings), setting, batch)


@pytest.mark.parametrize("policy", ["dense", "pruned", "graft-unpruned", "graft", "graft+"])
@pytest.mark.parametrize(("setting", "batch"), [("greedy", 1), ("sampled", 3), ("counts", 3)])
@pytest.mark.parametrize("refill", [True, False])
def test_answers(setting: str, batch: int, policy: str, refill: bool) -> None:
    found = agree(copying(setting, batch, refill=refill), setting, policy=policy, batch=batch)
    assert tau(found) > 2.0
    if policy.startswith("graft"):
        # Runs that neither source could have made alone.
        longest = max(r.accepted for result in found for r in result.stats.round_records)
        assert longest > LENGTH
        assert sum(r.stats.accepted_retrieved for r in found) > 0


@pytest.mark.parametrize("budget", [1, 2, 4, 60])
def test_budgets(budget: int) -> None:
    assert tau(agree(copying("sampled", 3), "sampled", policy="graft", budget=budget)) > 1.3


@pytest.mark.parametrize("dedup", ["redirect", "skip"])
def test_trees_keep_their_invariants(dedup: str) -> None:
    made = copying("sampled", 3, dedup=dedup)
    below = 0

    def watch(view: RoundView) -> None:
        nonlocal below
        view.tree.check_integrity()
        above = view.tree.sources.gather(1, view.tree.parents)
        below += int(((view.tree.sources == Source.RETRIEVED) & (above == Source.DRAFT)).sum())

    for _ in made.stream(list(PROMPTS), SETTINGS["sampled"](), policy="graft", watch=watch):
        pass
    assert below > 10


@pytest.mark.parametrize("fault", MERGE_FAULTS)
def test_a_fault_of_merged_trees_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = copying("sampled", 3, refill=False)
    MERGE_FAULTS[fault](monkeypatch, made)
    with pytest.raises(AssertionError):
        agree(made, "sampled", policy="graft")
