"""Options that commands share: the decorator, and help that shows each option once."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from graft.cli import app
from graft.cli.shared import ANSWER, DRAW, ENGINE, MODEL, shares
from tests.cli.helpers import Command

GROUPS = (ANSWER, DRAW, MODEL, ENGINE)
WITH_GROUPS = ("generate", "chat", "verify", "trace")


def ran(command: Any, *arguments: str) -> tuple[int, str]:
    """Run a command of its own application: exit code and output."""
    single = typer.Typer()
    single.command()(command)
    result = CliRunner().invoke(single, arguments)
    return result.exit_code, result.output


def test_shared_values_arrive_in_the_context() -> None:
    seen: list[dict[str, Any]] = []

    @shares(MODEL, ENGINE)
    def command(context: typer.Context, mine: int = 3) -> None:
        """What it does."""
        seen.append({**context.params, "given": mine})

    assert ran(command, "--budget", "5", "--no-refill", "-m", "x", "--template", "a.json")[0] == 0
    (values,) = seen
    assert set(values) == {*MODEL, *ENGINE, "mine", "given"}
    assert (values["budget"], values["refill"], values["model"]) == (5, False, "x")
    assert [str(path) for path in values["template"]] == ["a.json"]
    assert values["given"] == values["mine"] == 3
    untouched = {"policy", "preset", "drafter", "head", "beam", "kept", "matrix", "threads"}
    assert {values[name] for name in untouched} == {None}


def test_defaults_are_overridden_for_one_command_alone() -> None:
    seen: list[Any] = []

    @shares(ANSWER, max_new_tokens=7, min_new_tokens=2)
    def first(context: typer.Context) -> None:
        seen.append((context.params["max_new_tokens"], context.params["min_new_tokens"]))

    @shares(ANSWER)
    def second(context: typer.Context) -> None:
        seen.append((context.params["max_new_tokens"], context.params["min_new_tokens"]))

    assert ran(first)[0] == ran(second)[0] == ran(first, "-n", "9")[0] == 0
    assert seen == [(7, 2), (256, 0), (9, 2)]


def test_a_commands_own_option_wins() -> None:
    seen: list[Any] = []

    @shares(ENGINE)
    def command(
        context: typer.Context,
        budget: Annotated[str, typer.Option("--size", help="Its own.")] = "small",
    ) -> None:
        seen.append((budget, context.params["budget"], context.params["beam"]))

    assert ran(command, "--size", "huge", "--beam", "2")[0] == 0
    assert seen == [("huge", "huge", 2)]
    assert ran(command, "--budget", "3")[0] == 2


@pytest.mark.parametrize("unknown", ["bugdet", "temperature", "mine"])
def test_a_default_that_reaches_no_shared_option_is_a_mistake(unknown: str) -> None:
    def command(context: typer.Context, mine: int = 3) -> None:
        """What it does."""

    with pytest.raises(TypeError, match=f"no shared option .* {unknown}"):
        shares(ENGINE, **{unknown: 1})(command)


def test_the_command_keeps_its_name_and_its_help() -> None:
    @shares(ENGINE)
    def command(context: typer.Context) -> None:
        """What it does."""

    assert command.__name__ == "command"
    assert "What it does." in ran(command, "--help")[1]


def test_groups_hold_every_option_once() -> None:
    names = [name for group in GROUPS for name in group]
    assert len(names) == len(set(names))
    flags = [flag for group in GROUPS for flag in _flags([kind for kind, _ in group.values()])]
    assert len(flags) == len(set(flags))


def _flags(kinds: list[Any]) -> list[str]:
    return [flag for kind in kinds for flag in kind.__metadata__[0].param_decls]


def commands() -> dict[str, Any]:
    """All commands by the words that call them."""
    found: dict[str, Any] = {}

    def walk(words: tuple[str, ...], command: Any) -> None:
        found[" ".join(words)] = command
        for name, each in getattr(command, "commands", {}).items():
            walk((*words, name), each)

    walk((), typer.main.get_command(app))
    return found


@pytest.mark.parametrize("words", commands())
def test_help_shows_each_option_once(run: Command, words: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERMINAL_WIDTH", "160")
    shown = run(*words.split(), "--help")
    assert (shown.code, shown.err) == (0, "")
    lines = Counter(re.findall(r"^[^\w\n-]*(--[\w-]+)", shown.out, re.MULTILINE))
    assert lines["--help"] == 1
    assert set(lines.values()) == {1}
    wanted = [p for p in commands()[words].params if p.param_type_name == "option"]
    for parameter in wanted:
        assert parameter.opts[0] in lines
        assert parameter.help


def test_the_same_options_stand_in_all_commands_that_answer() -> None:
    shared = {name for group in GROUPS for name in group}
    for name in WITH_GROUPS:
        assert shared <= {parameter.name for parameter in commands()[name].params}
    assert not shared <= {parameter.name for parameter in commands()["demo"].params}
