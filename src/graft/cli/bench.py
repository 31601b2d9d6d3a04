"""`graft bench`: methods side by side on the same prompts, with a report and figures.

`graft bench` runs, `report` writes the report of a run anew, `compare` compares two runs. stdout
holds the report's path, or the comparison; progress goes to stderr. How things are measured and
what the numbers say is not known here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from graft.cli import options as o
from graft.cli.bars import bar
from graft.cli.loading import numbers, plain_values
from graft.cli.notes import held_warnings, note, progress_notes
from graft.cli.screen import Screen
from graft.cli.shared import ENGINE, MODEL, shares

if TYPE_CHECKING:
    from graft.bench.session import BenchSettings, Opened

__all__ = ["bench_app"]

_WHAT: Final = "What to run"
OWN: Final = "own"
# What all methods of a run share; the rest is said per method, or has no place here.
_SHARED: Final = ("beam", "depth", "checkpoints", "thresholds", "kept", "refill", "dedup", "k")
_GROUP: Final = {n: ENGINE[n] for n in (*_SHARED, "prompt_learning")}
_HEAD: Final = {"head_window": ENGINE["head_window"]}

bench_app = typer.Typer(help="Measure methods side by side on the same prompts; compare runs.")


def _option(flag: str, help_: str, **more: Any) -> Any:
    return typer.Option(flag, help=help_, rich_help_panel=_WHAT, **more)


@bench_app.callback(invoke_without_command=True)
@shares(MODEL, _GROUP, _HEAD)
def bench_command(
    context: typer.Context,
    suite: Annotated[
        list[Path] | None,
        _option("--suite", "JSON lines or a folder of them; repeatable. Some are built in."),
    ] = None,
    methods: Annotated[
        str,
        _option(
            "--methods",
            "Policies, hf, hf-lookup, llama.cpp; DRAFTER:POLICY where several are loaded.",
        ),
    ] = "plain,retrieval",
    head: Annotated[
        list[str] | None, _option("--head", "An EAGLE-3 head or DFlash drafter; repeatable.")
    ] = None,
    draft_model: Annotated[
        str | None, _option("--draft-model", "A smaller model with the same tokenizer.")
    ] = None,
    budget: Annotated[
        str,
        _option(
            "--budget", "Nodes per tree; own: what each method has unless told.", metavar="K,K,..."
        ),
    ] = "4",
    profile: Annotated[
        str | None,
        _option(
            "--profile", "Of graft calibrate: settings at budget own, and costs.", metavar="FILE"
        ),
    ] = None,
    gguf: Annotated[
        str | None, _option("--gguf", "What llama.cpp reads for the model.", metavar="FILE")
    ] = None,
    temperature: Annotated[str, _option("--temperature", "0 is greedy.", metavar="T,T,...")] = "0",
    batch: Annotated[
        str, _option("--batch", "Prompts that decode together.", metavar="B,B,...")
    ] = "1",
    task: Annotated[list[str] | None, _option("--task", "Only this task; repeatable.")] = None,
    limit: Annotated[int | None, _option("--limit", "Prompts per task at most.")] = None,
    min_prompt_tokens: Annotated[
        int | None, _option("--min-prompt-tokens", "Fewest tokens of a prompt, without template.")
    ] = None,
    max_prompt_tokens: Annotated[
        int | None, _option("--max-prompt-tokens", "Most tokens of a prompt, without template.")
    ] = None,
    max_turns: Annotated[int | None, _option("--max-turns", "Turns per prompt at most.")] = None,
    max_new_tokens: o.MaxNewTokens = 128,
    seed: o.Seed = 0,
    matrix: Annotated[
        o.MatrixState, _option("--matrix", "Kept over the run, or empty for each answer.")
    ] = o.MatrixState.warm,
    out: Annotated[str, _option("--out", "Folder of the run.", metavar="DIR")] = "bench",
    resume: Annotated[
        bool, _option("--resume", "Add to DIR: prompts, methods, budgets, temperatures, batches.")
    ] = False,
    figures: Annotated[
        bool, _option("--figures/--no-figures", "Draw figures (needs matplotlib).")
    ] = True,
    quiet: o.Quiet = False,
) -> None:
    """Run methods side by side on the same prompts and write DIR/report.md.

    A run that was broken off goes on when the same command is given again.
    """
    if context.invoked_subcommand is not None:
        return
    if not context.params["model"]:
        raise ValueError("--model is empty: give an alias (see: graft models), a folder or a file")
    if not out:
        raise ValueError("--out is empty: name the folder of the run")
    folder = Path(out)
    chosen = _settings(context.params)
    if figures:
        _need_matplotlib()
    from graft.bench.outputs import write_outputs
    from graft.bench.session import opened

    with held_warnings(quiet=quiet), ExitStack() as stack:
        with progress_notes(f"loading {context.params['model']}", quiet=quiet) as progress:
            command = ["graft", *sys.argv[1:]]
            ready = opened(chosen, folder, command=command, resume=resume, progress=progress)
            run = stack.enter_context(ready)
        _run(run, folder, quiet=quiet)
    results, notes = write_outputs(folder, run.loaded.tokenizer, figures=figures)
    for text in [] if quiet else notes:
        note(text)
    Screen(sys.stdout).line(str(folder / "report.md"))
    if different := sum(m.difference is not None for m in results.measurements):
        answers = "1 answer differs" if different == 1 else f"{different} answers differ"
        note(
            f"error: {answers} from plain decoding by more than rounding: see the section on "
            "equality in the report"
        )
        raise typer.Exit(1)


@bench_app.command("report")
def report_command(
    given: Annotated[Path, typer.Argument(metavar="DIR", help="Folder or results.jsonl.")],
    figures: Annotated[
        bool, typer.Option("--figures/--no-figures", help="Draw figures too.")
    ] = True,
) -> None:
    """Write DIR/report.md anew from DIR/results.jsonl."""
    if figures:
        _need_matplotlib()
    from graft.bench.outputs import write_outputs
    from graft.bench.results import place_of

    _, notes = write_outputs(given, None, figures=figures)
    for text in notes:
        note(text)
    Screen(sys.stdout).line(str(place_of(given).parent / "report.md"))


@bench_app.command("compare")
def compare_command(
    first: Annotated[Path, typer.Argument(metavar="A", help="Folder or results.jsonl.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The other one.")],
) -> None:
    """Compare two runs, prompt by prompt: what B does better or worse than A."""
    from graft.bench.compare import compare
    from graft.bench.results import place_of, read_results

    runs = [read_results(place_of(place)) for place in (first, second)]
    for line in compare(*runs).splitlines():
        Screen(sys.stdout).line(line)


@bench_app.command("floor")
@shares(MODEL, {"head": ENGINE["head"]})
def floor_command(
    context: typer.Context,
    budget: Annotated[
        int, typer.Option("--budget", help="Most nodes of a tree to time.", min=1, max=256)
    ] = 60,
    quiet: o.Quiet = False,
) -> None:
    """Print how fast forwards could be on this machine, and how fast they are."""
    from graft.cli.loading import load_engine

    # Without a profile: what one has of this machine was measured another day.
    engine = load_engine(context.params | {"policy": "graft+", "profile": "none"}, quiet=quiet)
    from graft.bench.floor import floor_table, footprint_table, lines_of, measure_machine, work_of
    from graft.drafters.eagle3.drafter import Eagle3Drafter
    from graft.target import TransformersTarget

    assert isinstance(engine.target, TransformersTarget)
    target = engine.target.model
    step = None
    if isinstance(engine.drafter, Eagle3Drafter):
        step = work_of(engine.drafter.head.layers, engine.drafter.head.lm_head)
    costs = engine.costs(budget)
    machine = measure_machine(target, engine.target.device)
    beam = engine.settings.plan("graft+", budget).beam
    lines = lines_of(costs, work_of(target), step, beam)
    _ = engine.memory.contexts  # made when a first answer asks for them
    tables = floor_table(lines, machine), footprint_table(engine.footprint())
    for line in "\n\n".join(tables).splitlines():
        Screen(sys.stdout).line(line)


def _settings(values: Mapping[str, Any]) -> BenchSettings:
    from graft.bench.session import BenchSettings

    selection = {
        "tasks": tuple(values["task"] or ()),
        **{n: values[n] for n in ("limit", "min_prompt_tokens", "max_prompt_tokens", "max_turns")},
    }
    return BenchSettings(
        suites=tuple(values["suite"] or ()),
        selection=selection,
        methods=tuple(m for m in values["methods"].replace(" ", "").split(",") if m),
        budgets=_budgets(values["budget"]),
        temperatures=numbers("temperature", values["temperature"], float),
        batches=numbers("batch", values["batch"], int),
        max_new_tokens=values["max_new_tokens"],
        seed=values["seed"] or 0,
        matrix=values["matrix"].value,
        heads=tuple(values["head"] or ()),
        draft_model=values["draft_model"],
        model=plain_values(values, MODEL),
        engine=plain_values(values, _GROUP),
        profile=values["profile"],
        gguf=values["gguf"],
        head_window=values["head_window"],
    )


def _budgets(text: str) -> list[int | None]:
    """Numbers, and None for "own"."""
    parts = [part.strip() for part in text.split(",")]
    given = numbers("budget", ",".join(p for p in parts if p != OWN), int)
    waiting = iter(given)
    return [None if p == OWN else next(waiting) for p in parts if p]


def _run(run: Opened, folder: Path, *, quiet: bool) -> None:
    """Run to the end, and say how to go on where it is broken off."""
    keys = run.runner.keys
    there = sum(key in run.runner.writer.done for key in keys)
    try:
        with bar("answers", quiet=quiet) as show:
            show(there, len(keys), "")
            for lines in run.runner.run():
                there += len(lines)
                show(there, len(keys), "")
    except KeyboardInterrupt:
        if not quiet:
            note(
                "broken off: give the same command again to go on; for what is there, graft bench "
                f"report {folder}"
            )
        raise


def _need_matplotlib() -> None:
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "figures need matplotlib: pip install 'graft-decoding[bench]', or give --no-figures"
        )
