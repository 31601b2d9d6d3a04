"""`graft verify`: the verdict, its exit code, and where prompts come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graft import choice, verify
from graft.cli.prompt_list import read_prompts
from graft.cli.verify import PROMPTS
from tests.cli.helpers import Command, assert_mistake
from tests.exactness.faults import peeking

SHORT = ("-n", "8", "--samples", "20")


def break_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk takes children it should not take."""
    peeking(lambda p, token, children: children.argmax(1))(monkeypatch, None)  # type: ignore
    assert choice.walk is not verify.walk


def test_the_verdict_on_the_built_in_prompts(run: Command, model: str) -> None:
    ran = run("verify", "-m", model, "--budget", "4", "-n", "8", "--samples", "0")
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert (
        lines[-1]
        == f"same tokens: yes ({8 * len(PROMPTS)} compared; 0 excused by rounding, 1 allowed)"
    )
    assert [line.split()[0] for line in lines[1:-1]] == ["8"] * len(PROMPTS) + ["32"]
    assert ran.err.count("8 tokens, same") == len(PROMPTS)


def test_sampling_has_a_law_test(run: Command, model: str) -> None:
    start = ("verify", "-m", model, "-p", "hello", "-t", "0.8", "--top-k", "3")
    ran = run(*start, *SHORT)
    assert ran.code == 0
    assert ran.out.splitlines()[-1].startswith("law test: p = ")
    assert "20 answers" in ran.out
    assert "law test" not in run(*start, "-n", "8", "--samples", "0").out


def test_greedy_settings_have_their_law_tested_at_temperature_1(run: Command, model: str) -> None:
    last = run("verify", "-m", model, "-p", "hello", *SHORT).out.splitlines()[-1]
    assert last.startswith("law test: p = ")
    assert "at temperature 1" in last


def test_a_law_test_of_one_answer_says_so(run: Command, model: str) -> None:
    ran = run("verify", "-m", model, "-p", "hello", "-t", "0.01", *SHORT)
    assert ran.code == 0
    assert "it says nothing: one group" in ran.out.splitlines()[-1]


def test_json_holds_everything(run: Command, model: str) -> None:
    arguments = ("-p", "a", "-p", "b", "-t", "1", "--budget", "4", "--json", "-q")
    ran = run("verify", "-m", model, *arguments, *SHORT)
    found = json.loads(ran.out)
    assert ran.err == ""
    assert found["same"]
    assert (found["tokens"], found["excuses"], found["mismatches"]) == (16, 0, 0)
    assert (found["model"], found["policy"], found["budget"]) == ("tiny", "graft+", 4)
    assert [p["tokens"] for p in found["prompts"]] == [8, 8]
    assert found["law"]["samples"] == 20
    assert found["law"]["passed"]


def test_a_fault_is_told_and_ends_with_1(
    run: Command, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_walk(monkeypatch)
    start = ("verify", "-m", model, "-p", "hello hello hello", "-n", "30", "--samples", "0")
    ran = run(*start)
    assert ran.code == 1
    assert ran.out.splitlines()[-1].startswith("same tokens: NO (1 wrong in ")
    assert "no near-tie, margin" in ran.out
    assert "DIFFERENT" in ran.err
    found = json.loads(run(*start, "--json").out)
    assert found["mismatches"] == 1
    assert found["prompts"][0]["differences"][0]["router_margin"] is None  # JSON has no infinity
    assert not found["same"]


def test_a_wrong_law_alone_ends_with_1(
    run: Command, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graft import law

    monkeypatch.setattr(law, "chi_square", lambda *_: (99.0, 1e-9))
    ran = run("verify", "-m", model, "-p", "hello", "-t", "1", "--top-k", "2", *SHORT)
    assert ran.code == 1
    assert "same tokens: yes" in ran.out
    assert "law test: p = 1e-09, FAILED" in ran.out


def test_a_file_of_prompts(run: Command, model: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    lines = [
        "plain text",
        "",
        '{"prompt": "an object"}',
        '{"turns": ["first", "second"], "id": 3}',
        '{"turns": 1}',
    ]
    file.write_text("\n".join(lines))
    assert read_prompts(file, 3) == ["plain text", "an object", "first"]
    ran = run("verify", "-m", model, "--prompts", str(file), "--limit", "2", *SHORT)
    assert ran.code == 0
    assert "an object" in ran.out
    assert "first" not in ran.out
    assert_mistake(run("verify", "-m", model, "--prompts", str(file)), "line 5 holds no prompt")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["-p", " "], "empty"),
        (["-p", "x", "--prompts", "y"], "give one of them"),
        (["--prompts", "no/such/file"], "cannot read no/such/file"),
        (["--policy", "plain"], "another policy"),
        (["--limit", "0"], "--limit"),
        (["--temperature", "-1"], "temperature=-1"),
        (["-t", "1", "--samples", "3", "-n", "1", "-p", "x"], "samples=3"),
    ],
)
def test_mistakes_are_one_line(run: Command, model: str, arguments: list[str], word: str) -> None:
    ran = run("verify", "-q", "-m", model, *arguments)
    assert_mistake(ran, word)


@pytest.mark.parametrize("text", ["", "\n \n", '{"prompt": 3}', '{"turns": []}', "{no json}"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prompts"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"holds no prompt|is not JSON"):
        read_prompts(file)
