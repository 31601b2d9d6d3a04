"""Calibration: the settings that make most tokens per second for a model, a drafter and a machine.

The model answers prompts; its answers are recorded (`graft.replay`), costs are measured
(`graft.cost_measure`), and settings of every policy are played over the recordings
(`graft.tuning`). The engine learns nothing of it. [ours]

It knows engines and policies, not options or files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from graft.engine import Engine
from graft.looping import LOOPING, repeated_8grams
from graft.profile import TUNED, MadeFor, Profile
from graft.prompts import Prompt, encode
from graft.pruning import scaled_beam, scaled_depth
from graft.replay import Recording, every_step, record
from graft.settings import TEMPLATED, EngineSettings, Policy
from graft.tuning import Choice, Player, Score, templated, tune

# To choose from: rows cost from the first one on a CPU and hardly anything on a GPU.
BUDGETS = {"cpu": (2, 3, 4, 6, 8, 11, 13, 16), "cuda": (8, 16, 32, 60)}
# Candidates recorded per slot of the largest budget, so that shallow drafts find theirs.
SPARE = 3

Progress = Callable[[int, int, str], None]  # steps done, of how many, and what comes next


@dataclass(frozen=True)
class Calibration:
    """What was found.

    Attributes:
        player: of the recordings.
        choices: per policy, the best settings.
        preset: per policy, the settings that hold without a profile.
        plain: plain decoding.
        transfer: per task, tokens/s there with the best policy tuned on all tasks, and tuned on
            the others.
        looping: answers that were left out because they loop.
    """

    player: Player
    choices: dict[Policy, Choice]
    preset: dict[Policy, Choice]
    plain: Score
    transfer: dict[str, tuple[float, float]]
    looping: int

    @property
    def best(self) -> Policy:
        """The policy with most tokens per second, of those that are nowhere slower than plain
        decoding; if there is none, that."""
        fine: dict[Policy, float] = {
            policy: choice.score.tokens_per_second
            for policy, choice in self.choices.items()
            if self.least_gain(choice.score) >= 1.0
        }
        return max(fine, key=lambda policy: fine[policy], default="plain")

    def least_gain(self, score: Score) -> float:
        """Tokens per second over those of plain decoding, on the task where that is least."""
        return min(
            played.tokens_per_second / self.plain.tasks[task].tokens_per_second
            for task, played in score.tasks.items()
        )

    def profile(self, here: MadeFor) -> Profile:
        """As a profile."""
        settings = {}
        for policy, choice in self.choices.items():
            values = {name: getattr(choice.settings, name) for name in TUNED}
            settings[str(policy)] = {k: v for k, v in values.items() if v is not None}
        rates = {str(p): c.score.tokens_per_second for p, c in self.choices.items()}
        rates["plain"] = self.plain.tokens_per_second
        templates = {str(p): c.templates for p, c in self.choices.items() if c.templates}
        return Profile(here, self.player.costs, self.best, settings, rates, templates)


def calibrate(
    engine: Engine,
    prompts: Sequence[tuple[str, Prompt]],
    *,
    tokens: int = 96,
    temperatures: Sequence[float] = (0.0, 0.7),
    budgets: Sequence[int] = (),
    transfer: bool = True,
    progress: Progress = lambda *_: None,
) -> Calibration:
    """Calibrate an engine.

    Args:
        engine: without a profile.
        prompts: with the task of each.
        tokens: of an answer at most.
        temperatures: of the answers, in turn.
        budgets: to choose from; none takes those of the device (`BUDGETS`).
        transfer: whether to tune once more without each task.

    Raises:
        ValueError: if all answers loop or are too short.
    """
    kind = engine.target.device.type
    sizes = tuple(budgets) or BUDGETS.get(kind, BUDGETS["cuda"])
    beam, depth = scaled_beam(max(sizes)), scaled_depth(max(sizes))
    policies = _policies(engine)
    tasks = len({task for task, _ in prompts}) if transfer else 0
    known = 1 + len(temperatures) + len(prompts) + len(policies) + tasks
    steps = _Steps(progress, known)
    steps.next("measuring costs")
    costs = engine.costs(max(sizes), fine=True)
    recordings, looping = _recordings(
        engine, prompts, tokens, temperatures, (SPARE * max(sizes), beam, depth), steps
    )
    player = Player(
        recordings,
        costs,
        engine.drafter,
        beam=beam,
        depth=depth,
        templates=engine.templates,
        token_count=engine.token_count,
        device_type=kind,
    )
    base = EngineSettings(k=engine.settings.k)
    choices: dict[Policy, Choice] = {}
    preset: dict[Policy, Choice] = {}
    for policy in policies:
        steps.next(f"tuning {policy}")
        usual = base.budget_on(policy, kind)
        preset[policy] = tune(player, base, policy, (usual,), rule=True)
        choices[policy] = _tuned(player, base, policy, sizes)
    found = Calibration(player, choices, preset, player.plain(), {}, looping)
    if transfer and found.best != "plain":
        return replace(found, transfer=_transfer(found, base, sizes, steps))
    return found


class _Steps:
    """Tells how far work has come."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def next(self, what: str) -> None:
        """A step begins."""
        self._progress(self._done, self._total, what)
        self._done += 1


