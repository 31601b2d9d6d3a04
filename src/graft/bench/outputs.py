"""What is made from results.jsonl, beside it: report.md and figures.

Invariant: a file that is not ours is not replaced. It knows how figures and report come together,
not what they say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from graft.atomic import write_whole
from graft.bench.folder import check_report
from graft.bench.kinds import token_kinds
from graft.bench.measurement import Measurement
from graft.bench.report import report
from graft.bench.results import Results, place_of, read_results

__all__ = ["CODE_TASKS", "retrieved_kinds", "write_outputs"]

CODE_TASKS: Final = ("code", "humaneval", "mbpp", "lcc", "repobench_p", "repobench-p")
_EARLIER: Final = "As they were last drawn; the tables may hold more answers."


def write_outputs(given: Path, tokenizer: Any, *, figures: bool) -> tuple[Results, list[str]]:
    """report.md and the figures; the results, and notes on what is left out.

    Args:
        given: the folder of a run, or its results.jsonl.
        tokenizer: of the model, for the kinds of tokens; without it their figure stays as it is.
        figures: draw them; else those that are there are shown.

    Raises:
        ValueError: for results without answers, and files that cannot be written or are not ours.
    """
    from graft.bench.figures import draw_all, drawn_in

    source = place_of(given)
    folder = source.parent
    check_report(folder)
    results = read_results(source)
    notes: list[str] = []
    parts = [report(results).rstrip()]
    if figures:
        kinds = retrieved_kinds(results.measurements, tokenizer) if tokenizer is not None else None
        draw_all(results.measurements, folder / "figures", task_kinds=kinds, notes=notes)
    if pictures := drawn_in(folder / "figures"):
        links = [f"![{path.stem}](figures/{path.name})" for path in pictures]
        parts += ["## Figures", *([] if figures else [_EARLIER]), *links]
    place = folder / "report.md"
    try:
        write_whole(place, ("\n\n".join(parts) + "\n").encode())
    except OSError as error:
        raise ValueError(f"{place} cannot be written: {error.strerror or error}") from error
    return results, notes


def retrieved_kinds(
    measurements: Sequence[Measurement], tokenizer: Any
) -> dict[str, dict[str, int]]:
    """What the retrieved tokens that were accepted in code are, per method."""
    out: dict[str, Counter[str]] = {}
    for line in measurements:
        if line.task not in CODE_TASKS or "r" not in line.sources:
            continue
        texts = [tokenizer.decode([token]) for token in line.token_ids]
        kinds = zip(token_kinds(texts), line.sources, strict=True)
        counts = out.setdefault(line.method, Counter())
        counts.update(kind for kind, source in kinds if source == "r")
    return {method: dict(counts) for method, counts in out.items()}
