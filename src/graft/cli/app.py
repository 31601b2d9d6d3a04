"""The entry point: the commands, and how each run ends.

Invariant: only bugs end in a traceback. A user's mistake is one line on stderr that begins with
`error: `, and exit code 2. Ctrl-C is 130, a closed pipe is 141 and silent (as for any command
that a signal ends). What the commands do is not known here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from graft.cli.bench import bench_app
from graft.cli.calibrate import calibrate_command
from graft.cli.chat import chat_command
from graft.cli.demo import demo_command
from graft.cli.diagnose import diagnose_command
from graft.cli.generate import generate_command
from graft.cli.heads import heads_app
from graft.cli.matrix import matrix_app
from graft.cli.models import models_command
from graft.cli.notes import note
from graft.cli.screen import PipeClosed
from graft.cli.trace import trace_command
from graft.cli.train import train_app
from graft.cli.verify import verify_command

__all__ = ["app", "main"]

USER_ERROR = 2
INTERRUPTED = 130
PIPE_CLOSED = 141

app = typer.Typer(
    help="Faster decoding of open-weight language models, with the same tokens.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate_command)
app.command("chat")(chat_command)
app.command("demo")(demo_command)
app.command("verify")(verify_command)
app.command("trace")(trace_command)
app.command("models")(models_command)
app.command("diagnose")(diagnose_command)
app.command("calibrate")(calibrate_command)
app.add_typer(bench_app, name="bench")
app.add_typer(matrix_app, name="matrix")
app.add_typer(heads_app, name="heads")
app.add_typer(train_app, name="train")


def _print_version(wanted: bool) -> None:
    if wanted:
        from graft import __version__

        typer.echo(f"graft {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; `sys.argv` if None.

    Returns:
        The exit code.
    """
    _never_fail_to_encode()
    try:
        given = None if arguments is None else list(arguments)
        code = app(args=given, prog_name="graft", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (PipeClosed, BrokenPipeError):
        _discard_stdout()
        return PIPE_CLOSED
    except Exception as error:
        message = _mistake(error)
        if message is None:
            raise
        note(f"error: {message}")
        return USER_ERROR


def _mistake(error: Exception) -> str | None:
    """What the user should know of an error; None for a bug."""
    # Typer's own errors have had several base classes; all of them can format their message.
    if (format_message := getattr(error, "format_message", None)) is not None:
        return str(format_message())
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return f"out of memory ({error}): use a smaller model or budget, or a shorter prompt"
    return str(error) if isinstance(error, ValueError | OSError) else None


def _never_fail_to_encode() -> None:
    """A terminal that cannot show a character shows a stand-in."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")


def _discard_stdout() -> None:
    """Nobody reads on: what is still in the buffer must not raise again when Python exits."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except OSError:  # stdout is no file
        pass
