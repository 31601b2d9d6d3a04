"""`graft heads`: EAGLE-3 heads and DFlash drafters, and what the loader understands of them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graft.cli import options as o
from graft.cli.screen import Screen, visible

if TYPE_CHECKING:
    from graft.drafters.dflash.report import DFlashReport
    from graft.drafters.eagle3.facts import TargetFacts
    from graft.drafters.eagle3.report import HeadReport

__all__ = ["heads_app"]

_HELP = "Draft heads (EAGLE-3, DFlash): look into a checkpoint."
heads_app = typer.Typer(help=_HELP, no_args_is_help=True)


_UNCHECKED = "not checked (give --model)"


@heads_app.callback(help=_HELP)
def _heads() -> None:
    """Without a callback the only command would be the app itself."""


@heads_app.command("inspect")
def inspect_command(
    path: Annotated[str, typer.Argument(help="A head's folder, or a hub id org/name.")],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="The target to check it against; no weights are read."),
    ] = None,
    json_: o.AsJson = False,
) -> None:
    """Read a head and say how it was understood, or why it is refused."""
    target = None
    if model is not None:
        from graft.drafters.eagle3.target_facts import read_target_facts

        target = read_target_facts(model)
    report = _inspect(path, target)
    if json_:
        Screen(sys.stdout).line(json.dumps(report.as_dict()))
    elif sys.stdout.isatty():
        _table(report)
    else:
        screen = Screen(sys.stdout)
        for name, value in _rows(report):
            screen.line(f"{name}\t{value}")


def _inspect(path: str, target: TargetFacts | None) -> HeadReport | DFlashReport:
    from graft.drafters.eagle3.checkpoint import find_folder
    from graft.drafters.loading import kind_of

    if kind_of(path) == "dflash":
        from graft.drafters.dflash.report import inspect_dflash

        return inspect_dflash(find_folder(path), path, target)
    from graft.drafters.eagle3.loader import inspect_head

    return inspect_head(path, target)


def _rows(report: HeadReport | DFlashReport) -> list[tuple[str, str]]:
    from graft.drafters.eagle3.report import HeadReport

    return _head_rows(report) if isinstance(report, HeadReport) else _dflash_rows(report)


def _dflash_rows(report: DFlashReport) -> list[tuple[str, str]]:
    config = report.config
    layers = ", ".join(map(str, config.feature_layers))
    size = config.block_size
    return [
        ("head", report.path),
        ("kind", "DFlash drafter"),
        ("format", report.format),
        ("target", report.target or _UNCHECKED),
        ("parameters", _size(report)),
        ("width", _width(config)),
        ("features", f"width {config.target_hidden_size}, inputs of layers {layers}"),
        ("draft vocabulary", _vocabulary(report)),
        ("block", f"{size} rows: {size - 1} drafted tokens; mask token {config.mask_token_id}"),
        ("embeddings", "its own" if config.own_embeddings else "the target's"),
        ("output layer", "its own" if config.own_head else "the target's"),
        ("rope", report.rope),
        ("trained length", str(config.max_position_embeddings)),
        ("windows", _per_layer([str(window or "none") for window in config.windows])),
        ("causal", _per_layer(["yes" if causal else "no" for causal in config.causal])),
        ("digest", report.digest),
    ]


def _per_layer(shown: list[str]) -> str:
    return shown[0] if len(set(shown)) == 1 else ", ".join(shown)


def _head_rows(report: HeadReport) -> list[tuple[str, str]]:
    config = report.config
    flags: tuple[str, ...] = (
        "norm_before_residual",
        "norm_before_fc",
        "fc_norm",
        "norm_output",
        "qk_norm",
    )
    flags = (*flags, "fc_bias", "attention_bias", "mlp_bias")
    variants = [name for name in flags if getattr(config, name)]
    made = report.made_for or "not stated"
    rows = [
        ("head", report.path),
        ("kind", "EAGLE-3 head"),
        ("format", report.format),
        ("target", report.target or _UNCHECKED),
        ("made for", made),
        ("parameters", _size(report)),
        ("width", _width(config)),
        ("features", _features(report)),
        ("draft vocabulary", _vocabulary(report)),
        ("embeddings", "its own" if report.own_embeddings else "the target's"),
        ("rope", report.rope),
        ("trained length", str(report.trained_length or "not stated")),
        ("window", str(config.sliding_window or "none")),
        ("variants", ", ".join(variants) or "none"),
        ("digest", report.digest),
    ]
    return rows + [("note", text) for text in report.notes]


def _size(report: HeadReport | DFlashReport) -> str:
    return f"{report.parameters:,} ({report.dtype}, {report.bytes / 1e6:,.1f} MB)"


def _width(config: Any) -> str:
    return (
        f"{config.hidden_size}, {config.num_hidden_layers} layer(s), "
        f"{config.num_attention_heads} query and {config.num_key_value_heads} key heads of "
        f"{config.head_dim}"
    )


def _features(report: HeadReport) -> str:
    width = report.config.target_hidden_size
    if report.feature_layers is None:
        return f"width {width}, layers depend on the target (2, n // 2, n - 3)"
    inputs = ", ".join(map(str, report.feature_layers))
    written = (
        "none" if report.written_layers is None else ", ".join(map(str, report.written_layers))
    )
    return f"width {width}, inputs of layers {inputs} (in the checkpoint: {written})"


def _vocabulary(report: HeadReport | DFlashReport) -> str:
    whole = report.config.vocab_size
    return f"{report.config.draft_vocab_size:,} of {whole:,} tokens ({report.draft_share:.1%})"


def _table(report: HeadReport | DFlashReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _rows(report):
        table.add_row(Text(name, style="bold"), Text(visible(value)))
    Console().print(table)
