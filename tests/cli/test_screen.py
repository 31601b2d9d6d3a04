"""What a terminal is shown, and what it is spared."""

from __future__ import annotations

import logging

import pytest

from graft.cli.notes import held_warnings, note
from graft.cli.screen import Screen, Wrapped, visible
from graft.cli.summary import number, time_split
from graft.engine import Engine
from tests.cli.helpers import ESCAPES, Command, assert_mistake, on_terminal, speaking

SOURCES = {"target", "draft", "retrieved"}


def test_a_terminal_is_not_driven(
    run: Command, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "stream", speaking(ESCAPES))
    monkeypatch.setenv("NO_COLOR", "1")
    out = on_terminal(monkeypatch)
    assert run("generate", "x", "-m", model, "-n", "2").code == 0
    assert out.getvalue() == "a␛[31mred␇␈␍␡\\x9b2Jb\n\tc␀\n"


def test_visible_leaves_only_newline_and_tab() -> None:
    shown = visible("".join(map(chr, range(0xA1))))
    assert [c for c in shown if ord(c) < 32 or 0x7F <= ord(c) < 0xA0] == ["\t", "\n"]
    assert visible("Grüße, 世界 [bold]x[/bold] :smile:") == "Grüße, 世界 [bold]x[/bold] :smile:"


def test_error_messages_do_not_drive_the_terminal_either(run: Command) -> None:
    ran = run("generate", "x", "-m", "\x1b[2Jmodel\nname")
    assert_mistake(ran)
    assert "\x1b" not in ran.err


def test_sources_have_colours_and_a_legend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = on_terminal(monkeypatch)
    screen = Screen(out)
    assert screen.coloured
    for source in SOURCES:
        screen.write(source, source)
    text = out.getvalue()
    codes = {s: text.split(s)[0].rsplit("m", 1)[0][-6:] for s in ("draft", "retrieved")}
    assert len(set(codes.values())) == 2
    assert "\x1b" in codes["draft"]


@pytest.mark.parametrize(("term", "no_colour"), [("dumb", ""), ("xterm", "1")])
def test_terminals_without_colours_get_none(
    monkeypatch: pytest.MonkeyPatch, term: str, no_colour: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_colour)
    out = on_terminal(monkeypatch, term)
    screen = Screen(out)
    screen.write("text", "retrieved")
    assert out.getvalue() == "text"
    assert not screen.coloured


def test_text_is_shown_as_it_is_whatever_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    out = on_terminal(monkeypatch)
    text = "[red]no markup[/red]  two  spaces https://x.y 12 " * 5
    screen = Screen(out)
    with screen.answer():
        screen.write(text)
    assert out.getvalue() == text + "\n"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_wrapping_breaks_between_words_only(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    out = on_terminal(monkeypatch)
    text = "def f(x):\n    return x + 1\n\nSome words that are wrapped, 世界世界 too. " + "y" * 50
    page = Wrapped(Screen(out))
    for start in range(0, len(text), size):
        page.write(text[start : start + size], "retrieved")
    page.flush()
    lines = out.getvalue().split("\n")
    assert lines[:6] == [
        "def f(x):",
        "    return x + 1",
        "",
        "Some words that are",
        "wrapped, 世界世界",
        "too.",
    ]
    assert lines[6:] == ["y" * 50]  # a word wider than the screen is left to the terminal
    assert out.getvalue().split() == text.split()


def test_warnings_wait_for_the_end_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with held_warnings():
        logging.getLogger("graft").warning("tau was %.2f", 1.01)
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "warning: tau was 1.01\n"


def test_a_note_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    note("two\nlines\x1b")
    assert capsys.readouterr().err == "two lines␛\n"


def test_numbers_for_people() -> None:
    assert [number(x) for x in (None, 1.234, 12.34, 123.4)] == ["-", "1.23", "12.3", "123"]
    assert time_split({"graft": 0.02, "verify": 0.97, "other": 0.001}) == "verify 97%, graft 2%"
