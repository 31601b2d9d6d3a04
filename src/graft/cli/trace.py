"""`graft trace`: one prompt, one page that shows where its tokens and its time came from.

stdout holds the path of the page; the summary goes to stderr. A file that is no earlier page is
never overwritten unasked, and a page is written whole or not at all.
"""

from __future__ import annotations

import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from graft.atomic import write_whole
from graft.cli import options as o
from graft.cli.loading import load_engine, policy_of, sampling_params
from graft.cli.notes import held_warnings, note, progress_notes
from graft.cli.prompt_text import find_prompt
from graft.cli.screen import Screen
from graft.cli.shared import ANSWER, DRAW, ENGINE, MODEL, shares
from graft.cli.summary import summary

if TYPE_CHECKING:
    from graft.engine import Engine
    from graft.sampling_params import SamplingParams
    from graft.trace import Trace

__all__ = ["trace_command"]

_PANEL: Final = "Input and output"
_Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", help="The page.", rich_help_panel=_PANEL)
]
_Force = Annotated[
    bool,
    typer.Option("--force", help="Overwrite FILE, whatever it is.", rich_help_panel=_PANEL),
]


@shares(ANSWER, DRAW, MODEL, ENGINE)
def trace_command(
    context: typer.Context,
    prompt: o.PromptArgument = None,
    out: _Out = Path("trace.html"),
    force: _Force = False,
    file: o.PromptFile = None,
    raw: o.Raw = False,
    quiet: o.Quiet = False,
) -> None:
    """Answer a prompt and write a page: every token by its source, every round with its tree."""
    text = find_prompt(prompt, file)
    params = sampling_params(context.params)
    _check_place(out, force=force)  # before the work, not after it
    with (
        load_engine(context.params, quiet=quiet) as engine,
        held_warnings(quiet=quiet),
        progress_notes("generating", quiet=quiet),
    ):
        trace = _generate(engine, text, params, raw=raw)
    from graft.trace_page import render

    _check_place(out, force=force)
    write_whole(out, render(trace).encode())
    Screen(sys.stdout).line(str(out))
    if not quiet:
        note(
            summary(
                trace.result,
                params.max_new_tokens,
                policy=policy_of(engine),
                sampled=not params.greedy,
            )
        )


def _generate(engine: Engine, prompt: str, params: SamplingParams, *, raw: bool) -> Trace:
    from graft.trace import TokenTexts, Tracer

    def decode(ids: Any) -> str:
        return str(
            engine.tokenizer.decode(
                list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    drafter = {} if engine.drafter is None else {"drafter": engine.drafter.name}
    tracer = Tracer(TokenTexts(decode))
    with engine.stream(prompt, params, raw=raw, watch=tracer.watch) as stream:
        tokens = list(stream)
        (result,) = stream.results
    return tracer.trace(
        tokens,
        result,
        prompt=prompt,
        model=engine.name,
        policy=engine.policy,
        settings=drafter | _told(params, result.seed),
    )


def _told(params: SamplingParams, seed: int) -> dict[str, Any]:
    """The settings of sampling worth telling: how the token is drawn, and what is not usual."""
    told: dict[str, Any] = {"temperature": params.temperature}
    for field in fields(params):
        value = getattr(params, field.name)
        usual = field.default if field.default_factory is MISSING else field.default_factory()
        if value != usual and field.name not in ("seed", "max_new_tokens"):
            told[field.name] = value if isinstance(value, int | float) else str(value)
    return told if params.greedy else told | {"seed": str(seed)}  # a page keeps 53 bits of a number


def _check_place(out: Path, *, force: bool) -> None:
    """Raise ValueError if a page cannot, or must not, be written there."""
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder: name a file, as in --out {out / 'trace.html'}")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}; make it first")
    if force or not out.exists():
        return
    from graft.trace_page import is_trace_page

    with out.open("rb") as stream:
        if not is_trace_page(stream.read(1024)):
            raise ValueError(
                f"--out {out} exists and is no trace page: choose another name, or add --force to "
                "overwrite it"
            )
