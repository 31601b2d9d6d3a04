"""`graft train`: heads for a model of one's own. Data from its own answers, then the head.

Both commands go on where they were broken off when they are run again. How is not known here.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from graft.cli import options as o
from graft.cli.bars import bar
from graft.cli.loading import load_engine, numbers
from graft.cli.notes import held_warnings, note, progress_notes
from graft.cli.shared import MODEL, shares
from graft.heap import keep_freed_memory

if TYPE_CHECKING:
    from graft.bench.item import Item
    from graft.engine import Engine
    from graft.train.data_folder import Manifest
    from graft.train.distill import DistillSettings
    from graft.train.session import Progress, Session, TrainRun

__all__ = ["train_app"]

_WHAT: Final = "What to train on, and where to"
_HOW: Final = "How to train"
_MEASURE: Final = "Evaluation and files"
_MODEL: Final = {name: MODEL[name] for name in ("model", "device", "threads")}

train_app = typer.Typer(help="Train an EAGLE-3 head for a model, on its own answers.")


@train_app.callback(invoke_without_command=True)
def _train(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        keep_freed_memory()


def _option(*names: str, panel: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


@train_app.command("data")
@shares(MODEL)
def data_command(
    context: typer.Context,
    prompts: Annotated[
        list[Path],
        _option(
            "--prompts",
            metavar="FILE",
            panel=_WHAT,
            help="Prompts, as for graft bench: .jsonl (turns or prompt), .txt, or a folder; "
            "repeatable.",
        ),
    ],
    out: Annotated[Path, _option("--out", metavar="DIR", panel=_WHAT, help="The data folder.")],
    limit: Annotated[
        int | None, _option("--limit", panel=_WHAT, min=1, help="Prompts per file at most.")
    ] = None,
    max_prompt_tokens: Annotated[
        int | None, _option("--max-prompt-tokens", panel=_WHAT, min=1, help="Skip longer prompts.")
    ] = None,
    max_new_tokens: Annotated[
        int, _option("--max-new-tokens", "-n", panel=_HOW, help="Tokens per answer at most.")
    ] = 256,
    sampled: Annotated[
        float, _option("--sampled", panel=_HOW, help="Share of answers that are sampled.")
    ] = 0.33,
    temperature: Annotated[
        float, _option("--temperature", panel=_HOW, help="Of these; the others are greedy.")
    ] = 0.7,
    batch: Annotated[
        int, _option("--batch", panel=_HOW, help="Prompts answered together.", min=1, max=1024)
    ] = 32,
    seed: Annotated[int, _option("--seed", panel=_HOW, help="Of the draws.", min=0)] = 0,
    quiet: o.Quiet = False,
) -> None:
    """Let the model answer prompts: what its head will learn from."""
    from graft.bench.suite import read_suite
    from graft.train.data_folder import DataWriter
    from graft.train.distill import DistillSettings, distill

    settings = DistillSettings(max_new_tokens, sampled, temperature, max_prompt_tokens, seed)
    items = read_suite(prompts, limit=limit)
    engine = load_engine({**context.params, "policy": "plain", "max_batch": batch}, quiet=quiet)
    writer = DataWriter(out, _manifest(engine, items, settings))
    left_out, tokens = 0, sum(len(answer.answer_ids) for answer in writer.done)
    try:
        with held_warnings(quiet=quiet), bar("answers", quiet=quiet) as show:
            for told in distill(engine, items, writer, settings):
                tokens += len(told.answer.answer_ids) if told.answer else 0
                left_out = told.left_out
                show(told.done, told.total, f"{tokens:,} tokens")
        writer.finish()
    finally:
        writer.close()
    if not quiet:
        note(f"{tokens:,} answer tokens in {out}; {left_out:,} prompts left out as too long")


@train_app.command("head")
@shares(_MODEL)
def head_command(
    context: typer.Context,
    data: Annotated[
        list[Path],
        _option(
            "--data",
            metavar="DIR",
            panel=_WHAT,
            help="Folders of graft train data, or .jsonl files of prompt_ids and answer_ids; "
            "repeatable.",
        ),
    ],
    out: Annotated[Path, _option("--out", metavar="HEAD", panel=_WHAT, help="The head's folder.")],
    work: Annotated[
        Path | None,
        _option(
            "--work", metavar="DIR", panel=_WHAT, help="Checkpoints and log. [default: HEAD.work]"
        ),
    ] = None,
    base: Annotated[
        str | None,
        _option("--from", metavar="HEAD", panel=_WHAT, help="A head to train on from."),
    ] = None,
    draft_vocab: Annotated[
        int | None,
        _option(
            "--draft-vocab",
            panel=_HOW,
            help="Tokens that the head can name. [default: as in --from HEAD, else 16384]",
        ),
    ] = None,
    test_steps: Annotated[
        int, _option("--test-steps", panel=_HOW, help="Depth it is trained to draft to.")
    ] = 5,
    decay: Annotated[
        float, _option("--decay", panel=_HOW, help="Weight of a step against the one before.")
    ] = 0.8,
    epochs: Annotated[
        float, _option("--epochs", panel=_HOW, help="Times that all answers are seen.")
    ] = 3.0,
    optimizer: Annotated[
        o.Optimizer, _option("--optimizer", panel=_HOW, help="Of the matrices inside the head.")
    ] = o.Optimizer.muon,
    rate: Annotated[float, _option("--rate", panel=_HOW, help="Highest learning rate.")] = 5e-4,
    warm_up: Annotated[
        float, _option("--warm-up", panel=_HOW, help="Share of steps over which it rises.")
    ] = 0.02,
    cool_down: Annotated[
        float, _option("--cool-down", panel=_HOW, help="Share of steps over which it falls.")
    ] = 0.3,
    weight_decay: Annotated[float, _option("--weight-decay", panel=_HOW, help="Per step.")] = 0.01,
    clip: Annotated[float, _option("--clip", panel=_HOW, help="Largest gradient norm.")] = 0.5,
    group_tokens: Annotated[
        int, _option("--group-tokens", panel=_HOW, help="Tokens at a time; memory grows with it.")
    ] = 2048,
    groups_per_step: Annotated[
        int, _option("--groups-per-step", panel=_HOW, help="Such groups per optimiser step.")
    ] = 4,
    max_length: Annotated[
        int | None,
        _option(
            "--max-length",
            panel=_HOW,
            help="Tokens of prompt and answer; cut beyond. [default: 2048, or the model's context]",
        ),
    ] = None,
    window: Annotated[
        int | None, _option("--window", panel=_HOW, help="Positions back that the head sees.")
    ] = None,
    looping: Annotated[
        float,
        _option("--looping", panel=_HOW, help="Leave out answers that repeat more (8-grams)."),
    ] = 0.3,
    feature_layers: Annotated[
        str | None,
        _option("--feature-layers", metavar="A,B,C", panel=_HOW, help="Inputs of these are read."),
    ] = None,
    seed: Annotated[int, _option("--seed", panel=_HOW, help="Of order and weights.", min=0)] = 0,
    held_out: Annotated[
        int,
        _option("--held-out", panel=_MEASURE, help="Prompts kept for evaluation; a fifth at most."),
    ] = 64,
    evaluate_every: Annotated[
        int,
        _option("--evaluate-every", panel=_MEASURE, min=0, help="Steps; 0 is at the end alone."),
    ] = 0,
    trees: Annotated[
        str,
        _option(
            "--trees",
            metavar="K,B,D,P,N",
            panel=_MEASURE,
            help="For tau: budget, beam, depth, prompts, tokens per answer.",
        ),
    ] = "60,8,6,16,64",
    save_every: Annotated[
        int, _option("--save-every", panel=_MEASURE, min=1, help="Steps between checkpoints.")
    ] = 200,
    format_: Annotated[
        o.HeadFormat, _option("--format", panel=_MEASURE, help="Of the checkpoint.")
    ] = o.HeadFormat.specforge,
    save_dtype: Annotated[
        o.SaveDtype, _option("--save-dtype", panel=_MEASURE, help="Of the weights in it.")
    ] = o.SaveDtype.fp16,
    dtype: Annotated[
        o.Dtype,
        _option("--dtype", panel=_HOW, help="auto takes the faster one here of fp32 and bf16."),
    ] = o.Dtype.auto,
    teacher_memory: Annotated[
        float,
        _option(
            "--teacher-memory",
            metavar="GIB",
            panel=_HOW,
            min=0,
            help="Memory for what the model said of the data: later epochs need not ask again.",
        ),
    ] = 4.0,
    quiet: o.Quiet = False,
) -> None:
    """Train a head on the model's answers, by training-time test."""
    values = context.params
    run = _run(values)
    from graft.train.session import Session
    from graft.train.world import join_world

    with _stops_on_terminate(), join_world() as world, held_warnings(quiet=quiet):
        silent = quiet or not world.leads
        with progress_notes(f"loading {values['model']}", quiet=silent) as progress:
            session = Session(run, progress, world)
        for finding in [] if silent else session.findings:
            note(finding)
        _follow(session, quiet=silent)
        place = session.export()
        if not silent:
            note(f"the head is in {place}, checkpoints and log in {run.work}")


