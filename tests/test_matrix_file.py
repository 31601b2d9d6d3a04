"""Matrix files: what is saved comes back, and nothing else is let in."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from graft import matrix_file
from graft.matrix import EMPTY, AdjacencyMatrix, Best
from graft.matrix_file import load_matrix, matrix_exists, read_info, save_matrix

CPU = torch.device("cpu")
TOKENS, K = 6, 3
FACTS = {
    "format": "graft-matrix",
    "version": "1",
    "fingerprint": "f00d",
    "model": "tiny",
    "created": "2026-01-02T03:04:05+00:00",
}


def learnt(text: list[int], token_count: int = TOKENS, k: int = K) -> AdjacencyMatrix:
    matrix = AdjacencyMatrix(token_count, k, CPU)
    matrix.learn_text(torch.tensor(text))
    return matrix


def nothing() -> Tensor:
    """The ids of an empty matrix."""
    return torch.full((TOKENS, K), EMPTY, dtype=torch.int32)


def rows_of(matrix: AdjacencyMatrix) -> Tensor:
    return matrix.ids[: matrix.token_count]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A good file."""
    save_matrix(tmp_path / "m.safetensors", learnt([0, 1, 2, 0, 3, 5]), "f00d", model="tiny")
    return tmp_path / "m.safetensors"


def write(path: Path, ids: Tensor, **facts: str | None) -> Path:
    """A file as somebody else could have written it."""
    stated = {name: value for name, value in {**FACTS, **facts}.items() if value is not None}
    save_file({"ids": ids}, path, metadata=stated)
    return path


def load(path: Path) -> AdjacencyMatrix:
    return load_matrix(path, "f00d", device=CPU)


def refused(path: Path, *words: str) -> None:
    """Loading and reading say the same, in one line that names the file."""
    for read in (load, read_info):
        with pytest.raises(ValueError, match=r".") as caught:
            read(path)
        text = str(caught.value)
        assert "\n" not in text
        assert all(word in text for word in (str(path), *words)), text


# --- round trips --------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, TOKENS - 1), max_size=40), st.integers(1, TOKENS))
def test_what_is_saved_comes_back(
    tmp_path_factory: pytest.TempPathFactory, text: list[int], k: int
) -> None:
    path = tmp_path_factory.mktemp("round") / "m"
    matrix = learnt(text, k=k)
    save_matrix(path, matrix, "f00d", model="tiny")
    back = load(path)
    back.check_integrity()
    assert (back.token_count, back.k) == (TOKENS, k)
    assert rows_of(back).tolist() == rows_of(matrix).tolist()


def test_a_loaded_matrix_learns_on(file: Path) -> None:
    """In and out of inference mode, wherever it was loaded."""
    with torch.inference_mode():
        matrix = load(file)
    row, best = torch.tensor([4]), Best(torch.tensor([[1, 2, 3]]), torch.zeros(1, 3))
    assert int(matrix.write(row, best, torch.tensor([0]))) == 1
    assert matrix.lookup(torch.tensor([4]), torch.tensor([2])).tolist() == [3]


def test_the_info_says_what_is_there(file: Path) -> None:
    info = read_info(str(file))
    matrix = learnt([0, 1, 2, 0, 3, 5])
    assert info.path == file
    assert {name: t.dtype for name, t in load_file(file).items()} == {"ids": torch.int32}
    assert (info.version, info.token_count, info.k) == (1, TOKENS, K)
    assert (info.rows, info.entries) == (4, 5)  # 0: 3 and 1; 1: 2; 2: 0; 3: 5
    assert info.file_bytes == file.stat().st_size
    assert info.memory_bytes == matrix.bytes
    assert (info.model, info.fingerprint) == ("tiny", "f00d")
    age = datetime.now(UTC) - datetime.fromisoformat(info.created)
    assert -2 < age.total_seconds() < 600


def test_files_of_this_format_stay_readable(tmp_path: Path) -> None:
    """The layout, spelt out: a change of it needs another version number."""
    ids = torch.tensor([[1, 0], [EMPTY, EMPTY]], dtype=torch.int32)
    back = load(write(tmp_path / "m", ids))
    assert rows_of(back).tolist() == ids.tolist()


# --- refusals -----------------------------------------------------------------------


def test_another_tokenizer_is_refused(file: Path) -> None:
    with pytest.raises(
        ValueError, match=r"was learnt with tiny, .* f00d, here beef.*build"
    ) as error:
        load_matrix(file, "beef", device=CPU)
    assert "\n" not in str(error.value)


def test_paths_that_are_no_file_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none", "does not exist", "build")
    refused(tmp_path / "no" / "folder", "does not exist")
    refused(tmp_path, "is a folder")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")


def test_no_permission_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deny = Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr(matrix_file, "safe_open", deny)
    refused(file, "cannot read", "Permission denied")


@pytest.mark.parametrize("keep", [0, 4, 8, 50, 200, -40, -1])
def test_truncated_files_are_refused(file: Path, keep: int) -> None:
    file.write_bytes(file.read_bytes()[:keep])
    refused(file, "damaged or not a matrix file")


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("to be or not to be, that is the question\n" * 50)
    refused(text, "damaged or not a matrix file")
    torch.save({"ids": torch.zeros(2, 2, dtype=torch.int32)}, tmp_path / "pickle")
    refused(tmp_path / "pickle", "damaged or not a matrix file")
    weights = tmp_path / "weights"
    save_file({"ids": nothing()}, weights)
    refused(weights, "not a matrix file")
    save_file({"w": torch.zeros(2)}, weights, metadata={"format": "pt"})
    refused(weights, "not a matrix file")