def _recordings(
    engine: Engine,
    prompts: Sequence[tuple[str, Prompt]],
    tokens: int,
    temperatures: Sequence[float],
    shape: tuple[int, int, int],
    steps: _Steps,
) -> tuple[list[Recording], int]:
    """Recordings of plain answers, and how many loop."""
    out, looping = [], 0
    answers: dict[int, list[int]] = {}
    all_ids = [encode(prompt, engine.tokenizer, raw=False) for _, prompt in prompts]
    for number, heat in enumerate(temperatures):
        steps.next("answering")
        here = list(range(number, len(prompts), len(temperatures)))
        asked = [all_ids[i] for i in here]
        found = engine.generate(
            asked, policy="plain", max_new_tokens=tokens, temperature=heat, seed=number
        )
        answers |= {i: result.token_ids for i, result in zip(here, found, strict=True)}
    for number, (task, _) in enumerate(prompts):
        steps.next("recording what is drafted")
        ids, answer = all_ids[number], answers[number]
        if repeated_8grams(answer) > LOOPING:
            looping += 1
        elif len(answer) > 2:
            with engine.borrow_target() as target:
                plan = every_step(*shape)
                out.append(record(target, engine.drafter, engine.matrix, plan, ids, answer, task))
            engine.forget()
    if not out:
        raise ValueError(
            f"of {len(prompts)} answers {looping} loop and the others are too short: give other "
            "prompts (--suite)"
        )
    return out, looping


def _tuned(player: Player, base: EngineSettings, policy: Policy, sizes: Sequence[int]) -> Choice:
    choice = tune(player, base, policy, sizes)
    return templated(player, choice) if policy in TEMPLATED else choice


def _policies(engine: Engine) -> tuple[Policy, ...]:
    if engine.drafter is None:
        return ("retrieval", "suffix", "graft+")
    return ("retrieval", "dense", "graft", "graft+")


def _transfer(
    found: Calibration, base: EngineSettings, sizes: Sequence[int], steps: _Steps
) -> dict[str, tuple[float, float]]:
    """Tune the best policy without each task, and see how it does there."""
    player, best = found.player, found.choices[found.best]
    tasks = player.tasks if len(player.tasks) > 1 else []
    out = {}
    for task in tasks:
        steps.next(f"tuning without {task}")
        others = player.of_tasks([t for t in tasks if t != task])
        tuned = _tuned(others, base, best.policy, sizes)
        there = replace(player, templates=tuned.templates or player.templates)
        with_all = best.score.tasks[task].tokens_per_second
        played = there.play(tuned.settings, best.policy).tasks[task].tokens_per_second
        out[task] = with_all, played
    return out
