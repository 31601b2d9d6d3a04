"""Runs of `graft bench` on a tiny model that holds 256 tokens."""

from __future__ import annotations

import json
from pathlib import Path

from graft.bench.results import Results, read_results
from tests.cli.helpers import Command, Run

SUITE = [
    {"task": "chat", "prompt": "hello hello hello"},
    {"task": "chat", "turns": ["hi", "and then?"]},
    {"task": "code", "prompt": "def f(x):\n    return x"},
]
ANSWERS = 4  # turns


class Bench:
    """Runs `graft bench` on the tiny model into a folder of its own, beside its suite."""

    def __init__(self, run: Command, model: str, folder: Path) -> None:
        self.run = run
        self.model = model
        self.folder = folder
        suite = folder.parent / "suite.jsonl"
        suite.write_text("".join(json.dumps(line) + "\n" for line in SUITE))
        self.start = ("bench", "-m", model, "--suite", str(suite), "-n", "8")

    def __call__(self, *arguments: str, figures: bool = False) -> Run:
        drawn = () if figures else ("--no-figures",)
        return self.run(*self.start, "--out", str(self.folder), *drawn, *arguments)

    @property
    def results(self) -> Results:
        return read_results(self.folder / "results.jsonl")

    @property
    def report(self) -> str:
        return (self.folder / "report.md").read_text()
