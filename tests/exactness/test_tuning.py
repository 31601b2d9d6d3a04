"""Tuning finds settings that make more tokens per second, by the costs that are given."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from graft.costs import Costs
from graft.matrix import Best
from graft.pruning import scaled_depth
from graft.rank_paths import stage_templates
from graft.replay import Recording, every_step, record
from graft.settings import EngineSettings, Policy
from graft.template import RankPath, Template
from graft.tuning import Player, templated, tune
from tests.cost_tables import DEAR, FREE
from tests.exactness.drafting import DRAFTERS, engine
from tests.exactness.helpers import PROMPTS
from tests.tiny_models import VOCAB_SIZE

BEAM, DEPTH = 4, 5
BUDGETS = (2, 6, 16)


@cache
def recordings() -> list[Recording]:
    """Two answers of each of two tasks."""
    made = engine(DRAFTERS["model"]())
    plan = every_step(80, BEAM, DEPTH)
    out = []
    for number, prompt in enumerate([*PROMPTS[:2], *PROMPTS[:2]]):
        heat = 0.0 if number < 2 else 1.0
        found = made.generate(
            prompt, max_new_tokens=40, ignore_eos=True, temperature=heat, seed=number
        )
        task = "greedy" if number < 2 else "sampled"
        args = made.target, made.drafter, made.matrix, plan, prompt, found.token_ids
        out.append(record(*args, task))
    return out


def player(costs: Costs) -> Player:
    made = engine(DRAFTERS["model"]())
    return Player(
        recordings(),
        costs,
        made.drafter,
        beam=BEAM,
        depth=DEPTH,
        templates=made.templates,
        token_count=VOCAB_SIZE,
        device_type="cpu",
    )


@pytest.mark.parametrize("policy", ["retrieval", "dense", "graft", "graft+"])
def test_the_choice_is_better_than_every_start(policy: Policy) -> None:
    given = player(DEAR)
    base = EngineSettings()
    choice = tune(given, base, policy, BUDGETS)
    starts = [
        base.having(policy=policy, budget=k, beam=BEAM, depth=min(scaled_depth(k), DEPTH))
        for k in BUDGETS
    ]
    rates = [given.play(s, policy).tokens_per_second for s in starts]
    assert choice.score.tokens_per_second >= max(rates)
    again = given.play(choice.settings, policy)
    assert again.tokens_per_second == pytest.approx(choice.score.tokens_per_second)
    assert list(choice.score.tasks) == ["greedy", "sampled"]


@pytest.mark.parametrize("policy", ["dense", "graft"])
def test_dear_rows_make_small_budgets(policy: Policy) -> None:
    dear = tune(player(DEAR), EngineSettings(), policy, BUDGETS).settings.budget
    free = tune(player(FREE), EngineSettings(), policy, BUDGETS).settings.budget
    assert dear is not None
    assert free is not None
    assert dear < free


def test_dear_steps_make_shallow_drafts() -> None:
    dear = Costs((1,), (0.01,), step=0.02)
    for policy in ("dense", "graft"):
        costly = tune(player(dear), EngineSettings(), policy, (8,)).score.whole  # type: ignore[arg-type]
        cheap = tune(player(FREE), EngineSettings(), policy, (8,)).score.whole  # type: ignore[arg-type]
        assert costly.steps / costly.rounds < cheap.steps / cheap.rounds


def second_best() -> Player:
    """Texts whose next token is always the second of what the target holds likeliest."""
    text = [5, 3, 4] * 14
    follows = {5: 3, 3: 4, 4: 5}
    said = torch.tensor([[9, follows[token], 8] for token in text])
    one = Recording("task", torch.tensor([2, *text]), 1, [], Best(said, said.float()))
    return replace(player(DEAR), recordings=[one] * 4, drafter=None)


@pytest.mark.parametrize("shipped", [((0,), (0, 0)), ((1,), (1, 1))])
def test_templates_are_kept_where_they_serve_better(shipped: tuple[RankPath, ...]) -> None:
    given = replace(second_best(), templates=[Template(shipped)])
    choice = tune(given, EngineSettings(k=3), "retrieval", (2,))
    found = templated(given, choice)
    if (1,) in shipped:
        assert found == choice
        return
    (template,) = found.templates
    assert template.paths[:2] == ((1,), (1, 1))
    assert found.score.tokens_per_second > choice.score.tokens_per_second
    assert found.settings == choice.settings
    again = replace(given, templates=found.templates).play(choice.settings, "retrieval")
    assert again.tokens_per_second == pytest.approx(found.score.tokens_per_second)
    alone = replace(given, recordings=given.recordings[:1])  # nothing to try them on
    assert not templated(alone, choice).templates


def test_every_stage_gets_a_template() -> None:
    given = player(DEAR)
    choice = tune(given, EngineSettings(), "graft", (6,))
    plan = given.plan(choice.settings, "graft")
    assert plan.stages > 1
    made = stage_templates(given.recordings, plan, VOCAB_SIZE, 12)
    assert [len(template) for template in made] == [12] * plan.stages
    assert replace(given, templates=made).play(choice.settings, "graft").whole.tau >= 1


def test_plain_decoding_takes_a_forward_a_token() -> None:
    plain = player(DEAR).plain()
    assert plain.whole.tau == 1.0
    assert plain.tokens_per_second == pytest.approx(1 / DEAR.of_rows(1))


def test_tasks_can_be_left_out() -> None:
    part = player(DEAR).of_tasks(["sampled"])
    assert part.tasks == ["sampled"]
    whole = player(DEAR).play(EngineSettings(budget=4), "dense")
    assert part.play(EngineSettings(budget=4), "dense").tasks == {"sampled": whole.tasks["sampled"]}
