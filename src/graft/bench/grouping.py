"""Grouping: the answers of a file by setting (temperature, batch) and column (method, budget,
matrix), each beside plain decoding of the same setting; and which prompt an answer is to.

It knows no statistics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from graft.bench.measurement import Measurement

PLAIN = "plain"
SETTING = ("T", "batch")


class Setting(NamedTuple):
    """Under which methods are compared. Seeds are answers more, not settings."""

    temperature: float
    batch: int

    @property
    def cells(self) -> tuple[str, str]:
        """As cells of a table, below `SETTING`."""
        return f"{self.temperature:g}", str(self.batch)

    def __str__(self) -> str:
        return f"temperature {self.temperature:g}, batch {self.batch}"


class Column(NamedTuple):
    """What is compared."""

    method: str
    budget: int
    matrix: str

    def __str__(self) -> str:
        budget = f" K={self.budget}" if self.budget else ""
        return f"{self.method}{budget}{'' if self.matrix == 'none' else f' {self.matrix}'}"


Group = dict[Column, list[Measurement]]


def setting_of(m: Measurement) -> Setting:
    return Setting(m.temperature, m.batch)


def column_of(m: Measurement) -> Column:
    return Column(m.method, m.budget, m.matrix)


def prompt_of(m: Measurement) -> tuple[str, str, int, int]:
    """What two answers must share to be paired; the seed is part of what was asked."""
    return (m.task, m.id, m.turn, m.seed)


def by_prompt(answers: Iterable[Measurement]) -> dict[tuple[str, str, int, int], Measurement]:
    """Answers by prompt.

    Raises:
        ValueError: for two answers to one prompt, which belong to different cases.
    """
    out: dict[tuple[str, str, int, int], Measurement] = {}
    for m in answers:
        other = out.setdefault(prompt_of(m), m)
        if other is not m:
            raise ValueError(
                f"two answers to {m.task} {m.id} turn {m.turn}, {other.case} and {m.case}: give "
                "the answers of one case"
            )
    return out


def grouped(measurements: Iterable[Measurement]) -> dict[Setting, Group]:
    """Settings in order; within one, plain first and the others as they came."""
    out: dict[Setting, Group] = {}
    for m in measurements:
        out.setdefault(setting_of(m), {}).setdefault(column_of(m), []).append(m)
    return {
        setting: dict(sorted(out[setting].items(), key=lambda entry: entry[0].method != PLAIN))
        for setting in sorted(out)
    }


def plain_of(group: Group) -> list[Measurement]:
    """Plain decoding's answers in a setting."""
    return [m for column, answers in group.items() if column.method == PLAIN for m in answers]


def without_looping(group: Group) -> Group:
    """The answers to prompts that plain decoding was asked too and did not answer by looping."""
    keep = {key for key, m in by_prompt(plain_of(group)).items() if not m.looping}
    return {
        column: [m for m in answers if prompt_of(m) in keep] for column, answers in group.items()
    }


def tasks_of(measurements: Iterable[Measurement]) -> list[str]:
    """Tasks in the order of the results."""
    return list(dict.fromkeys(m.task for m in measurements))
