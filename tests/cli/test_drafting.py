"""Drafting by the command line: every drafter and every policy, and nothing changes the answer."""

from __future__ import annotations

import json

import pytest

from graft import loader
from graft.settings import DRAFTING, RETRIEVING
from tests.cli.drafting import KINDS, generate, options
from tests.cli.helpers import Command
from tests.drafter_folders import Folders, write_drafters
from tests.exactness.faults import peeking


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return write_drafters(tmp_path_factory.mktemp("drafters"), max_position_embeddings=256)


@pytest.fixture(autouse=True)
def _untested(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The self-test, the longest part of loading, is off where it is not the subject."""
    if request.function is not test_a_head_that_does_not_fit_is_told_once:
        monkeypatch.setattr(loader, "self_test", lambda engine: None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("draw", [(), ("-t", "0.8", "--seed", "4")])
def test_every_drafter_answers_as_plain_decoding(
    run: Command, folders: Folders, kind: str, draw: tuple[str, ...]
) -> None:
    plain = generate(run, folders, "--policy", "plain", *draw)
    found = generate(run, folders, *options(folders, kind), *draw)
    assert found["token_ids"] == plain["token_ids"]
    assert found["stats"]["proposed_draft"] > 0
    assert plain["stats"]["proposed_draft"] == 0


@pytest.mark.parametrize("policy", [*DRAFTING, "retrieval", "lookup"])
def test_every_policy_answers_as_plain_decoding(
    run: Command, folders: Folders, policy: str
) -> None:
    plain = generate(run, folders, "--policy", "plain")
    kind = "eagle3" if policy == "eagle3" else "model"
    found = generate(run, folders, "--policy", policy, *options(folders, kind))
    assert found["token_ids"] == plain["token_ids"]
    stats = found["stats"]
    assert (stats["kept_draft"] > 0) is (policy in DRAFTING)
    if policy not in RETRIEVING or policy == "rasd":  # which has no use for the matrix
        assert stats["rows_written"] == 0
    else:
        assert stats["rows_written"] > 0


def test_verify_compares_a_drafter(run: Command, folders: Folders) -> None:
    start = ("verify", "-m", folders.target, "-p", "hello", "-n", "12", "--samples", "20", "--json")
    for kind in ("eagle3", "model"):
        ran = run(*start, "--budget", "8", *options(folders, kind))
        found = json.loads(ran.out)
        assert ran.code == 0
        assert (found["policy"], found["budget"], found["same"]) == ("graft+", 8, True)
        assert found["law"]["passed"]
    assert found["tau"] > 1.2  # the draft model is right


def test_verify_tells_a_walk_that_trusts_the_draft(
    run: Command, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    peeking(lambda p, token, children: children.argmax(1))(monkeypatch, None)  # type: ignore
    start = ("verify", "-m", folders.target, "-p", "hello", "-n", "20", "--samples", "0")
    ran = run(*start, "--policy", "dense", *options(folders, "model"))
    assert ran.code == 1
    assert ran.out.splitlines()[-1].startswith("same tokens: NO")


@pytest.mark.parametrize("kind", ["eagle3", "model"])
def test_chat_in_a_pipe(run: Command, folders: Folders, kind: str) -> None:
    lines = b"one\ntwo\n/stats\n/reset\none\n"
    start = ("chat", "-m", folders.target, "-n", "8", "--budget", "8")
    plain = run(*start, "--policy", "plain", stdin=lines)
    found = run(*start, *options(folders, kind), stdin=lines)
    assert found.code == plain.code == 0
    assert found.out == plain.out
    assert "2 answers" in found.err
    assert " 0 of " not in found.err  # the second turn found the first in the caches


def test_a_head_that_does_not_fit_is_told_once(run: Command, folders: Folders) -> None:
    start = ("generate", "x", "-m", folders.target, "-n", "4")
    ran = run(*start, *options(folders, "eagle3"))
    assert ran.code == 0
    (line,) = [line for line in ran.err.splitlines() if line.startswith("warning: ")]
    assert "hardly ever accepted" in line
    assert "warning" not in run(*start, *options(folders, "eagle3"), "-q").err
    assert "warning" not in run(*start, *options(folders, "model")).err


def test_progress_names_what_is_loaded(run: Command, folders: Folders) -> None:
    start = ("generate", "x", "-m", folders.target, "-n", "2")
    assert (
        f"loading the drafter {folders.specforge}\n" in run(*start, "--head", folders.specforge).err
    )
    ran = run(*start, "--draft-model", folders.draft)
    assert f"loading the draft model {folders.draft}\n" in ran.err
