"""The methods of a benchmark, and the cases they make with budgets, temperatures and batches.

A method is a policy of Graft, with its drafter in front where it is not the default one
("graft", "model:graft") and, behind graft+, the parts that it does without ("graft+-contexts"), or
one of others: "hf" is `generate` of Transformers, "hf-lookup" its prompt lookup, "llama.cpp" that
program. It knows names and numbers alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from graft.settings import DRAFTING, NEEDING_DRAFTER, Part, Policy

# Methods of others, and those of them that run other weights.
OUTSIDE = ("hf", "hf-lookup", "llama.cpp")
OTHER_WEIGHTS = ("llama.cpp",)
POLICIES: tuple[str, ...] = get_args(Policy)
PARTS: tuple[str, ...] = get_args(Part)


@dataclass(frozen=True)
class Method:
    """One way of decoding.

    Attributes:
        name: as reports call it.
        policy: of Graft; None for a method of others.
        drafter: whose trees; None for the default one, or none.
        without: parts of graft+ that are left out.
    """

    name: str
    policy: str | None
    drafter: str | None = None
    without: tuple[str, ...] = ()

    @property
    def has_budget(self) -> bool:
        return self.policy != "plain" and self.name not in ("hf", "llama.cpp")


def comparable(method: str, temperature: float) -> bool:
    """Whether a method's answers should be plain decoding's. Those of other weights should not,
    nor sampled ones of others, who draw by another generator."""
    return method not in OTHER_WEIGHTS and not (method in OUTSIDE and temperature > 0)


@dataclass(frozen=True)
class Case:
    """A method with its settings: what one column of a report is about."""

    method: Method
    budget: int
    temperature: float
    batch: int

    @property
    def name(self) -> str:
        """No two cases of a run share it."""
        heat = f"{self.temperature:.10g}"
        return f"{self.method.name} K={self.budget} T={heat} B={self.batch}"


def parse_method(text: str, drafters: Sequence[str]) -> Method:
    """The method that a name means.

    Args:
        drafters: the kinds that are loaded, the default one first.

    Raises:
        ValueError: with what is supported.
    """
    if text in OUTSIDE:
        return Method(text, None)
    drafter, policy, without = split_method(text)
    if policy not in POLICIES:
        close = difflib.get_close_matches(policy, (*POLICIES, *OUTSIDE), n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        known = ", ".join((*POLICIES, *OUTSIDE))
        raise ValueError(f"method {text!r}: {meant}supported are {known}, and DRAFTER:POLICY")
    if policy in NEEDING_DRAFTER and not drafters:
        raise ValueError(
            f"method {text!r} drafts, but no drafter is given: add --head or --draft-model"
        )
    if drafter and drafter not in drafters:
        loaded = ", ".join(drafters) or "none"
        raise ValueError(f"method {text!r} names a drafter that is not loaded; loaded: {loaded}")
    if drafter and policy not in DRAFTING:
        raise ValueError(f"method {text!r}: {policy} has no drafter, leave out {drafter}:")
    if policy == "eagle3":
        if drafter not in ("", "eagle3") or "eagle3" not in drafters:
            raise ValueError(
                f"method {text!r} needs an EAGLE-3 head, and {', '.join(drafters)} is loaded: with "
                "other drafters the same is called dense"
            )
        drafter = "eagle3"
    if policy in DRAFTING and drafters and not drafter:
        drafter = drafters[0]
    return Method(text, policy, drafter or None, without)


def split_method(text: str) -> tuple[str, str, tuple[str, ...]]:
    """Drafter ("" where none is named), policy, and what that does without.

    Raises:
        ValueError: for a part that there is not.
    """
    drafter, _, wanted = text.rpartition(":")
    policy, without = _parts(wanted)
    return drafter, policy, without


def _parts(text: str) -> tuple[str, tuple[str, ...]]:
    """A policy, and what it does without."""
    policy, *without = text.split("-") if text.startswith("graft+-") else [text]
    for part in without:
        if part not in PARTS:
            raise ValueError(
                f"method {text!r}: graft+ has no part {part!r} to leave out; it has "
                f"{', '.join(PARTS)}, as in graft+-{PARTS[0]}"
            )
    return policy, tuple(without)


def cases_of(
    methods: Sequence[Method],
    budgets: Sequence[int | None],
    temperatures: Sequence[float],
    batches: Sequence[int],
    own: Callable[[Method], int] | None = None,
) -> list[Case]:
    """Every combination, methods without a budget once each.

    Args:
        budgets: None among them stands for each method's own, which `own` says.
    """
    out = []
    for temperature in temperatures:
        for batch in batches:
            for method in methods:
                sizes = [0]
                if method.has_budget:
                    sizes = [own(method) if own and k is None else k or 0 for k in budgets]
                out += [Case(method, size, temperature, batch) for size in dict.fromkeys(sizes)]
    return out
