"""A matrix for every case of a run that keeps one.

What a case has learnt must not help another one. So each retrieving case has its own matrix, which
stands in the engine while the case answers and at no other time.

It knows cases and engines, not prompts, results or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from graft.bench.methods import Case
from graft.engine import Engine


class Matrices:
    """The matrices of a run.

    Args:
        engines: by drafter kind.
        cases: those that have a matrix of their own; all start with a copy of their engine's.
    """

    def __init__(self, engines: Mapping[str | None, Engine], cases: Sequence[Case]) -> None:
        self._engines = engines
        self._held = {case: self._engine(case).matrix.copy() for case in cases}
        self._start = {case: matrix.ids.clone() for case, matrix in self._held.items()}
        self._others: dict[str, Tensor] = {}  # of cases that an earlier start of the run had

    @contextmanager
    def of(self, case: Case) -> Iterator[Engine]:
        """The engine of a case, with the case's matrix in it."""
        engine = self._engine(case)
        own = engine.matrix
        engine.matrix = self._held.get(case, own)
        try:
            yield engine
        finally:
            engine.matrix = own

    @torch.inference_mode(False)
    def restore(self) -> None:
        """Forget what was learnt since the beginning."""
        for case, matrix in self._held.items():
            matrix.ids.copy_(self._start[case])

    def learnt(self) -> dict[str, Tensor]:
        """What each case has learnt, by its name: ids int32 [V, k]."""
        held = {case.name: m.ids[: m.token_count] for case, m in self._held.items()}
        return {**self._others, **held}

    @torch.inference_mode(False)
    def take(self, learnt: Mapping[str, Tensor]) -> None:
        """Go on with what `learnt` gave; cases that are not in it keep what they have.

        Raises:
            ValueError: for matrices of another shape.
        """
        self._others = dict(learnt)
        for case, matrix in self._held.items():
            ids = self._others.pop(case.name, None)
            if ids is None:
                continue
            own = matrix.ids[: matrix.token_count]
            if ids.shape != own.shape:
                raise ValueError(
                    f"{case.name} had learnt a matrix of {list(ids.shape)} tokens and successors, "
                    f"but has one of {list(own.shape)} now: run into another folder"
                )
            own.copy_(ids)

    def missing(self, learnt: Mapping[str, Tensor]) -> list[Case]:
        """The cases that `learnt` says nothing about."""
        return [case for case in self._held if case.name not in learnt]

    def _engine(self, case: Case) -> Engine:
        return self._engines[case.method.drafter]