def _run(values: Mapping[str, Any]) -> TrainRun:
    """The run that the options describe."""
    from graft.models import parse_dtype
    from graft.train.evaluation import Trees
    from graft.train.session import TrainRun
    from graft.train.settings import TrainSettings

    fields = TrainSettings.__dataclass_fields__
    chosen = {name: values[name] for name in fields}
    settings = TrainSettings(**{**chosen, "optimizer": str(values["optimizer"])})
    trees = numbers("trees", values["trees"], int)
    if len(trees) != len(Trees.__dataclass_fields__) or min(trees) < 1:
        raise ValueError(f"--trees {values['trees']!r}: five whole numbers above 0 are needed")
    layers = values["feature_layers"]
    save_dtype = parse_dtype(str(values["save_dtype"]))
    assert save_dtype is not None, "auto is none of the choices"
    out = values["out"]
    return TrainRun(
        data=values["data"],
        out=out,
        work=values["work"] or out.with_name(out.name + ".work"),
        settings=settings,
        model={name: values[name] for name in ("model", "device", "threads")},
        dtype=str(values["dtype"]),
        base=values["base"],
        feature_layers=numbers("feature-layers", layers, int) if layers else None,
        save_dtype=save_dtype,
        format=str(values["format_"]),  # type: ignore[arg-type]
        save_every=values["save_every"],
        evaluate_every=values["evaluate_every"],
        trees=Trees(*trees),
        teacher_memory=int(values["teacher_memory"] * (1 << 30)),
    )


