"""Negative controls: faults on purpose, each of which the checks of this suite must report.

A comparison that cannot fail proves nothing. The faults themselves are in `faults`.
"""

from __future__ import annotations

import pytest

from graft.decoder import RoundView
from graft.engine import Engine
from graft.exactness import Comparison, compare
from graft.law import LawTest, law_test
from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings
from tests.exactness.cases import SETTINGS
from tests.exactness.drafting import eagle3, engine, taught
from tests.exactness.faults import (
    TARGET_FAULTS,
    WALK_FAULTS,
    Fault,
    Patch,
    forgotten_move,
    no_compaction,
    noise_by_call,
    noise_without_position,
    parent_hidden,
    positions_by_index,
    shifted_parents,
    sibling_seen,
)
from tests.exactness.head_faults import HEAD_FAULTS, HeadFault
from tests.exactness.helpers import PROMPTS, family_engine, teach_answers
from tests.exactness.merge_faults import BROKEN_TREES, MERGE_FAULTS, SILENT
from tests.exactness.test_families import NODES, TEXT, dependence, distance_from_plain
from tests.fakes import fake_engine
from tests.random_trees import make_tree

SAMPLED = SamplingParams(temperature=0.8, seed=1, max_new_tokens=24)
UNIT = SamplingParams(temperature=1.0, seed=3, max_new_tokens=24)
LAW_SAMPLES = 600


def model_engine() -> Engine:
    """Long paths are accepted."""
    engine = family_engine("llama")
    teach_answers(engine, PROMPTS, SAMPLED, batch=3)
    return engine


def drafting_engine() -> Engine:
    """Drafts two levels, and long retrieved paths below them are accepted."""
    made = engine(eagle3(), budget=16, thresholds=(0, 1.5, 0))
    return taught(made, "all cuts")


def small_engine() -> Engine:
    """Every token is likely enough, drawn or not, and stands at many nodes."""
    return fake_engine(5, sharpness=0.8, settings=EngineSettings(k=5, max_batch=16))


def compared(engine: Engine) -> Comparison:
    return compare(engine, PROMPTS, SAMPLED, budget=16, batch=3)


def compared_drafts(engine: Engine) -> Comparison:
    return compare(engine, PROMPTS, SETTINGS["all cuts"], budget=16, batch=3)


def broken_trees(engine: Engine) -> int:
    """Rounds whose tree breaks an invariant of `TokenTree`."""
    broken = 0

    def watch(view: RoundView) -> None:
        nonlocal broken
        try:
            view.tree.check_integrity()
        except AssertionError:
            broken += 1

    for _ in engine.stream(list(PROMPTS), SETTINGS["all cuts"](), budget=16, watch=watch):
        pass
    return broken


def compared_small(engine: Engine) -> Comparison:
    return compare(engine, [[1, 2], [3], [4, 0]], UNIT, budget=8, batch=3)


def sampled_law(engine: Engine) -> LawTest:
    return law_test(engine, [1, 2], UNIT, LAW_SAMPLES, budget=8)


def test_without_a_fault_the_checks_pass() -> None:
    assert compared(model_engine()).same
    assert compared_small(small_engine()).same
    assert compared_drafts(drafting_engine()).same
    assert broken_trees(drafting_engine()) == 0
    assert sampled_law(small_engine()).passed


@pytest.mark.parametrize("fault", TARGET_FAULTS)
def test_comparison_sees_a_fault_of_the_target(monkeypatch: Patch, fault: Fault) -> None:
    engine = model_engine()
    fault(monkeypatch, engine)
    assert compared(engine).mismatches


@pytest.mark.parametrize("fault", [f for f in TARGET_FAULTS if f is not forgotten_move])
def test_comparison_of_drafts_sees_a_fault_of_the_target(monkeypatch: Patch, fault: Fault) -> None:
    made = drafting_engine()
    fault(monkeypatch, made)
    assert compared_drafts(made).mismatches


@pytest.mark.parametrize("fault", MERGE_FAULTS)
def test_comparison_sees_a_fault_of_merged_trees(monkeypatch: Patch, fault: str) -> None:
    made = drafting_engine()
    MERGE_FAULTS[fault](monkeypatch, made)
    assert compared_drafts(made).mismatches


@pytest.mark.parametrize("fault", BROKEN_TREES)
def test_invariants_see_a_fault_of_merged_trees(monkeypatch: Patch, fault: str) -> None:
    made = drafting_engine()
    BROKEN_TREES[fault](monkeypatch, made)
    assert broken_trees(made)


@pytest.mark.parametrize("fault", SILENT)
def test_comparison_cannot_see_trees_that_are_only_poor(monkeypatch: Patch, fault: str) -> None:
    """Which is the theorem; their invariants are what is checked (above)."""
    made = drafting_engine()
    BROKEN_TREES[fault](monkeypatch, made)
    assert compared_drafts(made).same


@pytest.mark.parametrize("fault", HEAD_FAULTS)
def test_comparison_cannot_see_a_fault_of_the_head(monkeypatch: Patch, fault: HeadFault) -> None:
    """Nor these; `test_head_state` does."""
    drafter = eagle3()
    fault(drafter, monkeypatch)
    assert compared_drafts(engine(drafter)).same


@pytest.mark.parametrize("fault", WALK_FAULTS)
def test_comparison_sees_a_fault_of_the_walk(monkeypatch: Patch, fault: str) -> None:
    engine = small_engine()
    WALK_FAULTS[fault](monkeypatch, engine)
    assert compared_small(engine).mismatches


def test_comparison_sees_no_compaction_of_the_fake_target(monkeypatch: Patch) -> None:
    """So the fake target is no easier to please than a model."""
    engine = small_engine()
    no_compaction(monkeypatch, engine)
    assert compared_small(engine).mismatches


def test_comparison_sees_noise_by_call(monkeypatch: Patch) -> None:
    engine = model_engine()
    noise_by_call(monkeypatch, engine)
    assert compared(engine).mismatches


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["likely child", "tied child", "redrawn bonus"])
def test_law_test_sees_a_walk_that_peeks(monkeypatch: Patch, fault: str) -> None:
    engine = small_engine()
    WALK_FAULTS[fault](monkeypatch, engine)
    found = sampled_law(engine)
    assert not found.passed, found


def test_law_test_sees_noise_without_position(monkeypatch: Patch) -> None:
    """Plain decoding has the same fault, so comparing the two would not show it."""
    engine = small_engine()
    noise_without_position(monkeypatch, engine)
    assert compared_small(engine).same
    assert not sampled_law(engine).passed


@pytest.mark.parametrize("fault", [sibling_seen, shifted_parents])
def test_independence_of_rows_sees_a_wrong_mask(monkeypatch: Patch, fault: Fault) -> None:
    tree = make_tree([NODES], [TEXT[-1]])
    fault(monkeypatch, family_engine("llama"))
    with pytest.raises(AssertionError):
        assert dependence("llama", tree) <= 1e-5


@pytest.mark.parametrize("fault", [positions_by_index, parent_hidden, shifted_parents])
def test_logits_of_paths_see_a_fault_of_the_target(monkeypatch: Patch, fault: Fault) -> None:
    tree = make_tree([NODES], [TEXT[-1]])
    fault(monkeypatch, family_engine("llama"))
    assert distance_from_plain("llama", tree) > 1e-2
