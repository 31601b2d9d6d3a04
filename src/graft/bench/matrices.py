"""A matrix for every case of a run, kept beside its results until the next group is done.

What a case has learnt must not help another one, and a run that was broken off must go on with
what it had learnt. So each retrieving case has its own matrix, and after each group of prompts all
of them are saved under the group's number before its lines are written.

It knows cases and engines, not prompts or results.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from graft.bench.methods import Case
from graft.engine import Engine
from graft.fingerprint import tokenizer_fingerprint
from graft.matrix_file import load_matrix, save_matrix
from graft.settings import RETRIEVING


class Matrices:
    """The matrices of a run.

    Args:
        folder: of the run.
        engines: by drafter kind.
        cases: of the run.
        keep: matrices live over the run; else each group starts with empty ones.
    """

    def __init__(
        self,
        folder: Path,
        engines: Mapping[str | None, Engine],
        cases: Sequence[Case],
        *,
        keep: bool,
    ) -> None:
        self._folder = folder / "matrices"
        self._engines = engines
        self._keep = keep
        made = [case for case in cases if case.method.policy in RETRIEVING]
        self._held = {case: self._engine(case).matrix.copy() for case in made}
        self._start = {case: matrix.copy() for case, matrix in self._held.items()}

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

    def restore(self) -> None:
        """Forget what was learnt since the beginning."""
        self._held = {case: matrix.copy() for case, matrix in self._start.items()}

    def begin(self, group: int) -> None:
        """Before a group: what the group before it left, if it was run at another time."""
        if not self._keep:
            self.restore()
            return
        before = self._folder / str(group - 1)
        if before.is_dir():
            for number, case in enumerate(self._held):
                engine = self._engine(case)
                path = before / f"{number}.safetensors"
                fingerprint = tokenizer_fingerprint(engine.tokenizer, engine.token_count)
                self._held[case] = load_matrix(path, fingerprint, device=engine.target.device)

    def save(self, group: int) -> None:
        """After a group, before its lines are written."""
        if not self._keep or not self._held:
            return
        place = self._folder / str(group)
        place.mkdir(parents=True, exist_ok=True)
        for number, (case, matrix) in enumerate(self._held.items()):
            engine = self._engine(case)
            fingerprint = tokenizer_fingerprint(engine.tokenizer, engine.token_count)
            save_matrix(place / f"{number}.safetensors", matrix, fingerprint, model=engine.name)

    def forget(self, group: int) -> None:
        """A group's matrices are of no use once the next group's lines are written."""
        shutil.rmtree(self._folder / str(group), ignore_errors=True)

    def _engine(self, case: Case) -> Engine:
        return self._engines[case.method.drafter]
