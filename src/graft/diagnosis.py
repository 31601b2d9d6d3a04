"""Diagnosis: what is wrong with a run, in sentences, and what to try. [ours]

Each rule looks at the vitals of one method and says nothing where nothing is wrong. A rule needs
enough rounds to speak. Figures stand in the sentence; the advice names settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from graft.metrics import LAPS
from graft.settings import DRAFTING, PRUNING, RETRIEVING
from graft.vitals import Vitals

LEAST = 60  # rounds that a rule needs


class Finding(NamedTuple):
    """What a rule has to say."""

    rule: str
    what: str  # with the figures
    advice: str

    def __str__(self) -> str:
        return f"{self.what} {self.advice}"


def diagnose(vitals: Vitals) -> list[Finding]:
    """The findings of all rules, the gravest first."""
    if vitals.rounds < LEAST:
        return []
    return [finding for rule in RULES for finding in rule(vitals)]


def slower_than_plain(v: Vitals) -> Iterator[Finding]:
    """What users leave for."""
    if v.speedup is None or v.speedup >= 0.98:
        return
    cost = v.tau / v.speedup
    yield Finding(
        "slower than plain",
        f"Slower than plain decoding: {v.speedup:.2f}x. A round commits {v.tau:.2f} tokens and "
        f"takes {cost:.2f} times a plain step; {v.share_of_time('verify'):.0%} of that is "
        f"verification of {v.proposed / v.rounds + 1:.1f} rows.",
        "Lower the budget, or let graft+ choose it.",
    )


def fit_of_the_drafter(v: Vitals) -> Iterator[Finding]:
    """A drafter for another model drafts nothing that is accepted; or its confidence says
    nothing."""
    rounds = v.rounds - len(v.in_stage("none"))
    if v.policy not in DRAFTING or not v["proposed_draft"] or rounds < LEAST:
        return
    each = v["accepted_draft"] / rounds
    if each < 0.1:
        yield Finding(
            "drafter does not fit",
            f"The drafter's nodes are hardly ever accepted: {each:.2f} per round of "
            f"{v['proposed_draft'] / rounds:.1f} proposed.",
            "It was probably made for another model, fine-tune or chat template: see graft heads "
            "inspect, or train one with graft train.",
        )
        return
    early = v.in_stage("d0")
    both = zip(v.tokens, v.stages, strict=True)
    late = [tokens for tokens, stage in both if stage not in ("d0", "none")]
    if v.policy in PRUNING and min(len(early), len(late)) >= LEAST / 2:
        first, rest = sum(early) / len(early), sum(late) / len(late)
        if rest <= first * 1.02:
            yield Finding(
                "confidence says nothing",
                f"Rounds in which the drafter was sure commit {rest:.2f} tokens, those in which it "
                f"was not {first:.2f}: its confidence does not tell what will be accepted.",
                "The head does not fit this model or this text; thresholds cannot help.",
            )


def retrieval_that_does_not_pay(v: Vitals) -> Iterator[Finding]:
    """Slots that bring nothing."""
    if v.policy not in RETRIEVING or v["proposed_retrieved"] < v.rounds:
        return
    each = v["accepted_retrieved"] / v.rounds
    if each >= 0.04:
        return
    known = v["hits"] / v["lookups"] if v["lookups"] else 1.0
    if known < 0.5:
        why = f"The matrix is cold: {known:.0%} of what was asked for was written."
        advice = "Build one from text like yours (graft matrix build) and start from it (--matrix)."
    elif v.temperature is not None and v.temperature >= 0.7:
        why = f"At temperature {v.temperature:g} the text hardly follows what was seen before."
        advice = "Use a drafter, a lower temperature or a smaller budget."
    else:
        why = "The text hardly repeats what was seen before."
        advice = "Use a drafter with a smaller budget, or let graft+ choose it."
    yield Finding(
        "retrieval does not pay",
        f"Retrieved nodes bring {each:.2f} tokens per round of "
        f"{v['proposed_retrieved'] / v.rounds:.1f} proposed. {why}",
        advice,
    )


def stops_too_early(v: Vitals) -> Iterator[Finding]:
    """Thresholds too eager."""
    early = v.in_stage("d0")
    if v.policy not in PRUNING or len(early) < 0.6 * v.rounds:
        return
    right = sum(n > 1 for n in early) / len(early)
    if right > 0.8:
        yield Finding(
            "stops too early",
            f"Drafting stops before its first step in {len(early) / v.rounds:.0%} of the rounds, "
            f"but in {right:.0%} of these a node was accepted: it could have gone deeper.",
            "Lower the thresholds (--thresholds).",
        )


def stops_too_late(v: Vitals) -> Iterator[Finding]:
    """Pruning that releases nothing."""
    if v.policy not in PRUNING or v.policy == "graft+" or not v["proposed_draft"]:
        return
    slots = v["kept_draft"] + v["released_slots"]
    released = v["released_slots"] / max(slots, 1)
    ratio = v["accepted_draft"] / v["proposed_draft"]
    full = v.stages.count("full") / v.rounds
    if released < 0.05 and full > 0.9 and ratio < 0.2:
        yield Finding(
            "stops too late",
            f"Drafting goes to full depth in {full:.0%} of the rounds and releases {released:.0%} "
            f"of the slots, while {ratio:.0%} of the draft nodes are accepted.",
            "Raise the thresholds (--thresholds).",
        )


def too_wide(v: Vitals) -> Iterator[Finding]:
    """A budget that the text has no use for."""
    if v.proposed < 16 * v.rounds or (v.speedup is not None and v.speedup >= 1.2):
        return
    waste = 1 - v.accepted / v.proposed
    if waste > 0.95 and v["proposed_retrieved"] > v["proposed_draft"]:
        yield Finding(
            "tree too wide",
            f"{waste:.0%} of {v.proposed / v.rounds:.0f} nodes per round are verified in vain, "
            "most of them retrieved.",
            "Lower the budget, give a smaller template (--template), or let graft+ choose.",
        )


def drafting_too_dear(v: Vitals) -> Iterator[Finding]:
    """A drafter that takes the time it saves."""
    share = v.share_of_time("draft")
    if v.policy in DRAFTING and share > 0.4:
        yield Finding(
            "drafting is dear",
            f"Drafting takes {share:.0%} of the time: {v['draft_steps'] / v.rounds:.1f} steps per "
            f"round for {v['accepted_draft'] / v.rounds:.2f} accepted nodes.",
            "Lower depth or beam, raise the thresholds, or use a smaller head or draft model.",
        )


def overhead(v: Vitals) -> Iterator[Finding]:
    """Time that is neither the target's nor the drafter's."""
    share = v.share_of_time(*(lap for lap in LAPS if lap not in ("verify", "draft")))
    if share > 0.2:
        yield Finding(
            "overhead",
            f"{share:.0%} of the time is neither verification nor drafting.",
            "On a small model some of it cannot be avoided; a smaller budget has less of it. Is "
            "another process using these cores?",
        )


def gone_at_high_batch(v: Vitals) -> Iterator[Finding]:
    """Where the target's forward has no idle rows left."""
    if len(v.by_batch) < 2:
        return
    low, high = min(v.by_batch), max(v.by_batch)
    if v.by_batch[low] > 1.05 and v.by_batch[high] < 1.0:
        yield Finding(
            "gain gone at high batch",
            f"{v.by_batch[low]:.2f}x at batch {low} becomes {v.by_batch[high]:.2f}x at batch "
            f"{high}: the forward has no idle rows left there.",
            "Use a smaller budget for large batches, or graft+, which shrinks it.",
        )


def looping(v: Vitals) -> Iterator[Finding]:
    """Figures that flatter."""
    if v.answers >= 10 and v.looping > 0.25 * v.answers:
        yield Finding(
            "answers loop",
            f"{v.looping} of {v.answers} answers repeat themselves, which retrieval finds easy.",
            "Read the figures without them, or set a repetition penalty.",
        )


RULES: tuple[Callable[[Vitals], Iterator[Finding]], ...] = (
    slower_than_plain,
    fit_of_the_drafter,
    retrieval_that_does_not_pay,
    stops_too_early,
    stops_too_late,
    too_wide,
    drafting_too_dear,
    overhead,
    gone_at_high_batch,
    looping,
)
