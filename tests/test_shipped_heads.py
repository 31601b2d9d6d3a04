"""Which head is loaded where none, or none at all, is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graft import shipped_heads
from graft.shipped_heads import choose_head, shipped_head

SHIPPED = Path("shipped")


@pytest.fixture(autouse=True)
def _one_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shipped_heads, "shipped_head", lambda model: SHIPPED if model == "ours" else None
    )


def chosen(model: Any = "ours", head: Any = None, **changes: Any) -> Any:
    settings = {"drafter": None, "draft_model": None, "drafts": True, **changes}
    return choose_head(model, head, **settings)


def test_the_shipped_one_where_none_is_asked_for() -> None:
    assert chosen() == SHIPPED
    assert chosen(drafter="eagle3") == SHIPPED
    assert chosen("other") is None


def test_the_one_that_is_asked_for() -> None:
    assert chosen(head="mine") == "mine"
    assert chosen("other", "mine") == "mine"
    assert chosen(head="mine", drafts=False) == "mine"


@pytest.mark.parametrize(
    "change",
    [
        {"head": "none"},
        {"head": Path("none")},
        {"drafter": "none"},
        {"drafter": "model"},
        {"draft_model": "small"},
        {"drafts": False},
    ],
)
def test_none(change: dict[str, Any]) -> None:
    assert chosen(**change) is None


@pytest.mark.parametrize("model", ["", "no-such-model", "../bench", Path("x"), 3])
def test_only_aliases_have_one(model: Any) -> None:
    assert shipped_head(model) is None
