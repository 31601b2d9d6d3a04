"""`graft matrix`: what it writes, says and refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from graft import matrix_file
from graft.matrix import AdjacencyMatrix
from graft.matrix_file import read_info
from tests.cli.helpers import Command, Run, Terminal, assert_mistake, on_terminal
from tests.tiny_files import save_folder

TEXT = "the cat sat on the mat; the rat sat on the cat."
CHAT = "<user>Hello<assistant>Hi"  # by the template of the tiny tokenizer, a token per letter
TOKENS = len(TEXT + CHAT)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two documents: a text and a chat."""
    path = tmp_path / "corpus.jsonl"
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    path.write_text(json.dumps({"text": TEXT}) + "\n" + json.dumps({"messages": chat}) + "\n")
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where the matrix goes: a folder of its own, so that leftovers are seen."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "m.safetensors"


@pytest.fixture
def built(run: Command, model: str, corpus: Path, out: Path) -> Path:
    assert build(run, model, corpus, out).code == 0
    return out


def build(run: Command, model: str, corpus: Path, out: Path, *options: str) -> Run:
    start = ("matrix", "build", "--from", str(corpus), "--out", str(out), "-m", model)
    return run(*start, *options)


def ids_of(path: Path) -> torch.Tensor:
    return load_file(path)["ids"]


# --- build --------------------------------------------------------------------------


def test_a_matrix_is_built_and_summed_up(run: Command, model: str, corpus: Path, out: Path) -> None:
    ran = build(run, model, corpus, out)
    assert (ran.code, ran.out) == (0, "")
    loading, summary = ran.err.splitlines()
    assert loading == f"loading {model}"
    info = read_info(out)
    letters = len(set(TEXT + CHAT))
    assert (info.token_count, info.k, info.rows) == (256, 8, letters)
    size = f"{info.file_bytes / 1e6:.2f} MB in {re.escape(str(out))}"
    expected = rf"{TOKENS} tokens . {letters} of 256 rows written . \d+\.\d s . {size}"
    assert re.fullmatch(expected, summary)
    assert os.listdir(out.parent) == [out.name]


def test_the_same_corpus_gives_the_same_matrix(
    run: Command, model: str, corpus: Path, out: Path
) -> None:
    assert build(run, model, corpus, out, "--quiet", "--k", "3").err == ""
    first = ids_of(out)
    assert first.shape == (256, 3)
    assert build(run, model, corpus, out, "--force", "--k", "3").code == 0
    assert torch.equal(ids_of(out), first)
    other = corpus.with_name("other.txt")
    other.write_text(TEXT[::-1])
    assert build(run, model, other, out, "--force", "--k", "3").code == 0
    assert not torch.equal(ids_of(out), first)


def test_the_limit_ends_it(run: Command, model: str, corpus: Path, out: Path) -> None:
    ran = build(run, model, corpus, out, "--limit-tokens", "5")
    assert ran.err.splitlines()[-1].startswith("5 tokens \u00b7 5 of 256 rows")


def test_onto_learns_on(run: Command, model: str, corpus: Path, out: Path) -> None:
    first, second = corpus.with_name("1.txt"), corpus.with_name("2.txt")
    first.write_text("abcdef")
    second.write_text("defghi")
    assert build(run, model, first, out, "--k", "3").code == 0
    assert build(run, model, second, out, "--onto").code == 0
    whole = out.with_name("whole")
    both = ("--from", str(second), "--k", "3")
    assert build(run, model, first, whole, *both).code == 0
    assert torch.equal(ids_of(out), ids_of(whole))
    assert read_info(out).rows == 9


