"""The counters of rounds add up, for every policy and drafter, whatever the workload.

    first token + accepted draft + accepted retrieved + rounds - trimmed = generated tokens
    sum of the stage histogram = rounds;  proposed <= rounds x K;  draft + retrieved + empty = K

and what a round says of its stage agrees with its confidences, its draft steps and its nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.metrics import RoundRecord
from graft.pruning import DraftPlan
from graft.request import Result
from graft.settings import DRAFTING, RETRIEVING, VALUED, EngineSettings
from graft.tree import Source
from tests.exactness.cases import SETTINGS
from tests.exactness.drafting import DRAFTERS, engine, taught
from tests.exactness.helpers import PROMPTS

WAYS = [
    ("plain", None),
    ("lookup", None),
    ("retrieval", None),
    ("suffix", None),
    ("graft+", None),
    *((p, d) for d in DRAFTERS for p in DRAFTING if p != "eagle3" or d == "eagle3"),
]
ROUNDING = 1e-6  # confidences are read in steps of 2^-24
SUMS = (
    "draft_steps",
    "kept_draft",
    "released_slots",
    "redirected",
    "accepted_draft",
    "accepted_retrieved",
    "proposed_draft",
    "proposed_retrieved",
    "empty_slots",
    "unspent_slots",
    "rows_written",
)


def check(
    result: Result, policy: str, chosen: EngineSettings, budget: int, *, drafter: bool = True
) -> None:
    """Everything that must hold of one answer."""
    stats, records = result.stats, result.stats.round_records
    staged = policy if drafter or policy != "graft+" else "suffix"
    plan = chosen.plan(staged, budget)  # type: ignore[arg-type]
    assert 1 + stats.accepted_draft + stats.accepted_retrieved + stats.rounds - stats.trimmed == (
        len(result.token_ids)
    )
    assert stats.rounds == len(records) == sum(stats.stage_histogram.values())
    assert stats.stage_histogram == Counter(record.stage for record in records)
    for name in SUMS:
        assert getattr(stats, name) == sum(getattr(record, name) for record in records)
    assert stats.proposed_draft + stats.proposed_retrieved <= stats.rounds * budget
    # Tokens behind the end are accepted but not given out.
    accepted = {Source.DRAFT: stats.accepted_draft, Source.RETRIEVED: stats.accepted_retrieved}
    missing = {s: n - result.sources.count(s) for s, n in accepted.items()}
    assert min(missing.values()) >= 0
    assert sum(missing.values()) <= stats.trimmed <= sum(missing.values()) + 1
    for before, after in pairwise(records):
        assert after.context == before.context + before.accepted + 1
    if records:
        assert stats.tau == pytest.approx(1 + sum(r.accepted for r in records) / len(records))
        assert records[0].context == result.usage.prompt_tokens + 1
    for record in records:
        check_slots(record, policy, chosen, budget)
        check_stage(record, staged, plan, ruled=not chosen.stops_by_worth(policy))  # type: ignore[arg-type]


WITH_MATRIX = tuple(policy for policy in RETRIEVING if policy not in ("suffix", "rasd"))


def check_slots(record: RoundRecord, policy: str, chosen: EngineSettings, budget: int) -> None:
    """Who has the slots of a round."""
    assert record.proposed + record.empty_slots + record.unspent_slots == budget
    assert record.released_slots == budget - record.kept_draft
    assert 0 <= record.accepted_draft <= record.proposed_draft
    assert 0 <= record.accepted_retrieved <= record.proposed_retrieved
    assert 0 <= record.hits <= record.lookups
    assert 0 <= record.context_hits <= record.context_lookups
    assert 0 <= record.accepted_context <= record.proposed_context <= record.proposed_retrieved
    assert record.accepted_context <= record.accepted_retrieved
    assert policy in VALUED or record.context_lookups == record.proposed_context == 0
    assert 0 <= record.redirected <= record.kept_draft
    assert min(record.empty_slots, record.kept_draft, record.released_slots) >= 0
    if policy in DRAFTING:
        assert record.proposed_retrieved <= record.released_slots
        assert record.proposed_draft >= record.kept_draft
        if not (chosen.refill and policy in RETRIEVING):
            assert record.proposed_draft == record.kept_draft
    else:
        assert record.proposed_draft == 0
    if policy in WITH_MATRIX:
        # A batch may decode plainly for a while: then nobody is asked and nothing is learnt.
        plainly = policy == "graft+" and record.batch > 1 and record.stage == "none"
        assert record.rows_written <= record.batch * (budget + 1)
        assert record.rows_written >= 1 or (plainly and not record.proposed)
        assert policy in VALUED or record.proposed_retrieved <= record.hits
    else:
        assert record.rows_written == record.lookups == record.hits == 0
        assert policy in VALUED or record.redirected == 0
        assert policy in (*VALUED, "lookup") or record.proposed_retrieved == 0
    if policy == "lookup":  # what it copies is retrieved
        assert record.kept_draft == 0


def check_stage(record: RoundRecord, policy: str, plan: DraftPlan, *, ruled: bool) -> None:
    """What a round says of where drafting stopped; ruled: by the plan's thresholds."""
    if record.stage == "none" and record.batch > 1:
        assert record.draft_steps == record.proposed_draft == 0
        return
    names = [plan.stage_name(stage) for stage in range(plan.stages)]
    stage = names.index(record.stage)
    seen = record.confidence
    assert len(seen) == min(stage + 1, len(plan.checkpoints))
    assert all(0 <= c <= 1 for c in seen)
    assert all(after <= before for before, after in pairwise(seen))
    for mark, confidence in enumerate(seen):
        if not ruled:
            continue
        if mark == stage:
            assert confidence < plan.thresholds[mark] + ROUNDING
        else:
            assert confidence >= plan.thresholds[mark] - ROUNDING
    if policy in DRAFTING:
        assert policy in VALUED or record.kept_draft <= plan.kept[stage]
        steps = plan.checkpoints[stage] if record.stage != "full" else plan.depth - 1
        # A batch drafts as long as any of its sequences does.
        assert steps == record.draft_steps if record.batch == 1 else steps <= record.draft_steps
    else:
        assert record.draft_steps == 0


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of drafting, anywhere in their range."""
    budget = draw(st.sampled_from([1, 2, 3, 8, 16, 60]))
    chosen: dict[str, Any] = {
        "budget": budget,
        "refill": draw(st.booleans()),
        "dedup": draw(st.sampled_from(["redirect", "skip"])),
        "max_batch": draw(st.integers(1, 3)),
        "matrix_scope": draw(st.sampled_from(["process", "request"])),
        "prompt_learning": draw(st.sampled_from(["text", "off"])),
    }
    if draw(st.booleans()):
        depth = draw(st.integers(1, 7))
        marks = draw(st.sets(st.integers(0, depth - 1), max_size=3))
        some = st.lists(st.sampled_from([0.0, 0.2, 0.9, 1.5]), min_size=len(marks))
        kept = st.lists(st.integers(0, budget), min_size=len(marks), max_size=len(marks))
        chosen |= {"depth": depth, "beam": draw(st.integers(1, 6))}
        chosen |= {"checkpoints": tuple(sorted(marks)), "kept": tuple(draw(kept))}
        chosen |= {"thresholds": tuple(draw(some)[: len(marks)])}
    return chosen


@settings(deadline=None, max_examples=12)
@given(
    chosen=plans(),
    prompts=st.lists(st.sampled_from(PROMPTS), min_size=1, max_size=4),
    limit=st.integers(1, 16),
    temperature=st.sampled_from([0.0, 0.8]),
    ends=st.lists(st.integers(0, 255), max_size=30),
)
@pytest.mark.parametrize(("policy", "drafter"), WAYS)
def test_any_workload_adds_up(
    policy: str,
    drafter: str | None,
    chosen: dict[str, Any],
    prompts: list[list[int]],
    limit: int,
    temperature: float,
    ends: list[int],
) -> None:
    made = engine(DRAFTERS[drafter]() if drafter else None, **chosen)
    options: dict[str, Any] = {"max_new_tokens": limit, "temperature": temperature, "seed": 1}
    found = made.generate(prompts, policy=policy, stop_token_ids=tuple(ends), **options)
    budget = 0 if policy == "plain" else chosen["budget"]
    for result in found:
        check(result, policy, made.settings, budget, drafter=drafter is not None)


def usual() -> tuple[Result, EngineSettings]:
    """An answer with drafted, retrieved, redirected and accepted nodes, in several stages."""
    made = taught(
        engine(DRAFTERS["eagle3"](), budget=16, refill=False, thresholds=(0, 0.9, 0.9)), "sampled"
    )
    result = made.continue_ids(PROMPTS[1], SETTINGS["sampled"](), row=1, policy="graft")
    return result, made.settings


def test_the_workloads_have_something_to_count() -> None:
    result, chosen = usual()
    check(result, "graft", chosen, 16)
    stats = result.stats
    assert min(stats.accepted_draft, stats.accepted_retrieved, stats.redirected) > 0
    assert len(stats.stage_histogram) > 1


@pytest.mark.parametrize("name", [*SUMS, "lookups", "hits", "context", "stage", "confidence"])
@pytest.mark.parametrize("both", [False, True], ids=["one round", "and the sum"])
def test_a_counter_that_is_off_is_seen(name: str, both: bool) -> None:
    """Off by so much that it is out of its bounds, alone and in its sum."""
    result, chosen = usual()
    wrong: dict[str, Callable[[Any], Any]] = {
        "stage": lambda stage: "d0" if stage == "full" else "full",
        "confidence": lambda seen: seen[:-1],
        "rows_written": lambda n: n + 1000,
        "redirected": lambda n: n + 1000,
        "draft_steps": lambda n: n - 1000,
        "hits": lambda n: n + 1000,
        "lookups": lambda n: n - 1000,
    }
    change = wrong.get(name, lambda n: n + 1)
    first, *rest = result.stats.round_records
    spoilt = replace(first, **{name: change(getattr(first, name))})
    stats = replace(result.stats, round_records=(spoilt, *rest))
    if both and name in SUMS:
        stats = replace(stats, **{name: sum(getattr(r, name) for r in stats.round_records)})
    with pytest.raises(AssertionError):
        check(replace(result, stats=stats), "graft", chosen, 16)


@pytest.mark.parametrize("name", ["trimmed", "rounds", *SUMS])
def test_a_sum_that_is_off_is_seen(name: str) -> None:
    result, chosen = usual()
    stats = replace(result.stats, **{name: getattr(result.stats, name) + 1})
    with pytest.raises(AssertionError):
        check(replace(result, stats=stats), "graft", chosen, 16)
