"""Settings: every field is validated by name, and every field is read by somebody."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

import graft
from graft.sampling_params import SamplingParams
from graft.settings import DEFAULT_BUDGET, MAX_BUDGET, EngineSettings

SOURCE = Path(graft.__file__).parent


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("policy", ["eagle", "", None, 1]),
        ("prompt_learning", ["both", None, True]),
        ("budget", [0, -1, MAX_BUDGET + 1, 4.0, True, "4"]),
        ("k", [0, 65, 8.0, False, None]),
        ("max_batch", [0, 1025, 1.5, None]),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_what_is_supported(
    name: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=rf"^{name}={value!r}: .*supported"):
            EngineSettings(**{name: value})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("policy", ["plain", "retrieval"]),
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
    assert mine.having(policy="retrieval", budget=9) == EngineSettings(budget=9)


def test_changes_are_validated() -> None:
    with pytest.raises(ValueError, match="budget=0"):
        EngineSettings().having(budget=0)


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        EngineSettings().budget = 3  # type: ignore[misc]


def test_the_budget_depends_on_the_device_where_none_is_set() -> None:
    assert EngineSettings().budget_on("cpu") == DEFAULT_BUDGET["cpu"]
    assert EngineSettings().budget_on("cuda") == DEFAULT_BUDGET["cuda"]
    assert EngineSettings().budget_on("mps") == DEFAULT_BUDGET["cuda"]
    assert EngineSettings(budget=3).budget_on("cuda") == 3


def test_plain_decoding_has_no_budget() -> None:
    assert EngineSettings(policy="plain", budget=3).budget_on("cpu") == 0


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
