"""Matrices in files: saved after learning, loaded for a warm start.

A file is safetensors: one int32 tensor `ids` [V, k] and metadata in text (format, version,
fingerprint of the tokenizer, model, time). Nothing in it is ever executed.

Invariant: a matrix that `load_matrix` returns was checked entry by entry, and a path that
`save_matrix` writes to holds the whole old file or the whole new one at any time. It does not
know how matrices are learnt. Whatever a file holds, the output of decoding does not change.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from graft.atomic import write_whole
from graft.matrix import EMPTY, AdjacencyMatrix

__all__ = ["MatrixInfo", "load_matrix", "matrix_exists", "read_info", "save_matrix"]

FORMAT: Final = "graft-matrix"
VERSION: Final = 1
_TENSOR: Final = "ids"
_FIELDS: Final = ("fingerprint", "model", "created")
_DIGEST: Final = "digest"  # of the ids: a flipped bit may still be a token


@dataclass(frozen=True)
class MatrixInfo:
    """What a matrix file holds.

    Attributes:
        path: the file.
        version: of the format.
        token_count: V, rows there are.
        k: successors per row.
        rows: rows that hold a successor.
        entries: successors in all rows.
        file_bytes: size on disk.
        memory_bytes: memory that the loaded matrix takes.
        model: name of the model it was learnt with.
        fingerprint: of that model's tokenizer.
        created: time of saving, ISO 8601 in UTC.
    """

    path: Path
    version: int
    token_count: int
    k: int
    rows: int
    entries: int
    file_bytes: int
    memory_bytes: int
    model: str
    fingerprint: str
    created: str


def save_matrix(path: str | Path, matrix: AdjacencyMatrix, fingerprint: str, *, model: str) -> None:
    """Write a matrix to a file, all or nothing; an older matrix file there is replaced.

    Args:
        fingerprint: of the tokenizer (`graft.fingerprint`).
        model: name of the model, for whoever looks at the file later.

    Raises:
        ValueError: where the path cannot be written or holds another kind of file.
    """
    place = Path(path)
    matrix_exists(place)
    ids = matrix.ids[: matrix.token_count].cpu().contiguous()
    if problem := _problem(ids):
        raise ValueError(f"the matrix is not saved, because {problem}")
    facts = {
        "format": FORMAT,
        "version": str(VERSION),
        "fingerprint": fingerprint,
        "model": model,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        _DIGEST: _digest(ids),
    }
    with _told("write", place):
        write_whole(place, save({_TENSOR: ids}, metadata=facts))


@torch.inference_mode(False)
def load_matrix(path: str | Path, fingerprint: str, *, device: torch.device) -> AdjacencyMatrix:
    """The matrix of a file; its k is the file's.

    Args:
        fingerprint: of the tokenizer of the model at hand; another one's matrix is refused.
        device: where it shall live: beside the model.

    Raises:
        ValueError: for files that are missing, damaged, no matrix or not for this tokenizer.
    """
    ids, facts = _read(Path(path))
    if facts["fingerprint"] != fingerprint:
        raise ValueError(
            f"{path} was learnt with {facts['model']}, whose tokenizer is another one (fingerprint "
            f"{facts['fingerprint']}, here {fingerprint}): use it with {facts['model']}, or build "
            "a matrix with this model (graft matrix build)"
        )
    token_count, k = ids.shape
    matrix = AdjacencyMatrix(token_count, k, device)
    matrix.ids[:token_count] = ids.to(device)
    return matrix


def read_info(path: str | Path) -> MatrixInfo:
    """What a file holds; it is checked as for loading, but for whom it was made.

    Raises:
        ValueError: for files that are missing, damaged or no matrix.
    """
    place = Path(path)
    ids, facts = _read(place)
    held = ids != EMPTY
    token_count, k = ids.shape
    return MatrixInfo(
        path=place,
        version=VERSION,
        token_count=token_count,
        k=k,
        rows=int(held[:, 0].sum()),
        entries=int(held.sum()),
        file_bytes=place.stat().st_size,
        memory_bytes=AdjacencyMatrix(token_count, k, torch.device("cpu")).bytes,
        **{name: facts[name] for name in _FIELDS},
    )


def matrix_exists(path: str | Path) -> bool:
    """Whether there is a matrix file at a path, of whatever version.

    Raises:
        ValueError: where `save_matrix` would refuse the path, so that one knows before the work.
    """
    place = Path(path)
    with _told("write", place):
        if place.is_dir():
            raise ValueError(f"{path} is a folder: give the name of a file")
        folder = _real(place).parent
        if not folder.is_dir():
            raise ValueError(f"the folder {folder} of {path} does not exist: make it first")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"cannot write {path}: no permission to write in {folder}")
        if not place.exists():
            return False
        if not (place.is_file() and _metadata(place).get("format") == FORMAT):
            raise ValueError(
                f"{path} exists and is not a matrix file, so it is not overwritten: give another "
                "name, or remove it first"
            )
    return True


def _read(path: Path) -> tuple[Tensor, dict[str, str]]:
    """The checked ids int32 [V, k] on the CPU, and the metadata."""
    with _told("read", path):
        if path.is_dir():
            raise ValueError(f"{path} is a folder, not a matrix file")
        if not path.exists():
            raise ValueError(f"{path} does not exist: build a matrix first (graft matrix build)")
        if not path.is_file():
            raise ValueError(f"{path} is not a regular file, so it is no matrix file")
        try:
            with safe_open(path, framework="pt") as file:
                facts = _check_facts(path, file.metadata() or {})
                ids = _tensor(path, file)
        except SafetensorError as error:
            raise ValueError(
                f"{path} is damaged or not a matrix file ({error}): build it again, or give the "
                "right file"
            ) from error
    problem = _problem(ids)
    if not problem and facts.get(_DIGEST, digest := _digest(ids)) != digest:
        problem = "its entries are not those that were saved"
    if problem:
        raise ValueError(f"{path} is damaged ({problem}): build it again")
    return ids, facts


def _digest(ids: Tensor) -> str:
    return hashlib.sha256(ids.contiguous().numpy().tobytes()).hexdigest()[:16]


def _check_facts(path: Path, facts: dict[str, str]) -> dict[str, str]:
    if facts.get("format") != FORMAT:
        raise ValueError(
            f"{path} is a safetensors file, but not a matrix file: give one that graft matrix "
            "build has written"
        )
    if (version := facts.get("version")) != str(VERSION):
        raise ValueError(
            f"{path} has format version {version}, but version {VERSION} is supported: build it "
            "again with this version of Graft, or use the one that wrote it"
        )
    if missing := [name for name in _FIELDS if name not in facts]:
        raise ValueError(f"{path} is damaged (no {', '.join(missing)} in it): build it again")
    return facts


def _tensor(path: Path, file: Any) -> Tensor:
    # Shape and dtype are read from the header, before anything is loaded by them.
    names = list(file.keys())
    if names != [_TENSOR]:
        raise ValueError(f"{path} is damaged (tensors {', '.join(names) or 'none'}, not {_TENSOR})")
    view = file.get_slice(_TENSOR)
    dtype, shape = view.get_dtype(), list(view.get_shape())
    if dtype != "I32":
        raise ValueError(f"{path} is damaged (ids of dtype {dtype}, not I32): build it again")
    if len(shape) != 2 or not 1 <= shape[1] <= shape[0]:
        raise ValueError(
            f"{path} is damaged (ids of shape {shape}, not [tokens, successors]): build it again"
        )
    ids: Tensor = file.get_tensor(_TENSOR)
    return ids


def _problem(ids: Tensor) -> str | None:
    """What is wrong with ids int32 [V, k]: as `AdjacencyMatrix.check_integrity`, in words.

    Assertions can be switched off, so a file is not trusted to them.
    """
    low, high = (int(value) for value in ids.aminmax())
    if low < EMPTY or high >= len(ids):
        wrong = low if low < EMPTY else high
        return f"it holds the id {wrong}, but its tokens have ids 0 to {len(ids) - 1}"
    held = ids != EMPTY
    if bool((held[:, 1:] & ~held[:, :-1]).any()):
        return "a row has a gap"
    ordered = ids.sort(dim=1).values
    if bool(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != EMPTY)).any()):
        return "a row holds a token twice"
    return None


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except SafetensorError:
        return {}


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


@contextmanager
def _told(action: str, path: Path) -> Iterator[None]:
    """Say errors of the file system in one line."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot {action} {path}: {error.strerror or error}") from error
