"""Mistakes of users: one line on stderr, exit code 2, no traceback."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from graft.engine import Engine
from tests.cli.helpers import Command, assert_mistake

SOURCES = {"target", "draft", "retrieved"}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["generate", ""], "empty"),
        (["generate", " \n "], "empty"),
        (["generate"], "stdin has no text"),
        (["generate", "x", "--file", "y"], "give one of them"),
        (["generate", "--file", "no/such/file"], "cannot read no/such/file"),
        (["generate", "--file", "."], "cannot read ."),
        (["generate", "x", "--nonsense"], "--nonsense"),
        (["generate", "x", "--max-new-tokens", "many"], "--max-new-tokens"),
        (["generate", "x", "--policy", "magic"], "magic"),
        (["generate", "x", "--max-new-tokens", "0"], "max_new_tokens=0"),
        (["generate", "x", "--top-p", "1.5"], "top_p=1.5"),
        (["generate", "x", "--temperature", "-1"], "temperature=-1"),
        (["generate", "x", "--temperature", "nan"], "temperature=nan"),
        (["generate", "x", "--stop", ""], "stop"),
        (["generate", "x", "--logprobs", "3"], "--json"),
        (["generate", "x", "--logprobs", "99", "--json"], "logprobs=99"),
        (["generate", "x", "--logit-bias", "3"], "ID=VALUE"),
        (["generate", "x", "--logit-bias", "a=1"], "ID=VALUE"),
        (["generate", "x", "--budget", "100000"], "budget=100000"),
        (["generate", "x", "--threads", "0"], "threads"),
        (["generate", "x", "--device", "abacus"], "abacus"),
        (["generate", "x", "--model", ""], "--model is empty"),
        (["generate", "x", "--model", "no-such-model"], "no-such-model"),
        (["demo", "--prompt", " "], "empty"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_mistake_is_one_line(run: Command, arguments: list[str], word: str) -> None:
    assert_mistake(run(*arguments), word)


def test_no_prompt_at_a_terminal_says_how_to_give_one(run: Command) -> None:
    assert_mistake(run("generate", stdin=None), "no prompt")


def test_invalid_utf8_is_named_by_place(run: Command, tmp_path: Path) -> None:
    (tmp_path / "latin1").write_bytes(b"gr\xfc\xdfe")
    ran = run("generate", "--file", str(tmp_path / "latin1"))
    assert_mistake(ran, "latin1 is not UTF-8", "0xfc at offset 2")
    assert_mistake(run("generate", stdin=b"abc\xff"), "stdin is not UTF-8", "0xff at offset 3")


def test_a_broken_model_folder_is_refused(run: Command, model: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    assert_mistake(run("generate", "x", "-m", str(broken)), "broken")
    for name in os.listdir(model):
        (broken / name).write_bytes((Path(model) / name).read_bytes()[:100])
    assert_mistake(run("generate", "x", "-m", str(broken)), "broken")


def test_what_only_the_model_shows_to_be_wrong(run: Command, model: str) -> None:
    start = ("generate", "-m", model)
    assert_mistake(run(*start, stdin=b"x" * 300), "306 tokens", "256 tokens")
    assert_mistake(run(*start, "x", "--banned-token", "999999"), "banned_tokens")


def test_running_out_of_memory_is_no_bug(
    run: Command, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Engine, "stream", fail)
    ran = run("generate", "x", "-m", model)
    assert ran.code == 2
    assert "error: out of memory (no room)" in ran.err


def test_a_bug_is_not_hidden(run: Command, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(Engine, "stream", fail)
    with pytest.raises(KeyError, match="bug"):
        run("generate", "x", "-m", model)
