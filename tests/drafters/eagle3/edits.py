"""Edits of checkpoints before they are written, and the refusals that they bring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graft.drafters.eagle3.loader import HeadError, load_head
from tests.tiny_heads import Config, Edit, Tensors, tiny_facts


def refused(path: Path, *words: str, **facts: Any) -> str:
    """The message of a refusal: one line that holds all these words."""
    with pytest.raises(HeadError) as caught:
        load_head(path, tiny_facts(**facts))
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def fields(**values: Any) -> Edit:
    """An edit of the configuration; None takes a field away."""

    def edit(config: Config, _: Tensors) -> None:
        config |= values
        for name in [k for k, v in values.items() if v is None]:
            del config[name]

    return edit


def drop(*names: str) -> Edit:
    def edit(_: Config, tensors: Tensors) -> None:
        for name in names:
            del tensors[name]

    return edit


def add(**tensors_: tuple[int, ...]) -> Edit:
    def edit(_: Config, tensors: Tensors) -> None:
        tensors |= {k.replace("__", "."): torch.ones(shape) for k, shape in tensors_.items()}

    return edit
