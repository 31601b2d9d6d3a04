"""`graft generate`: one prompt, one answer.

stdout holds the answer and nothing else: coloured by source on a terminal, exact in a pipe, one
JSON object with --json.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from graft.cli import options as o
from graft.cli.loading import load_engine, policy_of, sampling_params
from graft.cli.notes import held_warnings, note
from graft.cli.prompt_text import find_prompt
from graft.cli.screen import Screen
from graft.cli.shared import ANSWER, DRAW, ENGINE, MODEL, shares
from graft.cli.summary import legend, summary

if TYPE_CHECKING:
    from graft.engine import Engine
    from graft.request import Logprob, Result
    from graft.sampling_params import SamplingParams

__all__ = ["generate_command", "result_object"]


@shares(ANSWER, DRAW, MODEL, ENGINE)
def generate_command(
    context: typer.Context,
    prompt: o.PromptArgument = None,
    file: o.PromptFile = None,
    raw: o.Raw = False,
    json_: o.AsJson = False,
    logprobs: o.Logprobs = None,
    quiet: o.Quiet = False,
) -> None:
    """Answer a prompt (or continue it, with --raw) and stream the answer to stdout."""
    if logprobs is not None and not json_:
        raise ValueError("--logprobs is only shown with --json: add it")
    text = find_prompt(prompt, file)
    params = sampling_params(context.params)
    with load_engine(context.params, quiet=quiet) as engine:
        if json_:
            with held_warnings(quiet=quiet):
                result = engine.generate(text, params, raw=raw)
            Screen(sys.stdout).line(json.dumps(result_object(result, engine.name)))
        else:
            _stream(engine, text, params, raw=raw, quiet=quiet)


def _stream(engine: Engine, prompt: str, params: SamplingParams, *, raw: bool, quiet: bool) -> None:
    screen = Screen(sys.stdout)
    stream = engine.stream(prompt, params, raw=raw)
    with held_warnings(quiet=quiet), screen.answer(), stream:
        for token in stream:
            screen.write(token.text, token.source.name.lower())
    if quiet:
        return
    (result,) = stream.results
    if screen.terminal:
        legend(Screen(sys.stderr), result.sources, grown=engine.policy != "plain")
    note(
        summary(result, params.max_new_tokens, policy=policy_of(engine), sampled=not params.greedy)
    )


def result_object(result: Result, model: str) -> dict[str, Any]:
    """A result as plain data for JSON."""
    out: dict[str, Any] = {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "stop_reason": result.stop_reason,
        "model": model,
        "seed": result.seed,
        "sources": [source.name.lower() for source in result.sources],
        "usage": {
            "prompt_tokens": result.usage.prompt_tokens,
            "completion_tokens": result.usage.completion_tokens,
        },
        "stats": result.stats.to_dict(),
    }
    if result.logprobs is not None:
        pairs = zip(result.token_ids, result.logprobs, strict=True)
        out["logprobs"] = [_logprob_object(token, known) for token, known in pairs]
    return out


def _logprob_object(token: int, known: Logprob) -> dict[str, Any]:
    top = [{"token_id": other, "logprob": value} for other, value in known.top.items()]
    return {"token_id": token, "logprob": known.chosen, "top": top}
