"""What a call decodes with, all decided: settings, policy, templates, drafter and plan.

A call's word comes first, then the engine's, then the profile's, then what holds where nobody says
anything. It knows settings and parts, not requests or rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graft.assembly import Parts, make_parts, make_plan, pick_drafter
from graft.costs import Costs
from graft.drafters.base import Drafter
from graft.memory import Memory
from graft.profile import Profile
from graft.pruning import DraftPlan
from graft.settings import EngineSettings, Policy
from graft.template import Template


class Chosen(NamedTuple):
    """What a call decodes with."""

    settings: EngineSettings
    policy: Policy
    templates: Sequence[Template]
    drafter: Drafter  # who drafts under this policy
    plan: DraftPlan

    def parts(self, memory: Memory, slots: int, costs: Costs | None) -> Parts:
        """The parts of a generation (`make_parts`)."""
        return make_parts(
            self.settings,
            self.policy,
            self.plan,
            memory,
            self.templates,
            self.drafter,
            slots,
            costs,
        )


def choose(
    settings: EngineSettings,
    *,
    profile: Profile | None,
    templates: Sequence[Template],
    own_templates: bool,
    ranks: int,
    drafter: Drafter | None,
    device_type: str,
) -> Chosen:
    """Decide.

    Args:
        settings: of a call, filled up with the engine's.
        templates: of the engine, which are the user's own or those that ship.
        ranks: successors per token that the matrix holds; those of a profile are cut to them.
        drafter: the one that is loaded, if any.
        device_type: of the target; the default budget depends on it.

    Raises:
        ValueError: for settings that do not fit together.
    """
    if profile is not None:
        settings = profile.fill(settings)
        found = () if own_templates else profile.templates_of(settings)
        templates = [template.within(ranks) for template in found] or templates
    policy = settings.policy_with(drafter=drafter is not None, templates=own_templates)
    plan = make_plan(settings, policy, drafter, templates, device_type)
    return Chosen(settings, policy, templates, pick_drafter(policy, drafter), plan)
