"""The process: what it imports, how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from graft import __version__
from tests.cli.helpers import Command

SOURCES = {"target", "draft", "retrieved"}


# An endless answer without a library behind it, so that a process starts at once.
ENDLESS = """
import sys, time
from contextlib import nullcontext
from types import SimpleNamespace
from graft.cli import generate, main

class Stream:
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def __iter__(self): return self
    def __next__(self):
        time.sleep(0.001)
        return SimpleNamespace(text="word ", source=SimpleNamespace(name="TARGET"))

generate.sampling_params = lambda values: None
engine = SimpleNamespace(stream=lambda *_, **__: Stream())
generate.load_engine = lambda values, quiet: nullcontext(engine)
sys.exit(main(["generate", "x"]))
"""


def start_endless() -> subprocess.Popen[bytes]:
    """A process that writes words to a pipe, of which some have arrived."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    assert process.stdout.read(15) == b"word word word "
    return process


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["generate", ""], []])
def test_help_and_early_mistakes_import_no_torch(arguments: list[str]) -> None:
    code = (
        "import sys; from graft.cli import main; main(sys.argv[1:]);"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'transformers', 'tokenizers')))"
    )
    command = [sys.executable, "-c", code, *arguments]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_version_and_help(run: Command) -> None:
    assert run("--version").out == f"graft {__version__}\n"
    assert "generate" in run().out
    assert "generate" in run("-h").out


def test_a_closed_pipe_ends_silently() -> None:
    process = start_endless()
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    assert (process.wait(30), errors) == (141, b"")


def test_ctrl_c_keeps_what_is_there() -> None:
    process = start_endless()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, b"")
    assert (b"word " + out).endswith(b"word \n")
