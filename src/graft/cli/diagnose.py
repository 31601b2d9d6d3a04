"""`graft diagnose`: what is wrong with the runs of a benchmark, in sentences, and what to try.

stdout holds the findings. What they look at is not known here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from graft.cli.screen import Screen

__all__ = ["diagnose_command"]


def diagnose_command(
    given: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a benchmark, or its results.jsonl.")
    ],
) -> None:
    """Say what is wrong with the runs of a benchmark, and what to try."""
    from graft.bench.results import place_of, read_results
    from graft.bench.vital_signs import vitals_of_cases
    from graft.diagnosis import LEAST, diagnose

    screen = Screen(sys.stdout)
    cases = vitals_of_cases(read_results(place_of(given)).measurements)
    if not cases:
        raise ValueError(f"{given} holds no answers of a policy that builds trees: run one first")
    for number, vitals in enumerate(cases):
        if number:
            screen.line("")
        screen.line(vitals.name)
        if vitals.rounds < LEAST:
            screen.line(f"  {vitals.rounds} rounds are too few to say anything: give more prompts.")
            continue
        speed = "" if vitals.speedup is None else f", {vitals.speedup:.2f}x plain decoding"
        screen.line(f"  tau {vitals.tau:.2f}{speed}, {vitals.rounds} rounds")
        findings = diagnose(vitals)
        for finding in findings:
            screen.line(f"  - {finding}")
        if not findings:
            screen.line("  nothing is wrong")
