"""Settings of an engine, validated once at the edge, and the plan of drafting they come to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from graft import pruning
from graft.grafting import Dedup
from graft.pruning import DraftPlan

# Who fills the trees. All policies decode with the same budget and give the same tokens.
#   plain           nobody: one token per forward
#   lookup          a chain copied from the sequence's own past (prompt lookup, a baseline)
#   retrieval       the matrix has the whole budget
#   dense           the drafter has the whole budget; `eagle3` is the same with an EAGLE-3 head
#   pruned          the drafter, stopping at checkpoints; released slots stay empty
#   graft-unpruned  the drafter and the matrix have half the budget each
#   graft           the drafter, stopping at checkpoints; the matrix has the released slots [paper]
#   graft+          drafter (if there is one), matrix and longer contexts: the likeliest nodes,
#                   wherever they hang [ours]
#   suffix          longer contexts alone, the likeliest nodes (a baseline)
#   rasd            the drafter's tree and that of the contexts behind what the drafter names first,
#                   in one, each at its face value (a baseline, after RASD)
Policy = Literal[
    "plain",
    "lookup",
    "retrieval",
    "dense",
    "eagle3",
    "pruned",
    "graft-unpruned",
    "graft",
    "graft+",
    "suffix",
    "rasd",
]
DRAFTING = ("dense", "eagle3", "pruned", "graft-unpruned", "graft", "graft+", "rasd")
NEEDING_DRAFTER = tuple(policy for policy in DRAFTING if policy != "graft+")
RETRIEVING = ("retrieval", "graft-unpruned", "graft", "graft+", "suffix", "rasd")
VALUED = ("graft+", "suffix", "rasd")
TEMPLATED = tuple(policy for policy in RETRIEVING if policy not in VALUED)
PRUNING = ("pruned", "graft", "graft+")
# Parts of graft+ that can be left out, to see what each is good for:
#   contexts     followers of longer contexts
#   anywhere     retrieved nodes under drafted ones
#   calibration  what the sources' candidates are worth, learnt while decoding
#   depth        drafting goes on where it pays; without, where the confidence is high enough
#   budget       as many nodes as pay are verified; without, the whole budget always
Part = Literal["contexts", "anywhere", "calibration", "depth", "budget"]
# What a prompt teaches the matrix: the successions of its own tokens (free), the target's best
# successors of each of them (costs the output layer over the whole prompt), or nothing.
PromptLearning = Literal["text", "logits", "off"]
# Who shares a matrix: nobody (each request has its own, empty at first), all requests of this
# engine, or these and all that use the same file.
MatrixScope = Literal["request", "process", "file"]
# Budgets of the paper's preset and of its scaled ones.
PRESETS = {f"paper-{budget}": budget for budget in (60, 32, 16, 8, 4)}

MAX_BUDGET = 256
# Verification costs time per row on a CPU and hardly any on a GPU below about 60 rows.
DEFAULT_BUDGET = {"cpu": 4, "cuda": 60}
# Where rounds decide how much of it they verify.
DEFAULT_LIMIT = {"cpu": 16, "cuda": 60}


@dataclass(frozen=True)
class EngineSettings:
    """How an engine decodes. None of these changes the tokens, only the speed.

    Attributes:
        policy: who fills the trees; None is "graft+", but where settings of the paper's rule are
            given "graft" with a drafter and "retrieval" without: preset, checkpoints, thresholds,
            kept, templates.
        budget: K, nodes per tree without the root, and for graft+ the most that a round may
            verify; None picks by preset or device (`DEFAULT_BUDGET`, `DEFAULT_LIMIT`).
        preset: "paper-60" for the paper's numbers, or a proportionally scaled "paper-N".
        beam, depth: nodes expanded per level, and levels of draft nodes; None scales the paper's
            10 and 8 with the budget.
        checkpoints: draft steps after which drafting may stop; None scales the paper's (0, 1, 5)
            with the depth.
        thresholds: confidence below which it stops, one per checkpoint; None takes
            (0.35, 0.25, 0.15), which are not calibrated for any model.
        kept: draft nodes kept at each checkpoint; None scales the paper's (8, 24, 40) of 60. A
            draft that does not stop early keeps the whole budget.
        dedup: what becomes of retrieved nodes below one that the draft holds: "redirect" hangs
            them there, "skip" leaves them out.
        refill: give slots that retrieval leaves empty to draft candidates that were not kept.
        k: successors the matrix holds per token.
        matrix_scope: who shares a matrix.
        prompt_learning: what a prompt teaches the matrix: "text", "logits" or "off".
        max_batch: requests that decode together; more wait for their turn.
        without: parts of graft+ that are left out (`Part`), to see what they are good for.

    Raises:
        ValueError: naming the setting, what was found and what is supported.
    """

    policy: Policy | None = None
    budget: int | None = None
    preset: str | None = None
    beam: int | None = None
    depth: int | None = None
    checkpoints: tuple[int, ...] | None = None
    thresholds: tuple[float, ...] | None = None
    kept: tuple[int, ...] | None = None
    dedup: Dedup = "redirect"
    refill: bool = True
    k: int = 8
    matrix_scope: MatrixScope = "process"
    prompt_learning: PromptLearning = "text"
    max_batch: int = 8
    without: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if self.policy is not None:
            _one_of("policy", self.policy, get_args(Policy))
        if self.preset is not None:
            _one_of("preset", self.preset, tuple(PRESETS))
        _one_of("dedup", self.dedup, get_args(Dedup))
        _one_of("matrix_scope", self.matrix_scope, get_args(MatrixScope))
        _one_of("prompt_learning", self.prompt_learning, get_args(PromptLearning))
        for name, high in (("budget", MAX_BUDGET), ("beam", 64), ("depth", 32)):
            if (found := getattr(self, name)) is not None:
                _between(name, found, 1, high)
        _between("k", self.k, 1, 64)
        _between("max_batch", self.max_batch, 1, 1024)
        for part in self.without:
            _one_of("without", part, get_args(Part))
        for name in ("checkpoints", "thresholds", "kept"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, _numbers(name, given))
        # Settings that hang together are checked where they come together, if they are read: here
        # if the budget is known, else by the engine, which knows the device.
        if (budget := self.budget or PRESETS.get(self.preset or "")) is not None:
            self.plan(self.policy_with(drafter=True), budget)

    def having(self, **changes: Any) -> EngineSettings:
        """These settings with those changes that are not None."""
        return replace(self, **{k: v for k, v in changes.items() if v is not None})

    def policy_with(self, *, drafter: bool, templates: bool = False) -> Policy:
        """The policy that holds, with or without a drafter and templates of the user's."""
        rule = (self.preset, self.checkpoints, self.thresholds, self.kept)
        if templates or any(given is not None for given in rule):
            return self.policy or ("graft" if drafter else "retrieval")
        return self.policy or "graft+"

    def budget_on(self, policy: Policy, device_type: str) -> int:
        """The budget that holds for a policy on a device."""
        if policy == "plain":
            return 0
        defaults = DEFAULT_LIMIT if self.sizes_by_worth(policy) else DEFAULT_BUDGET
        default = defaults.get(device_type, defaults["cuda"])
        return self.budget or PRESETS.get(self.preset or "", default)

    def sizes_by_worth(self, policy: Policy) -> bool:
        """Whether rounds verify as many nodes as pay."""
        return policy == "graft+" and "budget" not in self.without

    def stops_by_worth(self, policy: Policy) -> bool:
        """Whether drafting goes on as long as it pays: the rule where none is given."""
        ruled = (self.checkpoints, self.thresholds, self.kept) != (None, None, None)
        return policy == "graft+" and "depth" not in self.without and not ruled

    def weighs(self, policy: Policy) -> bool:
        """Whether rounds need to know what things cost."""
        return self.sizes_by_worth(policy) or self.stops_by_worth(policy)

    def plan(self, policy: Policy, budget: int) -> DraftPlan:
        """How a drafter spends a round of this budget.

        Raises:
            ValueError: for checkpoints, thresholds and kept nodes that do not fit together.
        """
        if policy == "plain":
            return pruning.dense(0, 1, 1)
        beam = self.beam or pruning.scaled_beam(budget)
        depth = self.depth or pruning.scaled_depth(budget)
        if policy not in PRUNING:
            share = {"graft-unpruned": (budget + 1) // 2, "retrieval": 0, "suffix": 0}
            return pruning.dense(budget, beam, depth, share.get(policy, budget))
        if self.stops_by_worth(policy):
            every = tuple(range(depth - 1))
            return DraftPlan(budget, beam, depth, every, (0.0,) * len(every), (budget,) * depth)
        marks = pruning.scaled_checkpoints(depth) if self.checkpoints is None else self.checkpoints
        kept = pruning.scaled_kept(budget, marks) if self.kept is None else (*self.kept, budget)
        thresholds = self.thresholds
        if thresholds is None:
            thresholds = pruning.default_thresholds(marks)
        try:
            if self.kept is not None and (
                len(self.kept) != len(marks) or any(not 0 <= n <= budget for n in self.kept)
            ):
                raise ValueError(
                    f"kept={self.kept}: one number from 0 to the budget {budget} is supported for "
                    f"each of the {len(marks)} checkpoints {marks}"
                )
            return DraftPlan(budget, beam, depth, marks, thresholds, kept)
        except ValueError as error:
            if self.depth is not None:
                raise
            raise ValueError(
                f"{error} (budget {budget} has depth {depth} and checkpoints "
                f"{pruning.scaled_checkpoints(depth)} if nothing else is set; preset paper-60 has "
                "depth 8 and checkpoints (0, 1, 5))"
            ) from error


def _one_of(name: str, found: object, supported: tuple[str, ...]) -> None:
    if found not in supported:
        raise ValueError(f"{name}={found!r}: supported are {', '.join(supported)}")


def _between(name: str, found: object, low: int, high: int) -> None:
    if not isinstance(found, int) or isinstance(found, bool) or not low <= found <= high:
        raise ValueError(f"{name}={found!r}: an integer from {low} to {high} is supported")


def _numbers(name: str, given: Any) -> tuple[Any, ...]:
    kinds = (int, float) if name == "thresholds" else (int,)
    fine = isinstance(given, tuple | list) and all(
        isinstance(n, kinds) and not isinstance(n, bool) for n in given
    )
    if not fine:
        what = "numbers" if name == "thresholds" else "integers"
        raise ValueError(f"{name}={given!r}: a tuple of {what} is supported")
    return tuple(given)
