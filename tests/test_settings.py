"""Settings: every field is validated by name, and every field is read by somebody."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any, get_args

import pytest

import graft
from graft.drafters.lookup import LookupDrafter
from graft.engine import Engine
from graft.sampling_params import SamplingParams
from graft.settings import DEFAULT_BUDGET, MAX_BUDGET, PRESETS, EngineSettings, Policy
from tests.fakes import FakeTarget, byte_tokenizer, fake_engine

SOURCE = Path(graft.__file__).parent


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("policy", ["eagle", "", 1]),
        ("preset", ["paper-61", "", 60]),
        ("dedup", ["off", None, True]),
        ("matrix_scope", ["user", None]),
        ("prompt_learning", ["both", None, True]),
        ("beam", [0, 65, 2.0, True]),
        ("depth", [0, 33, "8"]),
        ("checkpoints", [(1.0,), 0, ("0",), (True,)]),
        ("thresholds", [0.5, ("0.5",), (None,)]),
        ("kept", [8, (8.0,), (False,)]),
        ("budget", [0, -1, MAX_BUDGET + 1, 4.0, True, "4"]),
        ("k", [0, 65, 8.0, False, None]),
        ("max_batch", [0, 1025, 1.5, None]),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_what_is_supported(
    name: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=rf"^{name}=.*supported") as refused:
            EngineSettings(**{name: value})
        assert repr(value).strip("()") in str(refused.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("policy", [None, *get_args(Policy)]),
        ("preset", [None, *PRESETS]),
        ("dedup", ["redirect", "skip"]),
        ("matrix_scope", ["request", "process", "file"]),
        ("beam", [None, 1, 64]),
        ("depth", [None, 1, 32]),
        ("checkpoints", [None, (0, 1, 4)]),
        ("thresholds", [None, (0, 0.5, 1.5)]),
        ("kept", [None, (0, 30, 60)]),
        ("prompt_learning", ["text", "logits", "off"]),
        ("budget", [None, 1, MAX_BUDGET]),
        ("k", [1, 64]),
        ("max_batch", [1, 1024]),
    ],
)
def test_the_supported_values_are_taken(name: str, values: list[Any]) -> None:
    for value in values:
        assert getattr(EngineSettings(**{name: value}), name) == value


def test_changes_of_none_change_nothing() -> None:
    mine = EngineSettings(policy="plain", budget=7)
    assert mine.having(policy=None, budget=None) == mine
    changed = EngineSettings(policy="retrieval", budget=9)
    assert mine.having(policy="retrieval", budget=9) == changed


def test_changes_are_validated() -> None:
    with pytest.raises(ValueError, match="budget=0"):
        EngineSettings().having(budget=0)


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        EngineSettings().budget = 3  # type: ignore[misc]


def test_the_budget_depends_on_the_device_where_none_is_set() -> None:
    for device, expected in (("cpu", "cpu"), ("cuda", "cuda"), ("mps", "cuda")):
        assert EngineSettings().budget_on("graft", device) == DEFAULT_BUDGET[expected]
    assert EngineSettings(budget=3).budget_on("graft", "cuda") == 3
    assert EngineSettings(preset="paper-16").budget_on("graft", "cpu") == 16
    assert EngineSettings(preset="paper-16", budget=5).budget_on("graft", "cpu") == 5


def test_plain_decoding_has_no_budget() -> None:
    assert EngineSettings(budget=3).budget_on("plain", "cpu") == 0
    assert EngineSettings().plan("plain", 0).budget == 0


def test_the_policy_where_none_is_set() -> None:
    for drafter in (False, True):
        assert EngineSettings().policy_with(drafter=drafter) == "graft+"
        assert EngineSettings(policy="dense").policy_with(drafter=drafter) == "dense"
        paper = "graft" if drafter else "retrieval"
        for rule in ({"preset": "paper-16"}, {"checkpoints": ()}, {"thresholds": (0.1,)}):
            settings = EngineSettings(**rule)  # type: ignore[arg-type]
            assert settings.policy_with(drafter=drafter) == paper
        assert EngineSettings().policy_with(drafter=drafter, templates=True) == paper
    assert EngineSettings(policy="dense").policy_with(drafter=False) == "dense"


def test_the_paper_is_the_preset_of_sixty() -> None:
    plan = EngineSettings(preset="paper-60").plan("graft", 60)
    assert (plan.beam, plan.depth, plan.checkpoints) == (10, 8, (0, 1, 5))
    assert plan.kept == (8, 24, 40, 60)
    assert [plan.budget - n for n in plan.kept] == [52, 36, 20, 0]
    assert [plan.stage_name(i) for i in range(plan.stages)] == ["d0", "d1", "d5", "full"]


@pytest.mark.parametrize(
    ("policy", "stages", "kept"),
    [
        ("retrieval", 1, 0),
        ("dense", 1, 16),
        ("eagle3", 1, 16),
        ("lookup", 1, 16),
        ("graft-unpruned", 1, 8),
        ("pruned", 4, 16),
        ("graft", 4, 16),
    ],
)
def test_every_policy_has_its_plan(policy: Any, stages: int, kept: int) -> None:
    plan = EngineSettings().plan(policy, 16)
    assert (plan.budget, plan.stages, plan.kept[-1]) == (16, stages, kept)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("checkpoints", [(3, 1), (0, 0), (-1,), (99,)]),
        ("thresholds", [(-0.1, 0.2, 0.2), (0.5,)]),
        ("kept", [(8,), (8, 24, 400)]),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused_once_the_budget_is_known(
    name: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=rf"^{name}=.*supported"):
            EngineSettings(budget=60, **{name: value})
        with pytest.raises(ValueError, match=rf"^{name}=.*supported"):
            EngineSettings(**{name: value}).plan("graft", 60)
    assert EngineSettings(thresholds=(0.3, 0.2)).plan("graft", 4).checkpoints == (0, 1)


def test_an_engine_refuses_numbers_that_do_not_fit_its_device() -> None:
    with pytest.raises(ValueError, match="no drafter is loaded"):
        fake_engine(12, settings=EngineSettings(policy="graft"))
    target = FakeTarget(12)
    with pytest.raises(ValueError, match=r"^thresholds="):
        Engine(
            target,
            byte_tokenizer(),
            name="fake",
            token_count=12,
            eos_token_ids=(),
            settings=EngineSettings(thresholds=(0.1,)),
            drafter=LookupDrafter(),
        )


def test_own_numbers_replace_the_scaled_ones() -> None:
    mine = EngineSettings(beam=3, depth=5, checkpoints=(0, 2), thresholds=(0.9, 0.1), kept=(2, 6))
    plan = mine.plan("graft", 12)
    assert (plan.beam, plan.depth, plan.checkpoints) == (3, 5, (0, 2))
    assert (plan.thresholds, plan.kept) == ((0.9, 0.1), (2, 6, 12))


class Reads(ast.NodeVisitor):
    """Attributes read of things called by one of the given names, or of self in a class."""

    def __init__(self, called: Iterable[str], owner: str) -> None:
        self.found: set[str] = set()
        self._called, self._owner, self._inside = set(called), owner, False

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before, self._inside = self._inside, node.name == self._owner
        self.generic_visit(node)
        self._inside = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not (self._inside and node.name == "__post_init__"):  # validation alone is no use
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        of = ast.unparse(node.value).split(".")[-1]
        if of in self._called or (of == "self" and self._inside):
            self.found.add(node.attr)
        self.generic_visit(node)


def unread(declared: Iterable[str], called: Iterable[str], owner: str) -> set[str]:
    """Declared fields that no source file reads."""
    reads = Reads(called, owner)
    for path in SOURCE.rglob("*.py"):
        reads.visit(ast.parse(path.read_text(encoding="utf-8")))
    return {*declared} - reads.found


def test_every_engine_setting_is_read() -> None:
    names = [f.name for f in fields(EngineSettings)]
    assert unread(names, ["settings"], "EngineSettings") == set()


def test_every_sampling_setting_is_read() -> None:
    names = [f.name for f in fields(SamplingParams)]
    assert unread(names, ["params", "each"], "SamplingParams") == set()


def test_a_setting_that_nobody_reads_is_found() -> None:
    assert unread(["budget", "idle_knob"], ["settings"], "EngineSettings") == {"idle_knob"}
    assert unread(["seed"], ["nothing"], "Nobody") == {"seed"}
