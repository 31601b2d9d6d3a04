"""Methods and cases: what names mean, and which combinations are run."""

from __future__ import annotations

import pytest

from graft.bench.methods import OUTSIDE, POLICIES, Case, Method, cases_of, parse_method
from graft.settings import DRAFTING

BOTH = ("model", "eagle3")


@pytest.mark.parametrize("name", ["plain", "lookup", "retrieval"])
def test_a_policy_without_a_drafter(name: str) -> None:
    assert parse_method(name, ()) == Method(name, name)


@pytest.mark.parametrize("name", OUTSIDE)
def test_transformers_own(name: str) -> None:
    assert parse_method(name, ()) == Method(name, None)


@pytest.mark.parametrize("policy", [p for p in DRAFTING if p != "eagle3"])
def test_the_first_drafter_is_the_default(policy: str) -> None:
    assert parse_method(policy, BOTH) == Method(policy, policy, "model")
    named = parse_method(f"eagle3:{policy}", BOTH)
    assert named == Method(f"eagle3:{policy}", policy, "eagle3")


def test_the_policy_eagle3_is_that_of_the_head() -> None:
    assert parse_method("eagle3", BOTH) == Method("eagle3", "eagle3", "eagle3")
    assert parse_method("eagle3:eagle3", BOTH).drafter == "eagle3"


@pytest.mark.parametrize(
    ("name", "drafters", "words"),
    [
        ("grapht", (), ("did you mean graft?", *POLICIES, *OUTSIDE)),
        ("hf_lookup", (), ("did you mean hf-lookup?",)),
        ("", (), ("supported are",)),
        ("model:", ("model",), ("supported are",)),
        ("graft", (), ("--head", "--draft-model")),
        ("eagle3", (), ("no drafter is given",)),
        ("eagle3:graft", ("model",), ("not loaded", "loaded: model")),
        ("model:retrieval", ("model",), ("leave out model:",)),
        ("model:hf", ("model",), ("supported are",)),
        ("eagle3", ("model",), ("EAGLE-3 head", "dense")),
        ("model:eagle3", BOTH, ("EAGLE-3 head", "dense")),
    ],
)
def test_mistakes(name: str, drafters: tuple[str, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="method") as caught:
        parse_method(name, drafters)
    for word in words:
        assert word in str(caught.value)


def test_every_combination_once() -> None:
    methods = [parse_method(name, ("model",)) for name in ("plain", "graft", "hf", "hf-lookup")]
    cases = cases_of(methods, (4, 8), (0.0, 1.0), (1, 2))
    assert len(set(cases)) == len(cases) == 4 * (1 + 2 + 1 + 2)
    assert {c.budget for c in cases if c.method.name in ("plain", "hf")} == {0}
    assert {c.budget for c in cases if c.method.name in ("graft", "hf-lookup")} == {4, 8}


def test_names_of_cases_tell_them_apart() -> None:
    method = parse_method("retrieval", ())
    cases = cases_of([method], (4, 8), (0.0, 0.7, 0.7000001), (1, 2))
    assert len({case.name for case in cases}) == len(cases)
    assert Case(method, 4, 0.7, 2).name == "retrieval K=4 T=0.7 B=2"
