"""Mistakes in options of drafting are one line on stderr, before the work where possible."""

from __future__ import annotations

import pytest

from graft import loader
from tests.cli.helpers import Command, assert_mistake
from tests.drafter_folders import Folders, write_drafters


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return write_drafters(tmp_path_factory.mktemp("drafters"), max_position_embeddings=256)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--checkpoints 0,x", "--checkpoints '0,x' is not whole numbers with commas"),
        ("--checkpoints 0.5", "--checkpoints '0.5' is not whole numbers"),
        ("--checkpoints 0;1", "--checkpoints '0;1'"),
        ("--kept ,", "--kept ','"),
        ("--thresholds 0.3,,0.2", "--thresholds '0.3,,0.2' is not numbers"),
        ("--thresholds 0.3", "thresholds=(0.3,)"),
        ("--thresholds nan,nan,nan", "thresholds=(nan, nan, nan)"),
        ("--checkpoints 0,0", "checkpoints=(0, 0)"),
        ("--kept 99,99,99", "kept=(99, 99, 99)"),
        ("--preset paper-61", "preset='paper-61'"),
        ("--policy fastest", "fastest"),
        ("--drafter medusa", "medusa"),
        ("--dedup merge", "merge"),
        ("--beam 0", "beam=0"),
        ("--beam x", "--beam"),
        ("--depth 99", "depth=99"),
        ("--k 0", "k=0"),
        ("--head-window x", "--head-window"),
        ("--matrix-scope all", "all"),
        ("--matrix-scope file", "needs a file"),
        ("--template no/such.json", "no/such.json cannot be read"),
    ],
)
@pytest.mark.parametrize("command", ["generate x", "chat", "verify", "trace x"])
def test_a_mistake_is_one_line_before_the_model_is_read(
    run: Command, monkeypatch: pytest.MonkeyPatch, command: str, arguments: str, words: str
) -> None:
    monkeypatch.setattr(loader, "load_model", lambda *_, **__: pytest.fail("it is read"))
    assert_mistake(run(*command.split(), *arguments.split()), words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--head {specforge} --draft-model {draft}", "both given"),
        ("--head {specforge} --drafter none", "drafter='none'"),
        ("--drafter eagle3", "needs head"),
        ("--head {dflash} --drafter eagle3", "is a DFlash drafter"),
        ("--head no/such/head", "no head 'no/such/head'"),
        ("--head {wide}", "features of width 96"),
        ("--draft-model {stranger}", "another tokenizer"),
        ("--head-window 4", "none is loaded"),
        ("--policy graft", "no drafter is loaded"),
        ("--policy eagle3 --draft-model {draft}", "needs an EAGLE-3 head"),
        ("--kept 9,9 --checkpoints 0,1 --budget 8 --head {specforge}", "kept=(9, 9)"),
    ],
)
def test_a_drafter_that_does_not_fit_is_one_line(
    run: Command, folders: Folders, arguments: str, words: str
) -> None:
    given = arguments.format(**folders._asdict()).split()
    assert_mistake(run("generate", "x", "-m", folders.target, *given), words)
