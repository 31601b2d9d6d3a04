"""Runs over tiny models: engines, items, and a runner in a folder.

Answers are short and batches small: a whole run takes a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graft.bench.item import Item
from graft.bench.measurement import Measurement
from graft.bench.methods import cases_of, parse_method
from graft.bench.outside import generate
from graft.bench.results import read_results
from graft.bench.results_writer import ResultsWriter
from graft.bench.runner import Plan, Runner
from graft.engine import Engine
from graft.request import Result
from tests.exactness.drafting import engine, model
from tests.tiny_models import tiny_model

LENGTH = 7
# "maths 1" has two turns, the others one. "maths 2" profits from what was learnt at "maths 0".
ITEMS = [
    Item("chat", "0", ("hello hello hello",)),
    Item("maths", "0", ("one and one",)),
    Item("maths", "1", ("two and two", "and then")),
    Item("maths", "2", ("one and one",)),
]
# What differs between two runs of the same thing.
TIMES = (
    *("prefill_seconds", "decode_seconds", "time_to_first_token", "latency_seconds"),
    *("lookup_seconds", "seconds"),
)


def engines(matrix: str = "warm", **settings: Any) -> dict[str | None, Engine]:
    """An engine without a drafter, and one with a draft model that is often right."""
    scope = "request" if matrix == "cold" else "process"
    settings = {"matrix_scope": scope, "max_batch": 4, **settings}
    return {"model": engine(model(), **settings), None: engine(**settings)}


def plan(
    methods: str = "plain,retrieval",
    items: Sequence[Item] = ITEMS,
    *,
    budgets: Sequence[int] = (4,),
    temperatures: Sequence[float] = (0.0,),
    batches: Sequence[int] = (1,),
    **changes: Any,
) -> Plan:
    parsed = [parse_method(name, ("model",)) for name in methods.split(",")]
    cases = cases_of(parsed, budgets, temperatures, batches)
    cases = [c for c in cases if c.method.policy is not None or c.batch == 1]
    options: dict[str, Any] = {"max_new_tokens": LENGTH, "seed": 0, "matrix": "warm"}
    return Plan(items, cases, **{**options, **changes})


@contextmanager
def opened(
    folder: Path, what: Plan, made: dict[str | None, Engine] | None = None
) -> Iterator[Runner]:
    made = made or engines(what.matrix)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.jsonl"
    with ResultsWriter(path, {"dtype": "float32"}) as writer:
        model = tiny_model("llama")
        yield Runner(what, made, lambda _: partial(generate, model), writer, folder)


def run(
    folder: Path, what: Plan, made: dict[str | None, Engine] | None = None
) -> list[Measurement]:
    """Run to the end; all lines of the file."""
    with opened(folder, what, made) as runner:
        for _ in runner.run():
            pass
    return lines_of(folder)


def lines_of(folder: Path) -> list[Measurement]:
    return list(read_results(folder / "results.jsonl").measurements)


def without_times(lines: Iterable[Measurement]) -> list[Measurement]:
    nothing: dict[str, Any] = {**dict.fromkeys(TIMES, 0.0), "seconds": {}}
    return [replace(line, **nothing) for line in lines]


def watched(
    monkeypatch: pytest.MonkeyPatch,
) -> list[tuple[Engine, str, list[list[int]], int, Any]]:
    """Calls of engines: the engine, the policy, the prompts, the length and the matrix."""
    calls: list[Any] = []
    real = Engine.generate

    def generate(self: Engine, prompts: Any, sampling: Any = None, **options: Any) -> Any:
        size = sampling.max_new_tokens
        calls.append((self, options["policy"], prompts, size, self.matrix))
        return real(self, prompts, sampling, **options)

    monkeypatch.setattr(Engine, "generate", generate)
    return calls


def spoil(monkeypatch: pytest.MonkeyPatch, policy: str, place: int = 3) -> None:
    """A fault: answers of a policy get another token at a place."""
    real = Engine.generate

    def generate(self: Engine, prompts: Any, sampling: Any = None, **options: Any) -> Any:
        results: list[Result] = real(self, prompts, sampling, **options)
        if options.get("policy") == policy:
            for result in results:
                result.token_ids[place] = (result.token_ids[place] + 1) % 200
        return results

    monkeypatch.setattr(Engine, "generate", generate)