def _follow(session: Session, *, quiet: bool) -> None:
    """Train, and say how it goes."""
    done = session.trainer.done
    if done and not quiet:
        note(f"going on from step {done} of {session.trainer.total}")
    try:
        with bar("steps", quiet=quiet) as show:
            show(done, session.trainer.total, "")
            for progress in session.steps():
                show(progress.record.step, progress.total, _told(progress))
                if progress.evaluation and not quiet:
                    note(_measured(progress.evaluation))
    except KeyboardInterrupt:
        if not quiet:
            note(
                f"broken off after step {session.trainer.done}: give the same command again to go "
                "on"
            )
        raise


def _told(progress: Progress) -> str:
    record = progress.record
    shares = " / ".join(f"{share:.0%}" for share in record.accuracy)
    return f"loss {record.loss:.3f}, right {shares}, {record.tokens:,} tokens"


def _measured(found: Mapping[str, Any]) -> str:
    tau = found.get("held_out_tau")
    shares = " / ".join(f"{share:.0%}" for share in found.get("held_out_accuracy", ()))
    return f"step {found['step']}: held out: right {shares}, tau {tau}"


def _manifest(engine: Engine, items: Sequence[Item], settings: DistillSettings) -> Manifest:
    from graft.bench.item import prompts_hash
    from graft.fingerprint import tokenizer_fingerprint
    from graft.train.data_folder import Manifest

    return Manifest(
        model=engine.name,
        fingerprint=tokenizer_fingerprint(engine.tokenizer, engine.token_count),
        token_count=engine.token_count,
        settings={**asdict(settings), "prompts": prompts_hash(items)},
    )


@contextmanager
def _stops_on_terminate() -> Iterator[None]:
    """Let a request to end do as Ctrl-C does: save what there is."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
