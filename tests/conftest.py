"""Shared set-up of all tests."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

# Idle worker threads sleep instead of spinning, so that tests share cores with other work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

from graft import smollm2
from tests.tiny_files import save_folder, write_tiny_gguf

# Tiny models gain nothing from more threads.
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    save_folder(folder)
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder that a test may spoil."""
    save_folder(tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny file of the default model's kind."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_gguf(path)
    return path


@pytest.fixture
def pinned(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny file in the place of the real one, offered by the environment variable."""
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    monkeypatch.setattr(smollm2, "GGUF_SHA256", digest)
    monkeypatch.setattr(smollm2, "_packaged_gguf", lambda: None)
    monkeypatch.setenv(smollm2.SOURCE_ENV, str(gguf))
    return gguf
