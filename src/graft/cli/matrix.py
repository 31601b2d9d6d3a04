"""`graft matrix`: matrices in files, learnt from a corpus for a warm start.

`build` runs the model over texts and saves what it says of every token; `info` shows what a file
holds. Nothing is written before the learning is done, so a run that is broken off leaves
everything as it was. How matrices are learnt and stored is not known here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from graft.cli import options as o
from graft.cli.loading import load_engine
from graft.cli.notes import held_warnings, note
from graft.cli.screen import Screen

if TYPE_CHECKING:
    from graft.corpus import Document
    from graft.engine import Engine
    from graft.matrix import AdjacencyMatrix
    from graft.matrix_build import BuildReport
    from graft.matrix_file import MatrixInfo

__all__ = ["matrix_app"]

_WHAT: Final = "What to learn, and where to"

matrix_app = typer.Typer(help="Learn a matrix from texts, for a warm start; look into one.")


@matrix_app.callback(invoke_without_command=True)
def _matrix(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@matrix_app.command("build")
def build_command(
    context: typer.Context,
    from_: Annotated[
        list[Path],
        typer.Option(
            "--from",
            metavar="FILE",
            help="Texts: .jsonl (text, prompt, turns, response, answer or messages) or .txt; "
            "repeatable.",
            rich_help_panel=_WHAT,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="The matrix file.", rich_help_panel=_WHAT),
    ],
    limit_tokens: Annotated[
        int | None,
        typer.Option(
            "--limit-tokens", min=1, help="Stop after so many tokens.", rich_help_panel=_WHAT
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k",
            help="Successors per token; 8, or what the file of --onto has.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    onto: Annotated[
        bool,
        typer.Option("--onto", help="Learn on from what is in --out.", rich_help_panel=_WHAT),
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace the matrix in --out.", rich_help_panel=_WHAT),
    ] = False,
    quiet: o.Quiet = False,
    model: o.Model = "smollm2-135m",
    device: o.Device = "auto",
    dtype: o.DtypeOption = o.Dtype.auto,
    threads: o.Threads = None,
    cpu_weights: o.CpuWeightsOption = o.CpuWeights.auto,
) -> None:
    """Learn a matrix from texts by running the model over them, and save it.

    All texts are checked before the model is loaded."""
    from graft.corpus import read_corpus

    size = sum(document.size for document in read_corpus(from_))
    _check_out(out, k, onto=onto, force=force)
    engine = load_engine(context.params, quiet=quiet)
    from graft.fingerprint import tokenizer_fingerprint
    from graft.matrix_file import save_matrix

    fingerprint = tokenizer_fingerprint(engine.tokenizer, engine.token_count)
    matrix = _start(engine, out, fingerprint, k, onto=onto)
    with held_warnings(quiet=quiet), _bar(size, limit_tokens, quiet=quiet) as show:
        report = _learn(engine, matrix, read_corpus(from_), limit_tokens, show)
    save_matrix(out, report.matrix, fingerprint, model=engine.name)
    if not quiet:
        note(_summary(report, out))


@matrix_app.command("info")
def info_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A matrix file.")],
    json_: o.AsJson = False,
) -> None:
    """Check a matrix file, and say what it holds and which model it is for."""
    from graft.matrix_file import read_info

    info = read_info(file)
    screen = Screen(sys.stdout)
    if json_:
        screen.line(json.dumps({**asdict(info), "path": str(info.path)}))
    else:
        for name, value in _facts(info).items():
            screen.line(f"{name:<12} {' '.join(value.splitlines())}")


def _check_out(out: Path, k: int | None, *, onto: bool, force: bool) -> None:
    """Whether the result could be saved: better known before the work than after it."""
    from graft.matrix_file import matrix_exists
    from graft.settings import EngineSettings

    if k is not None:
        EngineSettings(k=k)  # says which there may be
    if onto and force:
        raise ValueError("--onto continues from the file and --force replaces it: give one of them")
    exists = matrix_exists(out)
    if onto and not exists:
        raise ValueError(f"{out} does not exist, so there is nothing to learn on: leave out --onto")
    if exists and not (onto or force):
        raise ValueError(
            f"{out} is a matrix file already: add --onto to learn on from it, or --force to "
            "replace it"
        )


def _start(
    engine: Engine, out: Path, fingerprint: str, k: int | None, *, onto: bool
) -> AdjacencyMatrix:
    """The matrix to learn in."""
    from graft.matrix import AdjacencyMatrix
    from graft.matrix_file import load_matrix

    device = engine.target.device
    if not onto:
        return AdjacencyMatrix(engine.token_count, k or engine.settings.k, device)
    matrix = load_matrix(out, fingerprint, device=device)
    if k not in (None, matrix.k):
        raise ValueError(
            f"--k {k}, but {out} has {matrix.k} successors per token: leave out --k, or build "
            "another file"
        )
    return matrix


def _learn(
    engine: Engine,
    matrix: AdjacencyMatrix,
    documents: Iterable[Document],
    limit: int | None,
    show: Callable[[int, int], None],
) -> BuildReport:
    from graft.matrix_build import build_matrix

    taken = 0

    def counted() -> Iterator[Document]:
        nonlocal taken
        for document in documents:
            yield document
            taken += document.size  # asked for the next one: this one is learnt

    return build_matrix(
        engine,
        counted(),
        matrix=matrix,
        limit_tokens=limit,
        on_progress=lambda tokens: show(tokens, taken),
    )


@contextmanager
def _bar(size: int, limit: int | None, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; yields what shows (tokens so far, bytes of the corpus so far)."""
    if quiet or not sys.stderr.isatty():
        yield lambda tokens, taken: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = ("learning", BarColumn(), TextColumn("{task.fields[tokens]} tokens"))
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=1.0, tokens="0")

        def show(tokens: int, taken: int) -> None:
            done = max(taken / max(size, 1), tokens / limit if limit else 0.0)
            progress.update(task, completed=done, tokens=f"{tokens:,}")

        yield show


def _summary(report: BuildReport, out: Path) -> str:
    return " \u00b7 ".join(
        [
            f"{report.tokens:,} token{'s' * (report.tokens != 1)}",
            f"{report.rows:,} of {report.matrix.token_count:,} rows written",
            f"{report.seconds:.1f} s",
            f"{out.stat().st_size / 1e6:.2f} MB in {out}",
        ]
    )


def _facts(info: MatrixInfo) -> dict[str, str]:
    return {
        "file": str(info.path),
        "format": str(info.version),
        "model": info.model,
        "fingerprint": info.fingerprint,
        "created": info.created,
        "tokens": f"{info.token_count:,}",
        "k": str(info.k),
        "rows": f"{info.rows:,} written ({info.rows / info.token_count:.1%})",
        "entries": f"{info.entries:,}",
        "size": f"{info.file_bytes / 1e6:.2f} MB on disk, {info.memory_bytes / 1e6:.2f} MB in "
        "memory",
    }
