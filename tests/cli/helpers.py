"""Runs of commands, stand-ins for terminals and for what a model says."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from graft.engine import Engine

ESCAPES = "a\x1b[31mred\x07\x08\r\x7f\x9b2Jb\n\tc\x00"


class Run(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


Command = Callable[..., Run]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, term: str = "xterm-256color") -> Terminal:
    """Make stdout a terminal."""
    monkeypatch.setenv("TERM", term)
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    return out


def assert_mistake(run: Run, *words: str) -> None:
    """One clear line on stderr, after the progress at most; nothing on stdout; exit code 2."""
    *before, last = run.err.splitlines()
    assert run.code == 2
    assert run.out == ""
    assert last.startswith("error: ")
    assert all(line.startswith("loading ") for line in before)
    assert "Traceback" not in run.err
    for word in words:
        assert word in last


def speaking(text: str) -> Callable[..., Any]:
    """A stand-in for `Engine.stream` whose first token has this text; the others have none."""
    real = Engine.stream

    def stream(self: Engine, *arguments: Any, **options: Any) -> Any:
        inner = real(self, *arguments, **options)
        words = iter([text])
        inner._tokens = (replace(t, text=next(words, "")) for t in inner._tokens)
        return inner

    return stream
