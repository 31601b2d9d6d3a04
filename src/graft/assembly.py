"""Who fills the trees: from settings to the plan and the parts of a generation.

It knows policies and their parts, not requests or rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graft.costs import Costs
from graft.drafters.base import Drafter
from graft.drafters.lookup import LookupDrafter
from graft.drafters.none import NoDrafter
from graft.estimates import Estimates
from graft.grafter import Grafter, TemplateGrafter
from graft.growth import Rules
from graft.host_valued import HostValuedGrafter
from graft.matrix import AdjacencyMatrix
from graft.memory import Memory
from graft.pruning import DraftPlan
from graft.retrieval import MatrixMemory, MatrixRetriever, NoRetriever
from graft.settings import (
    DRAFTING,
    NEEDING_DRAFTER,
    RETRIEVING,
    TEMPLATED,
    VALUED,
    EngineSettings,
    Policy,
)
from graft.spending import Fixed, Paying, Spending
from graft.template import Template
from graft.valued import ValuedGrafter

# Template paths per slot of the budget, so that paths that find no row, and those that the draft
# holds already, have successors.
SPARE = 2
# Depth of trees that are grown by value.
LEVELS = 10


def make_plan(
    settings: EngineSettings,
    policy: Policy,
    drafter: Drafter | None,
    templates: Sequence[Template],
    device_type: str,
) -> DraftPlan:
    """How rounds are drafted.

    Args:
        drafter: the one that is loaded, if any.
        device_type: of the target; the default budget depends on it.

    Raises:
        ValueError: for a policy whose drafter is missing, or settings that do not fit together.
    """
    if policy in NEEDING_DRAFTER and drafter is None:
        raise ValueError(
            f"policy={policy!r} drafts, but no drafter is loaded: give a head (--head) or a draft "
            "model (--draft-model), or use policy plain, lookup, retrieval, suffix or graft+"
        )
    if policy == "eagle3" and drafter is not None and drafter.name != "eagle3":
        raise ValueError(
            "policy='eagle3' needs an EAGLE-3 head; for other drafters the same is called "
            "policy='dense'"
        )
    shape: Policy = policy
    if policy == "graft+" and (drafter is None or not drafter.stepwise):
        # There are no steps to stop between; a block has a confident part.
        shape = "suffix" if drafter is None else "graft"
    plan = settings.plan(shape, settings.budget_on(policy, device_type))
    if policy in TEMPLATED and len(templates) not in (1, plan.stages):
        stages = ", ".join(map(plan.stage_name, range(plan.stages)))
        raise ValueError(
            f"{len(templates)} templates are loaded, but with policy={policy!r} the stages of a "
            f"round are {stages}: give one template, or one per stage"
        )
    return plan


def pick_drafter(policy: Policy, loaded: Drafter | None) -> Drafter:
    """The loaded drafter where the policy drafts with it."""
    if policy in DRAFTING and loaded is not None:
        return loaded
    assert policy not in NEEDING_DRAFTER, "make_plan() refused this"
    return LookupDrafter() if policy == "lookup" else NoDrafter()


class Parts(NamedTuple):
    """Who fills the trees of a generation, and what rounds spend."""

    grafter: Grafter
    spending: Spending


def make_parts(
    settings: EngineSettings,
    policy: Policy,
    plan: DraftPlan,
    memory: Memory,
    templates: Sequence[Template],
    drafter: Drafter,
    slots: int,
    costs: Costs | None,
) -> Parts:
    """Retrieval from the engine's memory, or, under matrix_scope "request", from an empty one per
    slot.

    Args:
        drafter: the one that drafts (`pick_drafter`).
        slots: requests that decode side by side.
        costs: needed where `settings.weighs` says so.
    """
    if policy not in RETRIEVING:
        nothing = TemplateGrafter(NoRetriever(), plan.budget, refill=False)
        return Parts(nothing, Fixed(plan))
    shared = settings.matrix_scope != "request"
    if not shared:
        matrix = memory.matrix
        matrix = AdjacencyMatrix(matrix.token_count, matrix.k, matrix.ids.device, count=slots)
        memory = Memory(matrix, private=True)
    if policy not in VALUED:
        wanted = [template.take(SPARE * plan.budget) for template in templates]
        retriever = MatrixRetriever(memory.matrix, wanted, settings.prompt_learning, shared=shared)
        grafter = TemplateGrafter(
            retriever, plan.budget, dedup=settings.dedup, refill=settings.refill
        )
        return Parts(grafter, Fixed(plan))
    without = settings.without if policy == "graft+" else ()
    cells = memory.cells
    if policy == "rasd":
        estimates = Estimates(cells.at_face_value(), cells.voice, slots, learns=False)
    elif "calibration" in without:
        estimates = Estimates(memory.estimates.prior, cells.voice, slots, learns=False)
    else:
        estimates = memory.estimates
        estimates.resize(slots)
    spending: Spending = Fixed(plan)
    if settings.weighs(policy):
        assert costs is not None, "settings.weighs() said so"
        stops = settings.stops_by_worth(policy) and drafter.stepwise
        sizes = settings.sizes_by_worth(policy)
        spending = Paying(plan, costs, memory.worth, stops=stops, sizes=sizes)
    matrix_memory = MatrixMemory(memory.matrix, settings.prompt_learning, shared=shared)
    on_host = memory.matrix.ids.device.type == "cpu"
    valued = (HostValuedGrafter if on_host else ValuedGrafter)(
        plan,
        spending,
        cells,
        estimates,
        matrix_memory if policy == "graft+" else None,
        None if "contexts" in without else memory.contexts,
        levels=min(plan.budget, LEVELS),
        shared=shared,
        learn_prompts=settings.prompt_learning != "off",
        rules=Rules(anywhere="anywhere" not in without, drafter_first=policy == "rasd"),
    )
    return Parts(valued, spending)