def test_progress_is_shown_on_a_terminal(
    run: Command, model: str, corpus: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert build(run, model, corpus, out).code == 0
    assert f"{TOKENS} tokens" in screen.getvalue()
    assert "learning" in screen.getvalue()
    assert "rows written" in screen.getvalue().splitlines()[-1]


def test_ctrl_c_saves_nothing(
    run: Command, model: str, corpus: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("graft.target.TransformersTarget.prefill", interrupt)
        assert build(run, model, corpus, out).code == 130
    assert os.listdir(out.parent) == []
    assert build(run, model, corpus, out).code == 0
    before = out.read_bytes()
    monkeypatch.setattr(os, "fsync", interrupt)  # in the middle of writing
    assert build(run, model, corpus, out, "--force").code == 130
    assert out.read_bytes() == before
    assert os.listdir(out.parent) == [out.name]


# --- refusals -----------------------------------------------------------------------


def not_loaded(ran: Run) -> Run:
    """Told before the seconds that a model takes."""
    assert "loading" not in ran.err
    return ran


def test_an_existing_matrix_is_kept(run: Command, model: str, corpus: Path, built: Path) -> None:
    before = built.read_bytes()
    ran = not_loaded(build(run, model, corpus, built))
    assert_mistake(ran, "is a matrix file already", "--onto", "--force")
    assert_mistake(build(run, model, corpus, built, "--onto", "--force"), "give one of them")
    assert built.read_bytes() == before


@pytest.mark.parametrize("option", [(), ("--force",), ("--onto",)])
def test_another_file_is_never_overwritten(
    run: Command, model: str, corpus: Path, out: Path, option: tuple[str, ...]
) -> None:
    out.write_text("my diary")
    ran = not_loaded(build(run, model, corpus, out, *option))
    assert_mistake(ran, str(out), "not a matrix file")
    assert out.read_text() == "my diary"


def test_places_that_cannot_be_written(run: Command, model: str, corpus: Path, out: Path) -> None:
    ran = not_loaded(build(run, model, corpus, out / "no" / "folder"))
    assert_mistake(ran, "does not exist")
    assert_mistake(not_loaded(build(run, model, corpus, out.parent)), "is a folder")
    assert_mistake(not_loaded(build(run, model, corpus, out, "--onto")), "nothing to learn on")


def test_bad_corpora_are_told_before_loading(
    run: Command, model: str, corpus: Path, out: Path
) -> None:
    with corpus.open("a") as stream:
        stream.write("nonsense\n")
    assert_mistake(not_loaded(build(run, model, corpus, out)), f"{corpus}, line 3 is not JSON")
    ran = not_loaded(build(run, model, corpus.with_name("none.txt"), out))
    assert_mistake(ran, "cannot read", "none.txt")
    assert_mistake(run("matrix", "build", "--out", str(out)), "--from")
    assert_mistake(run("matrix", "build", "--from", str(corpus)), "--out")


@pytest.mark.parametrize(
    ("option", "word"),
    [
        (("--k", "0"), "k=0"),
        (("--k", "65"), "k=65"),
        (("--limit-tokens", "0"), "--limit-tokens"),
        (("--model", ""), "--model is empty"),
    ],
)
def test_bad_values(
    run: Command, model: str, corpus: Path, out: Path, option: tuple[str, ...], word: str
) -> None:
    assert_mistake(build(run, model, corpus, out, *option), word)
    assert os.listdir(out.parent) == []


def test_onto_wants_the_same_k_and_tokenizer(
    run: Command, model: str, corpus: Path, built: Path, tmp_path: Path
) -> None:
    before = built.read_bytes()
    ran = build(run, model, corpus, built, "--onto", "--k", "3")
    assert_mistake(ran, "--k 3", "has 8 successors")
    other = tmp_path / "other-model"
    save_folder(other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert_mistake(build(run, str(other), corpus, built, "--onto"), "was learnt with", "tokenizer")
    assert built.read_bytes() == before


def test_chats_need_a_template(run: Command, base_model: str, corpus: Path, out: Path) -> None:
    ran = build(run, base_model, corpus, out)
    assert_mistake(ran, f"{corpus}, line 2", "no chat template")
    assert os.listdir(out.parent) == []


# --- info ---------------------------------------------------------------------------


def test_info_says_what_is_there(run: Command, built: Path) -> None:
    info = read_info(built)
    ran = run("matrix", "info", str(built))
    assert (ran.code, ran.err) == (0, "")
    said = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert said["file"] == str(built)
    assert (said["model"], said["fingerprint"]) == (info.model, info.fingerprint)
    assert (said["tokens"], said["k"]) == ("256", "8")
    assert said["rows"].startswith(f"{info.rows} written (")
    assert said["created"].endswith("+00:00")


def test_info_as_json(run: Command, built: Path) -> None:
    found = json.loads(run("matrix", "info", str(built), "--json").out)
    info = read_info(built)
    assert found["path"] == str(built)
    assert (found["rows"], found["entries"]) == (info.rows, info.entries)
    assert found["file_bytes"] == built.stat().st_size


def test_info_cannot_drive_the_terminal(
    run: Command, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = AdjacencyMatrix(4, 2, torch.device("cpu"))
    matrix_file.save_matrix(built, matrix, "f00d", model="a\x1b[31m\nb")
    screen = on_terminal(monkeypatch)
    assert run("matrix", "info", str(built)).code == 0
    assert "\x1b[31m" not in screen.getvalue()
    assert "model        a\u241b[31m b\n" in screen.getvalue()


def test_info_of_other_files(run: Command, tmp_path: Path) -> None:
    assert_mistake(run("matrix", "info", str(tmp_path / "none")), "does not exist")
    assert_mistake(run("matrix", "info", str(tmp_path)), "is a folder")
    (tmp_path / "text").write_text("my diary")
    assert_mistake(run("matrix", "info", str(tmp_path / "text")), "not a matrix file")


# --- help ---------------------------------------------------------------------------


def test_the_group_shows_its_commands(run: Command) -> None:
    ran = run("matrix")
    assert ran.code == 0
    assert "build" in ran.out
    assert "info" in ran.out


def test_help_and_bad_corpora_import_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from graft.cli import main; main(['matrix', 'build', '--help']);"
        "main(['matrix', 'build', '--from', 'none.txt', '--out', 'm']);"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'transformers', 'tokenizers')))"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0
    assert b"cannot read none.txt" in ran.stderr
