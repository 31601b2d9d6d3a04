"""The figures of a benchmark, from its measurements alone.

`draw_all` writes each figure as PNG and SVG; a figure whose data are not there is left out, with a
note. matplotlib (the extra `bench`) is imported when a figure is drawn, not with this package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from graft.bench.figures import batches, components, conditions, kinds, speedup, stages
from graft.bench.figures.data import Data, Missing
from graft.bench.figures.kinds import Kinds
from graft.bench.figures.style import rc_context, save
from graft.bench.measurement import Measurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Kinds", "draw_all", "drawn_in"]

# By the name of the files.
FAMILIES: dict[str, Callable[[Data], Figure]] = {
    "speedup_tau": speedup.draw,
    "components": components.draw,
    "stages": stages.draw,
    "depth": stages.draw_depth,
    "context_length": conditions.draw_context,
    "temperature": conditions.draw_temperature,
    "course": conditions.draw_course,
    "batch": batches.draw,
}
KINDS = "token_kinds"  # drawn from what is told beside the measurements


def draw_all(
    measurements: Sequence[Measurement],
    folder: str | Path,
    *,
    task_kinds: Kinds | None = None,
    notes: list[str] | None = None,
) -> list[Path]:
    """Draw every figure that the measurements allow.

    Args:
        folder: where the files go; it is made. Files are replaced whole; those of a figure that is
            left out are removed.
        task_kinds: for a figure of them: accepted retrieved tokens per kind, for each case by its
            label (a method, or any other name). Where they are not known (None) the figure stays
            as it is.
        notes: gets a line for each figure that is left out, saying why.

    Returns:
        The files written, PNG and SVG of each figure.

    Raises:
        ValueError: if matplotlib is not installed, or a file cannot be written.
    """
    folder = Path(folder)
    paths: list[Path] = []
    with rc_context():
        data = Data(measurements)
        families = dict(FAMILIES)
        if task_kinds is not None:
            families[KINDS] = partial(kinds.draw, kinds=task_kinds)
        elif notes is not None:
            notes.append(f"{KINDS} is left as it is: only a run has the tokenizer to draw it")
        for name, draw in families.items():
            try:
                figure = draw(data)
            except Missing as missing:
                if notes is not None:
                    notes.append(f"{name} is left out: {missing}")
                _remove(folder, name)
                continue
            paths += _written(figure, folder, name)
    return paths


def drawn_in(folder: Path) -> list[Path]:
    """The pictures of ours in a folder, in their order."""
    places = [folder / f"{name}.png" for name in (*FAMILIES, KINDS)]
    return [place for place in places if place.is_file()]


def _remove(folder: Path, name: str) -> None:
    try:
        for kind in ("png", "svg"):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
    except OSError as error:
        raise _refused(folder, error) from error


def _written(figure: Figure, folder: Path, name: str) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return save(figure, folder, name)
    except OSError as error:
        raise _refused(folder, error) from error


def _refused(folder: Path, error: OSError) -> ValueError:
    return ValueError(f"figures cannot be written to {folder}: {error.strerror or error}")
