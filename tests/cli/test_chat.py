"""`graft chat`: turns from a pipe and from a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from graft.engine import Engine
from tests.cli.helpers import Command, assert_mistake

SOURCES = {"target", "draft", "retrieved"}


def test_chat_takes_each_line_as_a_turn(
    run: Command, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    real = Engine.stream

    def spy(self: Engine, messages: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(messages)
        assert options["reuse_prefix"]
        return real(self, messages, *arguments, **options)

    monkeypatch.setattr(Engine, "stream", spy)
    ran = run(
        "chat", "-m", model, "-n", "6", "--system", "Be brief.", stdin=b"one\n\ntwo\n/stats\n"
    )
    assert ran.code == 0
    roles = [[m["role"] for m in messages] for messages in asked]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"]]
    first, second = asked[1][2]["content"], asked[1][3]["content"]
    assert second == "two"
    assert ran.out.startswith(first + "\n")
    assert "2 answers · 12 tokens" in ran.err
    assert " 0 of " not in ran.err  # the second turn found the first in the cache


def test_chat_answers_as_generate_does(run: Command, model: str) -> None:
    generated = run("generate", "one", "-m", model, "-n", "9").out
    assert run("chat", "-m", model, "-n", "9", stdin=b"one").out == generated


def test_chat_commands(run: Command, model: str) -> None:
    lines = b"/help\n/nonsense\n/stats\none\n/reset\none\n/quit\nnever\n"
    ran = run("chat", "-m", model, "-n", "4", stdin=lines)
    assert ran.code == 0
    assert "/reset   start" in ran.err
    assert "there is no command /nonsense" in ran.err
    assert "no finished answers yet" in ran.err
    answer = run("generate", "one", "-m", model, "-n", "4").out
    assert ran.out == answer * 2  # the second conversation knows nothing of the first


def test_chat_that_outgrows_the_context_ends_clearly(run: Command, model: str) -> None:
    ran = run("chat", "-m", model, "-n", "4", stdin=b"one\n" + b"x" * 300)
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith("error: this turn cannot be answered")
    assert "/reset" in ran.err.splitlines()[-1]


def test_chat_at_a_terminal_goes_on_after_a_turn_that_does_not_fit(
    run: Command, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["one", "x" * 300, "/stats"])
    asked: list[str] = []

    def typing(_: str = "") -> str:
        asked.append("")
        if (line := next(typed, None)) is None:
            raise EOFError
        return line

    monkeypatch.setattr("builtins.input", typing)
    ran = run("chat", "-m", model, "-n", "4", stdin=None)
    assert ran.code == 0
    assert "/reset starts a new conversation" in ran.err
    assert "1 answer ·" in ran.err
    assert len(asked) == 4


def test_chat_keeps_an_answer_that_was_stopped(
    run: Command, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    real = Engine.stream

    def stopping(self: Engine, messages: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(messages)
        inner = real(self, messages, *arguments, **options)
        tokens = inner._tokens

        def some() -> Iterator[Any]:
            yield replace(next(tokens), text="partial")
            raise KeyboardInterrupt

        if len(asked) == 1:
            inner._tokens = some()
        return inner

    monkeypatch.setattr(Engine, "stream", stopping)
    typed = iter(["one", "two"])
    monkeypatch.setattr("builtins.input", lambda _="": next(typed, None) or "/quit")
    ran = run("chat", "-m", model, "-n", "4", stdin=None)
    assert ran.code == 0
    assert "(stopped)" in ran.err
    assert asked[1][1] == {"role": "assistant", "content": "partial"}


def test_chat_needs_a_chat_template(run: Command, base_model: str) -> None:
    assert_mistake(run("chat", "-m", base_model, stdin=b"one"), "no chat template")
