"""The journal: the last group of a run, whole, beside its results.

Lines are appended one by one and memories are large, so a run could be killed between the two. The
journal holds both for the last group, in one file that is replaced in one step *before* the lines
are appended. Whoever goes on with the run appends what is missing of them and takes the memories,
and is where the run was.

Invariant: a journal is read by the run alone that wrote it. It knows no engine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from graft.atomic import write_whole
from graft.bench.measurement import Measurement

_LINES: Final = "lines"  # no case is called so: their names hold spaces


class Entry(NamedTuple):
    """What a journal holds."""

    lines: list[Measurement]  # of the last group
    memories: dict[str, Tensor]  # what each case had learnt by then, by case and tensor


class Journal:
    """The journal of the run in a folder.

    Args:
        folder: of the run; its results have their first line already, which tells runs apart.
        fingerprint: of the tokenizer.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.path = folder / "journal.safetensors"
        with (folder / "results.jsonl").open("rb") as results:
            first = hashlib.sha256(results.readline()).hexdigest()
        self._facts = {"run": first, "fingerprint": fingerprint}

    def write(self, entry: Entry) -> None:
        """Replace what is there.

        Raises:
            ValueError: where it cannot be written.
        """
        text = json.dumps([line.to_line() for line in entry.lines]).encode()
        tensors = {name: ids.cpu().contiguous() for name, ids in entry.memories.items()}
        tensors[_LINES] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        try:
            write_whole(self.path, save(tensors, metadata=self._facts))
        except OSError as error:
            raise ValueError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def read(self) -> Entry | None:
        """What was written last; None if this run has written nothing.

        Raises:
            ValueError: for a file that is damaged, or memories of another tokenizer.
        """
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                facts = dict(file.metadata() or {})
                if facts.get("run") != self._facts["run"]:
                    return None
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            lines = json.loads(tensors.pop(_LINES).numpy().tobytes())
            entry = Entry([Measurement.from_line(line) for line in lines], tensors)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise ValueError(
                f"{self.path} is damaged ({error}): the run cannot be gone on with; run into "
                "another folder"
            ) from error
        self._check(facts)
        return entry

    def _check(self, facts: Mapping[str, Any]) -> None:
        if facts.get("fingerprint") != self._facts["fingerprint"]:
            raise ValueError(
                f"the memories in {self.path} were learnt with another tokenizer: run into "
                "another folder"
            )
