"""Tuning: which budget, depth, thresholds and kept nodes give most tokens per second. [ours]

Settings are played over recorded answers (`graft.replay`), each time from an empty matrix on, and
time is counted by measured costs. Every task counts alike. The search goes by coordinates: first
the budget, with the rule of the preset; then, at the best one, depth, each threshold and each
number of kept nodes in turn, as long as it helps; last the templates (`templated`).

It knows settings and recordings: not engines, not prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from graft.assembly import SPARE, make_parts, make_plan, pick_drafter
from graft.costs import Costs
from graft.drafters.base import Drafter
from graft.matrix import AdjacencyMatrix
from graft.memory import Memory
from graft.pruning import DraftPlan, scaled_depth
from graft.rank_paths import stage_templates
from graft.replay import Played, Recording, play
from graft.settings import DRAFTING, EngineSettings, Policy
from graft.template import Template

THRESHOLDS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 1.1)
SHARES = (0.15, 0.3, 0.5, 0.75, 1.0)  # of the budget, kept at a checkpoint
GAIN = 1.002  # below which a change is not worth having


@dataclass(frozen=True)
class Score:
    """What settings come to.

    Attributes:
        tasks: what was played of each task.
    """

    tasks: dict[str, Played]

    @property
    def tokens_per_second(self) -> float:
        """Mean of the tasks."""
        return sum(p.tokens_per_second for p in self.tasks.values()) / max(len(self.tasks), 1)

    @property
    def whole(self) -> Played:
        """All tasks together."""
        return sum(self.tasks.values(), Played())


@dataclass(frozen=True)
class Choice:
    """Settings of one policy, and what they come to."""

    policy: Policy
    settings: EngineSettings  # with its budget
    score: Score
    templates: tuple[Template, ...] = ()  # one per stage; none where the engine's serve as well


@dataclass(frozen=True)
class Player:
    """Plays settings over recordings.

    Attributes:
        costs: of rounds.
        drafter: the one that was recorded, if any.
        beam, depth: of the recordings.
        templates: as an engine has them.
        token_count: of the tokenizer.
        device_type: of the target.
    """

    recordings: Sequence[Recording]
    costs: Costs
    drafter: Drafter | None
    beam: int
    depth: int
    templates: Sequence[Template]
    token_count: int
    device_type: str

    def of_tasks(self, tasks: Sequence[str]) -> Player:
        """The recordings of some tasks."""
        return replace(self, recordings=[r for r in self.recordings if r.task in tasks])

    @property
    def tasks(self) -> list[str]:
        """Of the recordings, in order."""
        return list(dict.fromkeys(r.task for r in self.recordings))

    def play(self, settings: EngineSettings, policy: Policy) -> Score:
        """Play settings from an empty memory on.

        Raises:
            ValueError: for settings that do not fit together.
        """
        cpu = torch.device("cpu")
        memory = Memory(AdjacencyMatrix(self.token_count, settings.k, cpu))
        plan = self.plan(settings, policy)
        drafter = pick_drafter(policy, self.drafter)
        parts = make_parts(settings, policy, plan, memory, self.templates, drafter, 1, self.costs)
        out: dict[str, Played] = {}
        for recording in self.recordings:
            own = recording if policy in DRAFTING else recording._replace(drafts=[])
            played = play(own, parts.grafter, parts.spending, self.costs, waits=drafter.waits)
            out[recording.task] = out.get(recording.task, Played()) + played
        return Score(out)

    def plan(self, settings: EngineSettings, policy: Policy) -> DraftPlan:
        """How rounds of these settings are drafted."""
        return make_plan(settings, policy, self.drafter, self.templates, self.device_type)

    def plain(self) -> Score:
        """Plain decoding: a round is the target's forward over one row."""
        out: dict[str, Played] = {}
        for r in self.recordings:
            tokens = len(r.tokens) - r.start - 1
            seconds = tokens * self.costs.of_rows(1)
            out[r.task] = out.get(r.task, Played()) + Played(tokens, tokens, 0, tokens, seconds)
        return Score(out)


