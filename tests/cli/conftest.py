"""What tests of the command line share: a tiny model and a way to run commands."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from graft.cli import main
from tests.cli.helpers import Command, Run, Terminal
from tests.tiny_files import save_folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A chat model with random weights that holds 256 tokens."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_folder(folder, max_position_embeddings=256)
    return str(folder)


@pytest.fixture
def base_model(model: str, tmp_path: Path) -> str:
    """The same without a chat template."""
    for file in Path(model).iterdir():
        if "template" not in file.name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return str(tmp_path)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process; `stdin` is bytes, or None for a terminal."""
    monkeypatch.delenv("NO_COLOR", raising=False)

    def command(*arguments: str, stdin: bytes | None = b"") -> Run:
        given = Terminal() if stdin is None else io.TextIOWrapper(io.BytesIO(stdin))
        monkeypatch.setattr(sys, "stdin", given)
        capsys.readouterr()
        code = main(arguments)
        return Run(code, *capsys.readouterr())

    return command
