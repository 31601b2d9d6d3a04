"""Synthetic answers for tests of statistics, reports and comparisons."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from graft.bench.measurement import Measurement
from graft.bench.results import Results
from graft.bench.results_writer import ResultsWriter

ENVIRONMENT: dict[str, Any] = {
    "time": "2026-01-01T00:00:00+00:00",
    "command": "graft bench",
    "settings": {"max_tokens": 64},
    "prompts_hash": "p0",
    "model": "tiny",
    "model_digest": "0123",
    "dtype": "float32",
    "drafters": {"model": ["small", "4567"]},
    "device": "cpu",
    "threads": 2,
    "versions": {"torch": "2.13.0"},
}


def make_measurement(**changes: Any) -> Measurement:
    """Eleven tokens in five rounds of graft at K = 4; `changes` are fields."""
    numbers: dict[str, Any] = {
        "task": "maths",
        "id": "maths/0",
        "turn": 0,
        "method": "graft",
        "budget": 4,
        "temperature": 0.0,
        "batch": 1,
        "seed": 0,
        "matrix": "warm",
        "prompt_tokens": 20,
        "completion_tokens": 11,
        "token_ids": list(range(11)),
        "sources": "t" * 11,
        "finish_reason": "length",
        "tau": 2.0,
        "rounds": 5,
        "trimmed": 0,
        "prefill_seconds": 0.1,
        "decode_seconds": 0.5,
        "time_to_first_token": 0.1,
        "latency_seconds": 0.6,
        "repeated_8grams": 0.0,
        "draft_steps": 5,
        "kept_draft": 10,
        "released_slots": 10,
        "redirected": 1,
        "proposed_draft": 10,
        "proposed_retrieved": 10,
        "accepted_draft": 4,
        "accepted_retrieved": 1,
        "empty_slots": 0,
        "lookups": 40,
        "hits": 30,
        "rows_written": 9,
        "lookup_seconds": 0.01,
        "seconds": {
            "draft": 0.1,
            "graft": 0.05,
            "verify": 0.25,
            "commit_update": 0.05,
            "other": 0.05,
        },
        "round_tokens": [2, 2, 2, 2, 2],
        "round_stages": ["d0", "d0", "d1", "full", "full"],
        "round_draft": [2, 2, 2, 2, 2],
        "round_retrieved": [2, 2, 2, 2, 2],
    }
    return Measurement(**{**numbers, **changes})


def make_plain(**changes: Any) -> Measurement:
    """The same answer by plain decoding, in a second."""
    numbers: dict[str, Any] = {
        "method": "plain",
        "budget": 0,
        "matrix": "none",
        "tau": 1.0,
        "rounds": 10,
        "decode_seconds": 1.0,
        "latency_seconds": 1.1,
        "draft_steps": 0,
        "kept_draft": 0,
        "released_slots": 0,
        "redirected": 0,
        "proposed_draft": 0,
        "proposed_retrieved": 0,
        "accepted_draft": 0,
        "accepted_retrieved": 0,
        "lookups": 0,
        "hits": 0,
        "seconds": {"verify": 0.9, "other": 0.1},
        "round_tokens": [1] * 10,
        "round_stages": ["full"] * 10,
        "round_draft": [0] * 10,
        "round_retrieved": [0] * 10,
    }
    return make_measurement(**{**numbers, **changes})


def synthetic(
    *,
    speed_up: float,
    items: int = 60,
    seed: int = 0,
    tasks: Iterable[str] = ("maths", "code"),
    of_item: float = 0.06,
    of_answer: float = 0.03,
    **changes: Any,
) -> tuple[list[Measurement], list[Measurement]]:
    """Plain answers and a method's to the same prompts, one or two turns each.

    Args:
        speed_up: of the median prompt.
        items: per task.
        of_item: spread of the speed-up between prompts, in logarithms.
        of_answer: noise of each answer's time, in logarithms.
        changes: fields of the method's measurements.
    """
    rng = random.Random(seed)
    plain, method = [], []
    for task in tasks:
        for number in range(items):
            slowness, effect = rng.gauss(0, 0.3), rng.gauss(0, of_item)
            for turn in range(1 + number % 2):
                tokens = rng.randint(20, 120)
                base = tokens * 0.05 * 2.718 ** (slowness + rng.gauss(0, of_answer))
                noise = 2.718 ** (rng.gauss(0, of_answer) - effect)
                prompt = {"task": task, "id": f"{task}/{number}", "turn": turn}
                size = {"completion_tokens": tokens + 1, "token_ids": list(range(tokens + 1))}
                plain.append(make_plain(**prompt, **size, **_times(base)))
                own = tokens * 0.05 * 2.718**slowness / speed_up * noise
                method.append(make_measurement(**{**prompt, **size, **_times(own), **changes}))
    return plain, method


def _times(decode: float) -> dict[str, float]:
    return {"decode_seconds": decode, "latency_seconds": decode + 0.1}


def make_results(measurements: Iterable[Measurement], **environment: Any) -> Results:
    """Results of one run."""
    return Results(tuple(measurements), ({**ENVIRONMENT, **environment},))


def write_results(path: Path, measurements: Iterable[Measurement], **environment: Any) -> Path:
    """A file of one run."""
    with ResultsWriter(path, {**ENVIRONMENT, **environment}) as writer:
        for m in measurements:
            writer.append(m)
    return path


def tables_of(text: str, heading: str) -> list[list[dict[str, str]]]:
    """Markdown tables between a heading and the next of its level: rows by column name. The second
    column of a name gets a 1 behind it."""
    level = heading.split(" ")[0]
    inside, open_table = False, False
    found: list[list[dict[str, str]]] = []
    header: list[str] = []
    for line in text.splitlines():
        if line.startswith("#") and len(line.split(" ")[0]) <= len(level):
            inside = line == heading
        if not inside or not line.startswith("|"):
            open_table = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not open_table:
            header = [f"{c}{cells[:i].count(c) or ''}" for i, c in enumerate(cells)]
            found.append([])
            open_table = True
        elif set(cells[0]) != {"-"}:
            found[-1].append(dict(zip(header, cells, strict=True)))
    return found