def tune(
    player: Player,
    base: EngineSettings,
    policy: Policy,
    budgets: Sequence[int],
    *,
    rule: bool = False,
) -> Choice:
    """The best settings of a policy.

    Args:
        base: what is not tuned, and the start of what is.
        budgets: to choose from.
        rule: leave all but the budget as the rules of the preset say.
    """
    beam = player.beam if policy in DRAFTING else None
    tried: dict[EngineSettings, Score] = {}

    def score(settings: EngineSettings) -> float:
        if settings not in tried:
            tried[settings] = player.play(settings, policy)
        return tried[settings].tokens_per_second

    def best_of(variants: Iterable[EngineSettings], than: EngineSettings) -> EngineSettings:
        found = max(variants, key=score)
        return found if score(found) > GAIN * score(than) else than

    starts = [
        base.having(
            policy=policy,
            budget=k,
            beam=beam,
            depth=min(scaled_depth(k), player.depth) if policy in DRAFTING else None,
        )
        for k in budgets
    ]
    best = max(starts, key=score)
    if rule:
        return Choice(policy, best, tried[best])
    if policy in DRAFTING:
        best = best_of([best.having(depth=d) for d in range(1, player.depth + 1)], best)
    if policy in ("pruned", "graft"):
        best = _spelt_out(best, policy)
        for _ in range(2):
            before = best
            for move in _moves(len(best.thresholds or ())):
                best = best_of(move(best), best)
            if best == before:
                break
    return Choice(policy, best, tried[best])


def templated(player: Player, choice: Choice) -> Choice:
    """A choice with templates of its own, where they serve better than the engine's on answers
    that they were not made from: of each half the templates are played on the other one."""
    size = SPARE * (choice.settings.budget or 1)
    plan = player.plan(choice.settings, choice.policy)

    def made(recordings: Sequence[Recording]) -> tuple[Template, ...]:
        return stage_templates(recordings, plan, player.token_count, size)

    def rate(recordings: Sequence[Recording], templates: Sequence[Template]) -> float:
        other = replace(player, recordings=recordings, templates=templates)
        return other.play(choice.settings, choice.policy).tokens_per_second

    halves = player.recordings[::2], player.recordings[1::2]
    if not all(halves):
        return choice
    own = sum(rate(a, made(b)) for a, b in (halves, halves[::-1]))
    usual = sum(rate(half, player.templates) for half in halves)
    if own < GAIN * usual:
        return choice
    templates = made(player.recordings)
    score = replace(player, templates=templates).play(choice.settings, choice.policy)
    return replace(choice, score=score, templates=templates)


Move = Callable[[EngineSettings], list[EngineSettings]]


def _spelt_out(settings: EngineSettings, policy: Policy) -> EngineSettings:
    """With the numbers that hold where nothing is said."""
    assert settings.budget is not None, "a start has a budget"
    plan = settings.plan(policy, settings.budget)
    return settings.having(
        depth=plan.depth,
        checkpoints=plan.checkpoints,
        thresholds=plan.thresholds,
        kept=plan.kept[:-1],
    )


def _moves(marks: int) -> list[Move]:
    """Each threshold, then each number of kept nodes."""
    return [partial(way, mark) for way in (_thresholds, _kept) for mark in range(marks)]


def _thresholds(mark: int, s: EngineSettings) -> list[EngineSettings]:
    return [s.having(thresholds=_put(s.thresholds, mark, t)) for t in THRESHOLDS]


def _kept(mark: int, s: EngineSettings) -> list[EngineSettings]:
    nodes = sorted({max(1, round(share * (s.budget or 1))) for share in SHARES})
    return [s.having(kept=_put(s.kept, mark, n)) for n in nodes]


def _put(numbers: tuple[Any, ...] | None, place: int, value: float) -> tuple[Any, ...]:
    assert numbers is not None, "it is spelt out"
    return (*numbers[:place], value, *numbers[place + 1 :])
