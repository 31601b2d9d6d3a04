"""Drafted trees say what plain decoding says: policies, drafters, stages, settings, families."""

from __future__ import annotations

from typing import Any

import pytest

from graft.exactness import compare
from graft.request import Result
from graft.settings import DRAFTING, PRUNING, EngineSettings
from tests.exactness import drafting
from tests.exactness.cases import SETTINGS, settings
from tests.exactness.drafting import DRAFTERS, agree, engine, stages, tau, taught
from tests.exactness.heads import LEARNT, LEARNT_ELSEWHERE, batch_of
from tests.exactness.helpers import PROMPTS, assert_accepting, assert_same
from tests.tiny_models import FAMILIES

# Policy and drafter of every way to fill a tree.
WAYS = [
    ("lookup", None),
    ("retrieval", None),
    *((p, d) for d in DRAFTERS for p in DRAFTING if p != "eagle3" or d == "eagle3"),
]
BUDGETS = [1, 4, 16, 60]


def stage_names(budget: int) -> list[str]:
    """Stages that a pruned round of this budget can end in."""
    plan = EngineSettings().plan("graft", budget)
    return [plan.stage_name(stage) for stage in range(plan.stages)]


# Budgets and the stages that each of them has.
STAGES = [(budget, stage) for budget in BUDGETS for stage in stage_names(budget)]
FEW_STAGES = [(budget, stage) for budget, stage in STAGES if budget == 16]


def forced(budget: int, stage: str) -> tuple[float, ...]:
    """Thresholds with which every round ends in `stage`."""
    return tuple(1.5 if name == stage else 0.0 for name in stage_names(budget)[:-1])


def least_tau(policy: str, budget: int) -> float:
    """What any drafter here reaches: equality without accepted nodes says little."""
    return 1.5 if policy in ("retrieval", "pruned") or budget < 16 else 2.0


@pytest.mark.parametrize("setting", ["greedy", "all cuts"])
@pytest.mark.parametrize(("policy", "drafter"), WAYS)
def test_every_policy_and_drafter(policy: str, drafter: str | None, setting: str) -> None:
    made = taught(engine(DRAFTERS[drafter]() if drafter else None), setting)
    found = agree(made, setting, policy=policy)
    if policy != "lookup":  # random answers hardly repeat themselves; see below
        assert tau(found) > least_tau(policy, 16)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("batch", [1, 3])
def test_lookup_in_text_that_repeats_itself(batch: int, temperature: float) -> None:
    params = settings(temperature=temperature, logit_bias={7: 12.0, 9: 12.0})()
    found = compare(engine(), PROMPTS, params, policy="lookup", budget=16, batch=batch)
    assert_same(found)
    assert_accepting(found)


