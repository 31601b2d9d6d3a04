"""Who fills the trees: from settings to the plan, the drafter and the retriever of a generation.

It knows policies and their parts, not requests or rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from graft.drafters.base import Drafter
from graft.drafters.lookup import LookupDrafter
from graft.drafters.none import NoDrafter
from graft.estimates import Estimates
from graft.grafter import Grafter, TemplateGrafter
from graft.matrix import AdjacencyMatrix
from graft.memory import Memory
from graft.pruning import DraftPlan
from graft.retrieval import MatrixRetriever, NoRetriever
from graft.settings import DRAFTING, NEEDING_DRAFTER, RETRIEVING, VALUED, EngineSettings, Policy
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
    # Without a drafter there is nothing to stop.
    shape: Policy = "suffix" if policy == "graft+" and drafter is None else policy
    plan = settings.plan(shape, settings.budget_on(policy, device_type))
    if policy in RETRIEVING and len(templates) not in (1, plan.stages):
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


def make_grafter(
    settings: EngineSettings,
    policy: Policy,
    plan: DraftPlan,
    memory: Memory,
    templates: Sequence[Template],
    slots: int,
) -> Grafter:
    """Retrieval from the engine's memory, or, under matrix_scope "request", from an empty one per
    slot."""
    if policy not in RETRIEVING:
        return TemplateGrafter(NoRetriever(), plan.budget, refill=False)
    matrix, shared = memory.matrix, settings.matrix_scope != "request"
    if not shared:
        matrix = AdjacencyMatrix(matrix.token_count, matrix.k, matrix.ids.device, count=slots)
        memory = Memory(matrix, private=True)
    wanted = [template.take(SPARE * plan.budget) for template in templates]
    retriever = MatrixRetriever(matrix, wanted, settings.prompt_learning, shared=shared)
    if policy not in VALUED:
        return TemplateGrafter(retriever, plan.budget, dedup=settings.dedup, refill=settings.refill)
    cells = memory.cells
    if policy == "rasd":
        estimates = Estimates(cells.at_face_value(), cells.voice, slots, learns=False)
    else:
        estimates = memory.estimates
        estimates.resize(slots)
    known = retriever if policy == "graft+" else None
    return ValuedGrafter(
        plan,
        cells,
        estimates,
        known,
        memory.contexts,
        levels=min(plan.budget, LEVELS),
        shared=shared,
        learn_prompts=settings.prompt_learning != "off",
        drafter_first=policy == "rasd",
    )
