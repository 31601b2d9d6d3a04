"""`graft models`: what can be named without a download."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from graft.cli import options as o
from graft.cli.screen import Screen, visible

if TYPE_CHECKING:
    from graft.model_list import ModelEntry

__all__ = ["models_command"]


def models_command(
    json_: o.AsJson = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the digests of converted models.")
    ] = False,
) -> None:
    """List the models at hand: Graft's own and those in the Hugging Face cache."""
    from graft.model_list import list_models

    entries = list_models(check=check)
    if json_:
        objects = [{**asdict(entry), "path": str(entry.path)} for entry in entries]
        Screen(sys.stdout).line(json.dumps(objects))
    elif sys.stdout.isatty():
        _table(entries)
    else:
        screen = Screen(sys.stdout)
        for entry in entries:
            screen.line("\t".join([*_row(entry), str(entry.path)]))


def _row(entry: ModelEntry) -> list[str]:
    state = "ready" if entry.ready else "on first use"
    if entry.problems:
        state = f"damaged, made anew on next use: {'; '.join(entry.problems)}"
    return [entry.alias, state, f"{entry.size / 1e6:,.0f} MB", entry.licence, entry.description]


def _table(entries: list[ModelEntry]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("model", "state", "size", "licence", "description", box=None, pad_edge=False)
    for entry in entries:
        table.add_row(*(Text(visible(cell)) for cell in _row(entry)))
    Console().print(table)
