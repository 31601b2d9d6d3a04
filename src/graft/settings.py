"""Settings of an engine, validated once at the edge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

# plain: one token per forward. retrieval: the whole budget is retrieved from the matrix.
Policy = Literal["plain", "retrieval"]
# What a prompt teaches the matrix: the successions of its own tokens (free), the target's best
# successors of each of them (costs the output layer over the whole prompt), or nothing.
PromptLearning = Literal["text", "logits", "off"]

MAX_BUDGET = 256
# Verification costs time per row on a CPU and hardly any on a GPU below about 60 rows.
DEFAULT_BUDGET = {"cpu": 4, "cuda": 60}


@dataclass(frozen=True)
class EngineSettings:
    """How an engine decodes. None of these changes the tokens, only the speed.

    Attributes:
        policy: who fills the trees.
        budget: K, nodes per tree without the root; None picks by device (`DEFAULT_BUDGET`).
        k: successors the matrix holds per token.
        prompt_learning: what a prompt teaches the matrix: "text", "logits" or "off".
        max_batch: requests that decode together; more wait for their turn.

    Raises:
        ValueError: naming the setting, what was found and what is supported.
    """

    policy: Policy = "retrieval"
    budget: int | None = None
    k: int = 8
    prompt_learning: PromptLearning = "text"
    max_batch: int = 8

    def __post_init__(self) -> None:
        _one_of("policy", self.policy, get_args(Policy))
        _one_of("prompt_learning", self.prompt_learning, get_args(PromptLearning))
        if self.budget is not None:
            _between("budget", self.budget, 1, MAX_BUDGET)
        _between("k", self.k, 1, 64)
        _between("max_batch", self.max_batch, 1, 1024)

    def having(self, **changes: Any) -> EngineSettings:
        """These settings with those changes that are not None."""
        return replace(self, **{k: v for k, v in changes.items() if v is not None})

    def budget_on(self, device_type: str) -> int:
        """The budget that holds on a device."""
        if self.policy == "plain":
            return 0
        return self.budget or DEFAULT_BUDGET.get(device_type, DEFAULT_BUDGET["cuda"])


def _one_of(name: str, found: object, supported: tuple[str, ...]) -> None:
    if found not in supported:
        raise ValueError(f"{name}={found!r}: supported are {', '.join(supported)}")


def _between(name: str, found: object, low: int, high: int) -> None:
    if not isinstance(found, int) or isinstance(found, bool) or not low <= found <= high:
        raise ValueError(f"{name}={found!r}: an integer from {low} to {high} is supported")
