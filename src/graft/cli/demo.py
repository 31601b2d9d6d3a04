"""`graft demo`: the main job, shown and measured.

One prompt, answered with Graft and by plain decoding with the same engine: the same tokens, in
less time where it pays. Runs alternate, so that a busy machine slows both alike, and each run
with Graft starts with an empty memory: what an earlier run taught it would flatter.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from graft.cli import options as o
from graft.cli.loading import load_engine, sampling_params
from graft.cli.notes import held_warnings, progress_notes
from graft.cli.screen import Screen, Wrapped
from graft.cli.summary import legend, number, time_split

if TYPE_CHECKING:
    from graft.engine import Engine
    from graft.request import Result
    from graft.sampling_params import SamplingParams

__all__ = ["demo_command"]

PROMPT = "Write a Python class Point with x and y, and methods for adding and subtracting points."
WARM_UP_TOKENS = 12


def demo_command(
    context: typer.Context,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="What to ask.")] = PROMPT,
    quiet: o.Quiet = False,
    max_new_tokens: o.MaxNewTokens = 160,
    model: o.Model = "smollm2-135m",
    budget: o.Budget = None,
    device: o.Device = "auto",
    dtype: o.DtypeOption = o.Dtype.auto,
    threads: o.Threads = None,
    cpu_weights: o.CpuWeightsOption = o.CpuWeights.auto,
) -> None:
    """Answer one prompt, coloured by source, and compare with plain decoding."""
    if not prompt.strip():
        raise ValueError("--prompt is empty: give a text to answer")
    params = sampling_params(context.params)
    # What a profile would choose is not what is shown: that may be plain decoding.
    engine = load_engine({**context.params, "profile": "none"}, quiet=quiet)
    screen = Screen(sys.stdout)
    with held_warnings(quiet=quiet):
        shown = _show(engine, prompt, params, screen)
        graft, plain = _measure(engine, prompt, params, quiet=quiet)
    _report(screen, graft, plain)
    expected = plain[0].token_ids
    others = [r.token_ids for r in (shown, *graft, *plain)]
    different = [ids for ids in others if ids != expected]
    screen.line(f"same tokens: {'NO' if different else 'yes'}")
    if different:
        place = min(_first_difference(expected, ids) for ids in different)
        margin = _margin(engine, prompt, params, place)
        screen.line(f"first difference at token {place}: {margin}")
        raise typer.Exit(1)


def _show(engine: Engine, prompt: str, params: SamplingParams, screen: Screen) -> Result:
    """Answer on the screen, wrapped to its width."""
    # A file is not wrapped: its lines are the answer's own.
    page = Wrapped(screen) if screen.terminal else screen
    page.write(f"{engine.name} is asked: {prompt}\n\n")
    with screen.answer(), engine.stream(prompt, params) as stream:
        for token in stream:
            page.write(token.text, token.source.name.lower())
        if isinstance(page, Wrapped):
            page.flush()
    (result,) = stream.results
    legend(screen, result.sources, grown=True)
    return result


def _measure(
    engine: Engine, prompt: str, params: SamplingParams, *, quiet: bool
) -> tuple[list[Result], list[Result]]:
    """Runs of both methods, timed: a short warm-up of each, then in turn."""
    # Each goes first once: the machine may be slowing down or speeding up.
    order = ("plain", engine.policy, engine.policy, "plain")
    runs: dict[str, list[Result]] = {policy: [] for policy in order}
    short = min(WARM_UP_TOKENS, params.max_new_tokens)
    with progress_notes("measuring: warm-up", quiet=quiet) as progress:
        for policy in runs:
            engine.generate(prompt, policy=policy, max_new_tokens=short)
        for count, policy in enumerate(order, 1):
            progress(f"measuring: run {count} of {len(order)}, {policy}")
            engine.memory.clear()
            runs[policy].append(engine.generate(prompt, params, policy=policy))
    return runs[engine.policy], runs["plain"]


def _report(screen: Screen, graft: list[Result], plain: list[Result]) -> None:
    stats = graft[0].stats  # the same for each run, but for the times
    fast, slow = _tokens_per_second(graft), _tokens_per_second(plain)
    tokens = len(graft[0].token_ids)
    screen.line()
    screen.line(f"tau          {number(stats.tau)} tokens per round")
    screen.line(f"rounds       {stats.rounds} for {tokens} tokens (plain: {tokens - 1})")
    screen.line(f"with Graft   {number(fast)} tokens/s ({time_split(stats.time_split)})")
    screen.line(f"plain        {number(slow)} tokens/s")
    if fast and slow:
        verdict = "" if fast >= slow else ": Graft was slower here"
        screen.line(f"speed ratio  {fast / slow:.2f}{verdict}")


def _tokens_per_second(results: list[Result]) -> float | None:
    """Tokens after the first, over the time they took, of all runs together."""
    tokens = sum(len(r.token_ids) - 1 for r in results)
    seconds = sum(r.stats.decode_seconds for r in results)
    return tokens / seconds if seconds and tokens else None


def _first_difference(first: list[int], second: list[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _margin(engine: Engine, prompt: str, params: SamplingParams, place: int) -> str:
    """How far apart the two best tokens of plain decoding are at a position."""
    from graft.exactness import precision_of

    result: Result = engine.generate(
        prompt, policy="plain", max_new_tokens=params.max_new_tokens, logprobs=2
    )
    if result.logprobs is None or place >= len(result.logprobs):
        return "there the plain answer has ended"
    best, second = list(result.logprobs[place].top.values())[:2]
    limit = precision_of(engine).margin
    kind = "a near-tie" if best - second <= limit else "no near-tie: please report this"
    return f"the two best logits are {best - second:.2g} apart ({kind}; the limit is {limit:g})"
