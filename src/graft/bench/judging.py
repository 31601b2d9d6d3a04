"""Judging: whether answers are plain decoding's, as they come.

The rule is that of `graft.exactness`; here it is only applied, and noted in the lines. An answer
beside which there is no plain one is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graft.bench.measurement import Measurement
from graft.bench.methods import comparable
from graft.engine import Engine
from graft.exactness import first_difference
from graft.sampling_params import SamplingParams


def judged(
    engine: Engine,
    lines: Sequence[Measurement],
    prompts: Mapping[str, tuple[list[int], int]],
    known: Mapping[tuple[Any, ...], Measurement],
    sampling: Callable[[float], SamplingParams],
) -> list[Measurement]:
    """The lines, with what a comparison with plain decoding says about each.

    Args:
        engine: plain decoding's.
        lines: of one turn of some items of a task.
        prompts: token ids, and the place in the call for all items, by an item's id.
        known: lines that were there before, by key; plain's may be among them.
        sampling: settings of the draw, by temperature.
    """
    plain = {**known, **{line.key: line for line in lines}}
    out = []
    for line in lines:
        base = plain.get(_plain_key(line))
        judge = comparable(line.method, line.temperature)
        if base is not None and base is not line and judge:
            prompt, place = prompts[line.id]
            params, row = sampling(line.temperature), place % line.batch
            line = _compared(engine, line, base, params, prompt, row)
        out.append(line)
    return out


def _compared(
    engine: Engine,
    line: Measurement,
    plain: Measurement,
    params: SamplingParams,
    prompt: list[int],
    row: int,
) -> Measurement:
    found = first_difference(engine, params, prompt, plain.token_ids, line.token_ids, row=row)
    if found is None:
        return line
    if found.excuse is not None:
        return replace(line, excused=1)
    return replace(line, difference=found.position)


def _plain_key(line: Measurement) -> tuple[Any, ...]:
    """Key of plain decoding's answer beside another one."""
    return replace(line, method="plain", budget=0, matrix="none").key
