"""`graft verify`: does this model say the same with trees as without?

Answers prompts plainly and with trees, with the same seeds, and compares them token by token;
then it tests the law of short sampled answers against exact probabilities. The last
lines of stdout are the verdict, and the exit code is 1 where it is bad. `graft.exactness` and
`graft.law` do the work; here are only options and words.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from graft.cli import options as o
from graft.cli.loading import load_engine, sampling_params
from graft.cli.notes import held_warnings, note
from graft.cli.prompt_list import read_prompts
from graft.cli.screen import Screen
from graft.cli.shared import ANSWER, DRAW, ENGINE, MODEL, shares
from graft.cli.summary import number

if TYPE_CHECKING:
    from graft.engine import Engine
    from graft.exactness import Comparison, Difference, PromptComparison
    from graft.law import LawTest
    from graft.sampling_params import SamplingParams

__all__ = ["verify_command"]

# Prose, code, a list and arithmetic: what trees guess well and what they guess badly.
PROMPTS: Final = (
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List ten animals that live in Africa.",
    "A train goes 60 km in 45 minutes. How far does it go in two hours?",
)

LAW_LENGTH: Final = 5  # tokens; the first ones of an answer are often all but certain


@shares(ANSWER, DRAW, MODEL, ENGINE, max_new_tokens=64, seed=0)
def verify_command(
    context: typer.Context,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", help="What to ask; repeatable. A few are built in."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="PATH", help="A prompt a line, or JSON lines."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Take so many prompts at most.")
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", min=0, help="Answers of the law test; 0 leaves it out.")
    ] = 100,
    raw: o.Raw = False,
    json_: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Compare decoding with trees to plain decoding, token by token."""
    if context.params["policy"] is o.Policy.plain:
        raise ValueError("--policy plain: choose another policy, to be compared with plain")
    texts = _texts(prompt, prompts, limit)
    params = sampling_params(context.params)
    load = load_engine(context.params, quiet=quiet)
    with load as engine, held_warnings(quiet=quiet):
        progress = _Progress(len(texts), quiet=quiet)
        found, law = _check(engine, texts, params, samples, progress, raw=raw)
    screen = Screen(sys.stdout)
    if json_:
        screen.line(json.dumps(_report_object(engine, found, law)))
    else:
        _report(screen, engine, texts, found, law)
    if not found.same or (law is not None and not law.passed):
        raise typer.Exit(1)


def _check(
    engine: Engine,
    texts: list[str],
    params: SamplingParams,
    samples: int,
    progress: _Progress,
    *,
    raw: bool,
) -> tuple[Comparison, LawTest | None]:
    from graft.exactness import compare
    from graft.law import law_test

    found = compare(engine, texts, params, raw=raw, progress=progress)
    if not samples:
        return found, None
    if params.greedy:  # which has no law to test; the trees are the same at any temperature
        params = replace(params, temperature=1.0)
    progress.say(f"law test: drawing {samples} short answers to the first prompt")
    law = law_test(engine, texts[0], params, samples, length=LAW_LENGTH, raw=raw)
    return found, law


def _texts(given: list[str] | None, file: Path | None, limit: int | None) -> list[str]:
    if given and file is not None:
        raise ValueError("--prompt and --prompts are both given: give one of them")
    texts = read_prompts(file, limit) if file is not None else list(given or PROMPTS)
    if not all(text.strip() for text in texts):
        raise ValueError("--prompt is empty: give a text to answer")
    return texts[:limit]


class _Progress:
    """Says after each prompt how it went."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total = total
        self._done = 0
        self._quiet = quiet

    def __call__(self, answer: PromptComparison) -> None:
        self._done += 1
        different = any(d.excuse is None for d in answer.differences)
        state = "DIFFERENT" if different else "same"
        self.say(f"prompt {self._done} of {self._total}: {answer.tokens} tokens, {state}")

    def say(self, text: str) -> None:
        if not self._quiet:
            note(text)


def _report(
    screen: Screen, engine: Engine, texts: list[str], found: Comparison, law: LawTest | None
) -> None:
    screen.line(f"{'tokens':>6}  {'tau':>5}  {'excused':>7}  {'wrong':>5}  prompt")
    for text, answer in zip(texts, found.prompts, strict=True):
        excused = sum(d.excuse is not None for d in answer.differences)
        wrong = len(answer.differences) - excused
        screen.line(_row(answer.tokens, answer.tau, excused, wrong, " ".join(text.split())[:48]))
    if len(texts) > 1:
        screen.line(_row(found.tokens, found.tau, len(found.excuses), len(found.mismatches), "all"))
    for difference in [*found.excuses, *found.mismatches]:
        screen.line(_difference(engine, difference))
    screen.line(f"same tokens: {_verdict(found)}")
    if law is not None:
        screen.line(f"law test: {_law(law)}")


def _row(tokens: int, tau: float | None, excused: int, wrong: int, text: str) -> str:
    return f"{tokens:>6}  {number(tau):>5}  {excused:>7}  {wrong:>5}  {text}"


def _difference(engine: Engine, found: Difference) -> str:
    plain, other = (
        "the end" if t is None else f"{t} {engine.tokenizer.decode([t])!r}"
        for t in (found.plain, found.other)
    )
    if found.excuse == "router":
        why = f"excused: a router chose by {found.router_margin:.2g}"
    else:
        kind = "excused: near-tie" if found.excuse else "no near-tie"
        why = f"{kind}, margin {found.margin:.2g}, limit {found.limit:.2g}"
    place = f"prompt {found.prompt + 1}, token {found.position + 1}"
    return f"{place}: plain has {plain}, trees have {other} ({why})"


def _verdict(found: Comparison) -> str:
    excuses = f"{len(found.excuses)} excused by rounding, {found.allowed} allowed"
    if found.same:
        return f"yes ({found.tokens} compared; {excuses})"
    return f"NO ({len(found.mismatches)} wrong in {found.tokens} compared; {excuses})"


def _law(law: LawTest) -> str:
    if law.cells < 2 and law.passed:
        return (
            f"p = 1 at temperature {law.temperature:g}, but it says nothing: one group holds all "
            "answers; raise --temperature or --samples"
        )
    state = "passed" if law.passed else "FAILED"
    return (
        f"p = {law.p_value:.2g}, {state} ({law.samples} answers at temperature "
        f"{law.temperature:g} in {law.cells} groups; trees grew "
        f"{law.accepted_share:.0%} of them)"
    )


def _report_object(engine: Engine, found: Comparison, law: LawTest | None) -> dict[str, Any]:
    """Everything found as plain data for JSON."""
    return {
        "model": engine.name,
        "policy": engine.policy,
        "budget": engine.budget,
        "same": found.same,
        "tokens": found.tokens,
        "tau": found.tau,
        "excuses": len(found.excuses),
        "excuses_allowed": found.allowed,
        "mismatches": len(found.mismatches),
        "prompts": [_finite({**asdict(answer), "tau": answer.tau}) for answer in found.prompts],
        "law": None if law is None else _finite({**asdict(law), "passed": law.passed}),
    }


def _finite(value: Any) -> Any:
    """JSON knows no infinity: it becomes null."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
