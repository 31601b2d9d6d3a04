"""Each rule of the diagnosis speaks where it should, and where nothing is wrong none does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from graft.diagnosis import LEAST, RULES, diagnose
from graft.draft import Draft
from graft.pruning import DraftPlan
from graft.vitals import Vitals, vitals_of
from tests.exactness.drafting import DRAFTERS, eagle3, engine, taught
from tests.exactness.helpers import PROMPTS


def healthy(**changes: Any) -> Vitals:
    """Rounds of the paper's policy at K = 16 as they are with a good head."""
    rounds = 200
    counts = {
        "rounds": rounds,
        "draft_steps": 260,
        "kept_draft": 900,
        "released_slots": 2300,
        "proposed_draft": 1000,
        "accepted_draft": 230,
        "proposed_retrieved": 2200,
        "accepted_retrieved": 90,
        "unspent_slots": 0,
        "lookups": 4000,
        "hits": 3000,
    }
    seconds = {"draft": 2.0, "graft": 0.2, "verify": 7.0, "commit_update": 0.4, "other": 0.1}
    counts |= {name: changes.pop(name) for name in list(changes) if name in counts}
    stages = ["d0"] * 80 + ["d1"] * 80 + ["full"] * 40
    tokens = [1, 2] * 40 + [2, 3] * 40 + [4, 5] * 20
    good = Vitals("graft K=16", "graft", 16, 0.0, counts, stages, tokens, seconds, 1.5)
    return replace(good, **changes)


def rules(vitals: Vitals) -> list[str]:
    return [finding.rule for finding in diagnose(vitals)]


@pytest.mark.parametrize("policy", ["graft", "graft+", "eagle3", "retrieval", "lookup", "suffix"])
def test_nothing_is_wrong_with_a_healthy_run(policy: str) -> None:
    assert rules(healthy(policy=policy)) == []
    assert rules(healthy(policy=policy, speedup=None, temperature=0.8)) == []


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("slower than plain", {"speedup": 0.8}, "0.80x"),
    ("drafter does not fit", {"accepted_draft": 3}, "another model"),
    (
        "confidence says nothing",
        {"tokens": [2] * 200},
        "thresholds cannot help",
    ),
    ("retrieval does not pay", {"accepted_retrieved": 2}, "hardly repeats"),
    ("retrieval does not pay", {"accepted_retrieved": 2, "hits": 300}, "matrix is cold"),
    ("retrieval does not pay", {"accepted_retrieved": 2, "temperature": 1.0}, "temperature 1"),
    (
        "stops too early",
        {"stages": ["d0"] * 180 + ["d1"] * 20, "tokens": [2, 3] * 90 + [4] * 20},
        "Lower the thresholds",
    ),
    (
        "stops too late",
        {
            "stages": ["full"] * 200,
            "tokens": [2] * 200,
            "released_slots": 0,
            "kept_draft": 3200,
            "proposed_draft": 3200,
            "proposed_retrieved": 0,
        },
        "Raise the thresholds",
    ),
    (
        "tree too wide",
        {"proposed_retrieved": 11000, "speedup": 1.05},
        "in vain",
    ),
    ("drafting is dear", {"seconds": {"draft": 6.0, "verify": 5.0}}, "1.3 steps per round"),
    ("overhead", {"seconds": {"draft": 1.0, "verify": 5.0, "graft": 2.0}}, "25%"),
    ("gain gone at high batch", {"by_batch": {1: 1.5, 8: 0.9}}, "batch 8"),
    ("answers loop", {"answers": 40, "looping": 20}, "20 of 40"),
]


@pytest.mark.parametrize(("rule", "changes", "said"), WRONG)
def test_a_rule_speaks_alone_where_its_own_thing_is_wrong(
    rule: str, changes: dict[str, Any], said: str
) -> None:
    (finding,) = diagnose(healthy(**changes))
    assert finding.rule == rule
    assert said in str(finding)
    assert finding.what.endswith((".", "%."))
    assert finding.advice.endswith((".", "?"))


def test_every_rule_was_provoked() -> None:
    assert len({rule for rule, _, _ in WRONG}) == len(RULES) + 1  # one of them has two findings


def test_a_drafter_that_mostly_sits_out_is_judged_by_the_rounds_it_drafts() -> None:
    """Text that repeats: retrieval knows nearly everything."""
    few = {"proposed_draft": 200, "accepted_draft": 18, "accepted_retrieved": 500}
    stages = ["none"] * 140 + ["d0"] * 30 + ["d1"] * 30
    tokens = [4] * 140 + [1, 2] * 15 + [2, 3] * 15
    run = healthy(policy="graft+", stages=stages, tokens=tokens, **few)
    assert rules(run) == []
    unfit = healthy(policy="graft+", stages=stages, tokens=tokens, **few | {"accepted_draft": 1})
    assert rules(unfit) == ["drafter does not fit"]


def test_too_few_rounds_say_nothing() -> None:
    assert rules(healthy(speedup=0.5, rounds=LEAST - 1)) == []


class Wrong:
    """A drafter whose tokens are never the target's."""

    def __init__(self) -> None:
        self._drafter = eagle3()

    def draft(self, history: Tensor, length: Tensor, plan: DraftPlan) -> Draft:
        draft = self._drafter.draft(history, length, plan)
        tokens = draft.tree.tokens.clone()
        tokens[:, 1:] = (tokens[:, 1:] + 101) % 256
        return draft._replace(tree=replace(draft.tree, tokens=tokens))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)


def run(policy: str, drafter: Any = None, heat: float = 0.0, **settings: Any) -> Vitals:
    """Rounds of real models, with a matrix that knows their greedy answers."""
    made = taught(engine(drafter, **settings), "greedy")
    options: dict[str, Any] = {"max_new_tokens": 60, "ignore_eos": True, "temperature": heat}
    found = made.generate(PROMPTS, policy=policy, seed=1, **options)
    return vitals_of([result.stats for result in found], policy, budget=settings.get("budget"))


def without_times(vitals: Vitals) -> Vitals:
    """Tiny models spend their time elsewhere than large ones."""
    return replace(vitals, seconds={})


def test_a_drafter_that_fits() -> None:
    assert rules(without_times(run("graft", DRAFTERS["eagle3"](), budget=16))) == []


def test_a_drafter_for_another_model() -> None:
    found = without_times(run("graft", Wrong(), budget=16))
    assert found.rounds >= LEAST
    assert "drafter does not fit" in rules(found)


def test_retrieval_at_a_high_temperature() -> None:
    found = run("retrieval", budget=8, heat=2.0)
    (finding,) = diagnose(without_times(replace(found, temperature=2.0)))
    assert finding.rule == "retrieval does not pay"
    assert "At temperature 2" in finding.what


def test_thresholds_that_are_too_high() -> None:
    made = DRAFTERS["model"]()  # right more often than not
    found = run("graft", made, budget=16, thresholds=(1.5, 1.5, 1.5))
    assert rules(without_times(found)) == ["stops too early"]
