"""The package itself: what it offers, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import graft


@pytest.mark.parametrize("name", graft.__all__)
def test_every_public_name_is_there_again_and_again(name: str) -> None:
    # A submodule of the same name would take the place of the object after the first access.
    first = getattr(graft, name)
    assert getattr(graft, name) is first
    assert type(first).__name__ != "module"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        graft.lode  # noqa: B018


def test_importing_the_package_and_the_command_line_does_not_import_torch() -> None:
    code = (
        "import sys, graft, graft.cli; print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
