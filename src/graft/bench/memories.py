"""A memory for every case of a run that learns.

What a case has learnt must not help another one. So each retrieving case has its own memory, which
stands in the engine while the case answers and at no other time.

It knows cases and engines, not prompts, results or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from graft.bench.methods import Case
from graft.engine import Engine


class Memories:
    """The memories of a run.

    Args:
        engines: by drafter kind.
        cases: those that have a memory of their own; all start with a copy of their engine's.
    """

    def __init__(self, engines: Mapping[str | None, Engine], cases: Sequence[Case]) -> None:
        self._engines = engines
        self._held = {case: self._engine(case).memory.copy() for case in cases}
        self._start = {case: memory.copy() for case, memory in self._held.items()}
        self._others: dict[str, Tensor] = {}  # of cases that an earlier start of the run had

    @contextmanager
    def of(self, case: Case) -> Iterator[Engine]:
        """The engine of a case, with the case's memory and parts in it."""
        engine = self._engine(case)
        own, settings = engine.memory, engine.settings
        engine.memory = self._held.get(case, own)
        engine.settings = settings.having(without=case.method.without)
        try:
            yield engine
        finally:
            engine.memory, engine.settings = own, settings

    def restore(self) -> None:
        """Forget what was learnt since the beginning."""
        for case, memory in self._held.items():
            memory.take(self._start[case].tensors())

    def learnt(self) -> dict[str, Tensor]:
        """What each case has learnt, by its name and the tensor's: "case/tensor"."""
        out = dict(self._others)
        for case, memory in self._held.items():
            out |= {f"{case.name}/{name}": tensor for name, tensor in memory.tensors().items()}
        return out

    def take(self, learnt: Mapping[str, Tensor]) -> None:
        """Go on with what `learnt` gave; cases that are not in it keep what they have.

        Raises:
            ValueError: for memories of another shape.
        """
        self._others = dict(learnt)
        for case, memory in self._held.items():
            own = {k: t for k, t in self._others.items() if k.rpartition("/")[0] == case.name}
            if not own:
                continue
            try:
                memory.take({key.rpartition("/")[2]: tensor for key, tensor in own.items()})
            except ValueError as error:
                raise ValueError(
                    f"{case.name} had learnt another memory ({error}): run into another folder"
                ) from error
            for key in own:
                del self._others[key]

    def missing(self, learnt: Mapping[str, Tensor]) -> list[Case]:
        """The cases that `learnt` says nothing about."""
        named = {key.rpartition("/")[0] for key in learnt}
        return [case for case in self._held if case.name not in named]

    def _engine(self, case: Case) -> Engine:
        return self._engines[case.method.drafter]
