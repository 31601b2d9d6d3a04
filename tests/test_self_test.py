"""The self-test at load: it warns of a drafter that does not fit, and leaves nothing behind."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import graft
from graft.engine import Engine
from graft.matrix import EMPTY
from graft.self_test import LEAST_TAU, TOKENS, self_test
from tests.drafter_folders import Folders, write_drafters
from tests.tiny_heads import LAYERS

OPTIONS: dict[str, Any] = {"device": "cpu", "budget": 4}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return write_drafters(tmp_path_factory.mktemp("drafters"))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", ["specforge", "dflash"])
def test_a_head_that_is_never_right_is_told(
    folders: Folders, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    engine = graft.load(folders.target, **OPTIONS, head=getattr(folders, name))
    (text,) = warnings(caplog)
    for words in ("hardly ever accepted", "another fine-tune", "feature layers", "chat template"):
        assert words in text
    assert "The output is not affected" in text
    tau = self_test(engine)
    assert tau is not None
    assert 1 <= tau < LEAST_TAU


def test_a_good_draft_model_passes_in_silence(
    folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    engine = graft.load(folders.target, **OPTIONS, draft_model=folders.draft)
    assert warnings(caplog) == []
    tau = self_test(engine)
    assert tau is not None
    assert tau > 2


def test_nothing_is_tested_without_a_drafter(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "stream", lambda *_, **__: pytest.fail("it decodes"))
    graft.load(folders.target, **OPTIONS)


def traces(engine: Engine) -> dict[str, bool]:
    """What a generation leaves in an engine."""
    return {
        "matrix": bool((engine.matrix.ids != EMPTY).any()),
        "cache": bool(engine._cached or engine._drafted),
        "alarm": bool(engine._alarm._window),
    }


def test_it_leaves_no_trace(folders: Folders) -> None:
    engine = graft.load(folders.target, **OPTIONS, head=folders.specforge)
    assert traces(engine) == {"matrix": False, "cache": False, "alarm": False}
    stream = engine.stream("Count", max_new_tokens=9, ignore_eos=True, reuse_prefix=True)
    assert len(list(stream)) == 9
    assert stream.results[0].usage.cached_tokens == 0
    assert traces(engine) == {"matrix": True, "cache": True, "alarm": True}  # what would be seen


def test_it_spoils_no_alarm(folders: Folders, caplog: pytest.LogCaptureFixture) -> None:
    engine = graft.load(folders.target, **OPTIONS, head=folders.specforge)
    for _ in range(8):  # more rounds than the alarm's window
        self_test(engine)
    assert [text for text in warnings(caplog) if "over the last" in text] == []


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 60, "kept": (8, 24, 40)},
        {"budget": 60, "checkpoints": (0, 7), "depth": 8, "thresholds": (0.5, 0.5)},
        {"budget": None},
        {"budget": None, "preset": "paper-60"},
        {"policy": "plain"},
        {"matrix_scope": "request"},
    ],
)
def test_settings_for_other_budgets_do_not_disturb_it(
    folders: Folders, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    graft.load(folders.target, **{**OPTIONS, **options}, head=folders.specforge)
    assert "hardly ever accepted" in caplog.text


def test_templates_per_stage_do_not_disturb_it(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"paths": [[0]]}')
    files = [tmp_path / "t.json"] * 3
    options: dict[str, Any] = {"checkpoints": (0, 1), "templates": files}
    assert graft.load(folders.target, **OPTIONS, head=folders.specforge, **options).drafter


def test_a_context_too_short_for_it_is_no_reason_to_refuse(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = write_drafters(tmp_path, num_hidden_layers=LAYERS, max_position_embeddings=TOKENS)
    engine = graft.load(folders.target, **OPTIONS, head=folders.specforge)
    assert warnings(caplog) == []
    assert self_test(engine) is None
    assert len(engine.generate([5, 6], max_new_tokens=5, ignore_eos=True).token_ids) == 5


def test_a_chat_template_of_its_own_kind_is_no_reason_to_refuse(folders: Folders) -> None:
    engine = graft.load(folders.target, **OPTIONS, head=folders.specforge)
    engine.tokenizer.chat_template = "{{ raise_exception('a system message is needed') }}"
    assert self_test(engine) is None
