"""`graft trace`: a page in a file, and what is never overwritten."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from graft.cli import app
from graft.cli import trace as trace_module
from graft.cli.trace import _told
from graft.engine import Engine
from graft.sampling_params import SamplingParams
from tests.cli.helpers import Command, assert_mistake
from tests.test_trace_page import Page


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "page.html"


def test_the_page_is_the_answer(run: Command, model: str, out: Path) -> None:
    end = ("-m", model, "-n", "30", "-t", "0.8", "--seed", "5", "--budget", "6")
    expected = json.loads(run("generate", "hello", *end, "--json").out)
    ran = run("trace", "hello", *end, "--out", str(out))
    assert ran.code == 0
    assert ran.out == f"{out}\n"
    assert "30 tokens" in ran.err
    data = Page(out.read_text(encoding="utf-8")).data()
    committed = [data["first"], *(c for r in data["rounds"] for c in r["committed"])]
    assert [token for token, _, _ in committed] == expected["token_ids"]
    assert "".join(text for _, text, _ in committed) == expected["text"]
    assert data["model"] == "tiny"
    assert data["policy"] == "graft+"
    assert data["budget"] == 6
    assert data["prompt"] == "hello"
    assert data["settings"] == {"temperature": 0.8, "seed": "5"}
    assert len(data["rounds"]) == data["stats"]["rounds"] >= 1


def test_plain_decoding_has_a_page_too(run: Command, model: str, out: Path) -> None:
    end = ("-m", model, "-n", "5", "--policy", "plain", "--quiet")
    ran = run("trace", "hello", *end, "--out", str(out))
    assert (ran.code, ran.err) == (0, "")
    data = Page(out.read_text(encoding="utf-8")).data()
    assert [len(r["tokens"]) for r in data["rounds"]] == [1] * 4


def test_the_default_place_is_trace_html(
    run: Command, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("trace", "hello", "-m", model, "-n", "2").out == "trace.html\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "trace.html"]  # and no temporary file


def test_an_earlier_page_is_replaced_and_another_file_is_not(
    run: Command, model: str, out: Path
) -> None:
    start = ("trace", "hello", "-m", model, "--out", str(out), "-n")
    assert run(*start, "2").code == 0
    before = out.read_text()
    assert run(*start, "6").code == 0
    assert out.read_text() != before
    out.write_text("my notes")
    assert_mistake(run(*start, "2"), "page.html", "no trace page", "--force")
    assert out.read_text() == "my notes"
    assert run(*start, "2", "--force").code == 0
    assert out.read_text().startswith("<!DOCTYPE html>")


def test_a_page_appears_whole_or_not_at_all(
    run: Command, model: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ("trace", "hello", "-m", model, "--out", str(out), "-n", "2")
    assert run(*start).code == 0
    before = out.read_text()

    def fails(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fails)
    ran = run(*start)
    assert ran.code == 2
    assert ran.err.splitlines()[-1] == "error: the disk is full"
    assert out.read_text() == before
    assert list(out.parent.iterdir()) == [out]


def test_a_link_stays_a_link(run: Command, model: str, out: Path, tmp_path: Path) -> None:
    real = tmp_path / "real.html"
    out.symlink_to(real)
    assert run("trace", "hello", "-m", model, "-n", "2", "--out", str(out)).code == 0
    assert out.is_symlink()
    assert real.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("place", "word"), [("no/such/page.html", "no folder"), (".", "is a folder")]
)
def test_a_wrong_place_is_said_before_the_work(
    run: Command, tmp_path: Path, place: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(trace_module, "load_engine", never)
    assert_mistake(run("trace", "hello", "--out", place), word, place)


@pytest.mark.parametrize("prompt", ["", "   "])
def test_a_prompt_is_needed(run: Command, prompt: str) -> None:
    assert_mistake(run("trace", prompt), "empty")


def test_it_has_the_options_of_generate() -> None:
    command = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    ours, theirs = ({p.name: p.default for p in command[n].params} for n in ("trace", "generate"))
    assert set(theirs) - set(ours) == {"json_", "logprobs"}
    assert set(ours) - set(theirs) == {"out", "force"}
    assert {n: d for n, d in ours.items() if n in theirs} == {
        n: d for n, d in theirs.items() if n in ours
    }


def test_what_the_page_tells_of_the_settings() -> None:
    assert _told(SamplingParams(max_new_tokens=3, seed=1), 1) == {"temperature": 0.0}
    warm = SamplingParams(temperature=0.5, top_k=9, stop=("a",), logit_bias={3: 1.0})
    assert _told(warm, 2**62 + 1) == {
        "temperature": 0.5,
        "top_k": 9,
        "stop": "('a',)",
        "logit_bias": "{3: 1.0}",
        "seed": str(2**62 + 1),
    }


def test_what_is_watched_is_the_generation_that_is_shown(
    run: Command, model: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Engine.stream

    def changed(self: Engine, *arguments: Any, **options: Any) -> Any:
        inner = real(self, *arguments, **options)
        inner._tokens = (replace(t, text="</script>") for t in inner._tokens)
        return inner

    monkeypatch.setattr(Engine, "stream", changed)
    assert run("trace", "hello", "-m", model, "-n", "4", "--out", str(out)).code == 0
    page = Page(out.read_text())
    assert len(page.all("script")) == 2
    assert page.data()["first"][1] == "</script>"