@pytest.mark.parametrize("version", ["0", "2", "1.0", "", None])
def test_other_versions_are_refused(tmp_path: Path, version: str | None) -> None:
    refused(write(tmp_path / "m", nothing(), version=version), "version", "1 is supported")


@pytest.mark.parametrize("field", ["fingerprint", "model", "created"])
def test_missing_facts_are_refused(tmp_path: Path, field: str) -> None:
    missing: dict[str, str | None] = {field: None}
    refused(write(tmp_path / "m", nothing(), **missing), f"no {field}")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.float32])
def test_other_dtypes_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    refused(write(tmp_path / "m", torch.zeros(TOKENS, K, dtype=dtype)), "dtype", "I32")


@pytest.mark.parametrize("shape", [(6,), (2, 3, 1), (0, 0), (6, 0), (2, 3), ()])
def test_other_shapes_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    ids = torch.zeros(shape, dtype=torch.int32)
    refused(write(tmp_path / "m", ids), "shape", str(list(shape)))


def test_other_tensors_are_refused(tmp_path: Path) -> None:
    save_file({"ids": nothing(), "more": torch.zeros(1)}, tmp_path / "m", metadata=FACTS)
    refused(tmp_path / "m", "more")
    save_file({"other": nothing()}, tmp_path / "m", metadata=FACTS)
    refused(tmp_path / "m", "other")


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ([TOKENS, 0, 1], f"the id {TOKENS}"),
        ([0, 1, -2], "the id -2"),
        ([1, EMPTY, 2], "gap"),
        ([EMPTY, 0, EMPTY], "gap"),
        ([4, 2, 4], "twice"),
        ([3, 3, EMPTY], "twice"),
    ],
)
@pytest.mark.parametrize("at", [0, TOKENS - 1])
def test_bad_rows_are_refused(tmp_path: Path, row: list[int], word: str, at: int) -> None:
    ids = nothing()
    ids[at] = torch.tensor(row)
    refused(write(tmp_path / "m", ids), "damaged", word)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-2, TOKENS), min_size=K, max_size=K))
def test_rows_are_judged_as_the_matrix_judges_them(row: list[int]) -> None:
    matrix = learnt([])
    matrix.ids[2] = torch.tensor(row)
    try:
        matrix.check_integrity()
        sound = True
    except AssertionError:
        sound = False
    assert (matrix_file._problem(rows_of(matrix)) is None) == sound


# --- writing ------------------------------------------------------------------------


def test_an_older_matrix_is_replaced(file: Path) -> None:
    save_matrix(file, learnt([5, 4]), "beef", model="other")
    assert read_info(file).model == "other"
    assert os.listdir(file.parent) == [file.name]


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(file)
    save_matrix(tmp_path / "link", learnt([5, 4]), "f00d", model="other")
    assert (tmp_path / "link").is_symlink()
    assert read_info(file).model == "other"


@pytest.mark.parametrize("data", [b"", b"dear diary\n" * 9, b"\x02" + bytes(7) + b"{}"])
def test_other_files_are_not_overwritten(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "mine").write_bytes(data)
    with pytest.raises(ValueError, match="not a matrix file, so it is not overwritten"):
        save_matrix(tmp_path / "mine", learnt([0, 1]), "f00d", model="tiny")
    assert (tmp_path / "mine").read_bytes() == data
    assert os.listdir(tmp_path) == ["mine"]


def test_places_that_cannot_be_written_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(path: Path) -> None:
        save_matrix(path, learnt([0, 1]), "f00d", model="tiny")

    with pytest.raises(ValueError, match=r"the folder .*/no of .*/no/m does not exist"):
        save(tmp_path / "no" / "m")
    with pytest.raises(ValueError, match="is a folder"):
        save(tmp_path)
    with pytest.raises(ValueError, match="not a matrix file"):
        save(Path("/dev/null"))
    with pytest.raises(ValueError, match=r"cannot write .*too long"):
        save(tmp_path / ("m" * 300))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match="no permission to write in"):
        save(tmp_path / "m")
    assert os.listdir(tmp_path) == []


def test_whether_there_is_a_matrix(file: Path, tmp_path: Path) -> None:
    assert matrix_exists(file)
    assert not matrix_exists(tmp_path / "new")
    # One of another version may be replaced, though not read.
    assert matrix_exists(write(tmp_path / "old", torch.zeros(1), version="0"))


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failing_write_leaves_the_old_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    before = file.read_bytes()
    monkeypatch.setattr(os, step, Mock(side_effect=error))
    with pytest.raises((ValueError, KeyboardInterrupt)) as caught:
        save_matrix(file, learnt([5, 4]), "f00d", model="other")
    if isinstance(error, OSError):
        assert str(caught.value) == f"cannot write {file}: No space left on device"
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_a_matrix_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    matrix = learnt([0, 1])
    matrix.ids[3, 1] = 2
    with pytest.raises(ValueError, match=r"not saved, because .* gap"):
        save_matrix(tmp_path / "m", matrix, "f00d", model="tiny")
    assert os.listdir(tmp_path) == []


def test_an_entry_that_became_another_token_is_noticed(tmp_path: Path) -> None:
    matrix = AdjacencyMatrix(9, 2, torch.device("cpu"))
    matrix.learn_text(torch.tensor([1, 2, 3, 1, 4]))
    path = tmp_path / "m.safetensors"
    save_matrix(path, matrix, "f", model="m")
    load_matrix(path, "f", device=torch.device("cpu"))
    data = bytearray(path.read_bytes())
    place = data.rindex((4).to_bytes(4, "little"))
    data[place] = 5  # a legal token, but not the one that was saved
    path.write_bytes(data)
    with pytest.raises(ValueError, match="not those that were saved"):
        load_matrix(path, "f", device=torch.device("cpu"))