@pytest.mark.parametrize("policy", PRUNING)
@pytest.mark.parametrize(("budget", "stage"), FEW_STAGES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_stage(drafter: str, budget: int, stage: str, policy: str) -> None:
    setting = "all cuts"
    thresholds = forced(budget, stage)
    made = engine(DRAFTERS[drafter](), budget=budget, thresholds=thresholds)
    if policy == "graft":
        taught(made, setting)
    found = agree(made, setting, policy=policy, budget=budget)
    assert stages(found) == {stage}
    assert all(r.stats.accepted_draft > 0 for r in found)
    if policy == "graft":
        assert tau(found) > least_tau(policy, budget)


@pytest.mark.parametrize("setting", ["all cuts", "repetition"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_batch_of_one(drafter: str, setting: str) -> None:
    found = agree(engine(DRAFTERS[drafter]()), setting, batch=1)
    assert tau(found) > 1.5


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s not in ("greedy", "all cuts")])
def test_every_setting_of_sampling(setting: str) -> None:
    """Those that the head has not learnt have uneven acceptance."""
    made = taught(engine(drafting.eagle3()), setting, batch_of(setting))
    found = agree(made, setting, batch=batch_of(setting))
    assert tau(found) > (3.0 if setting in LEARNT else 1.3)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_budget(drafter: str, budget: int) -> None:
    found = agree(engine(DRAFTERS[drafter]()), "sampled", budget=budget)
    # One round, several stages: rows of one batch stop at different checkpoints.
    assert len(stages(found)) > 1
    assert tau(found) > 1.2


@pytest.mark.parametrize("setting", ["greedy", "all cuts"])
@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gpt2"])
def test_other_families(family: str, setting: str) -> None:
    """Sliding windows and soft caps, too."""
    for stage in ("d1", "full"):
        made = engine(drafting.eagle3(family), family, budget=16, thresholds=forced(16, stage))
        found = agree(taught(made, setting), setting, policy="graft")
        assert tau(found) > 2.0
        assert stages(found) == {stage}


@pytest.mark.parametrize("preset", ["paper-60", "paper-32", "paper-16", "paper-8", "paper-4"])
def test_presets(preset: str) -> None:
    made = engine(drafting.eagle3(), preset=preset)
    found = agree(made, "all cuts", budget=made.budget)
    assert made.budget == int(preset.removeprefix("paper-"))
    assert tau(found) > 2.0


def test_a_plan_of_ones_own() -> None:
    """Beam, depth, checkpoints and kept nodes away from the paper's; some stages keep none."""
    plan: dict[str, Any] = {
        "budget": 16,
        "beam": 3,
        "depth": 7,
        "checkpoints": (2, 3, 5),
        "kept": (0, 1, 16),
    }
    made = taught(engine(drafting.eagle3(), **plan, thresholds=(0.6, 0.6, 0.6)), "sampled")
    found = agree(made, "sampled")
    assert len(stages(found)) > 2
    assert tau(found) > 2.0


@pytest.mark.parametrize("changes", [{}, {"refill": False}, {"k": 2}])
@pytest.mark.parametrize("setting", ["all cuts", "sampled"])
def test_drafted_and_retrieved_nodes_meet(setting: str, changes: dict[str, Any]) -> None:
    found = merging(setting, **changes)
    assert tau(found) > 2.0
    assert sum(r.stats.redirected for r in found) > 0
    assert sum(r.stats.accepted_retrieved for r in found) > 0


@pytest.mark.parametrize("setting", ["all cuts", "sampled"])
def test_retrieved_nodes_that_the_draft_holds_are_skipped(setting: str) -> None:
    found = merging(setting, dedup="skip")
    assert sum(r.stats.redirected for r in found) == 0
    assert sum(r.stats.accepted_draft for r in found) > 0
    assert tau(found) < tau(merging(setting)), "what hung below them is not found"


def merging(setting: str, **changes: Any) -> list[Result]:
    """A short draft, and a matrix that knows the same continuations and more."""
    made = engine(drafting.eagle3(), budget=16, thresholds=forced(16, "d1"), **changes)
    return agree(taught(made, setting), setting)


# Every setting of one family, and the heads' own settings in every family.
PRODUCT = [
    *(("llama", s) for s in SETTINGS),
    *((f, s) for f in FAMILIES[1:] for s in LEARNT_ELSEWHERE),
]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "drafter"), WAYS)
@pytest.mark.parametrize(("family", "setting"), PRODUCT)
def test_the_whole_product(family: str, setting: str, policy: str, drafter: str | None) -> None:
    """With all budgets and stages."""
    for budget, stage in STAGES if policy in PRUNING else [(budget, "") for budget in BUDGETS]:
        thresholds = forced(budget, stage) if stage else None
        draft = DRAFTERS[drafter](family) if drafter else None
        made = engine(draft, family, budget=budget, thresholds=thresholds)
        found = agree(made, setting, policy=policy, budget=budget, batch=batch_of(setting))
        # Where hardly anything is accepted, graft+ decodes a batch plainly for a while.
        plainly = {"none"} if policy == "graft+" else set()
        assert not stage or stages(found) - plainly == {stage}
