"""Runs of `graft generate` with each kind of drafter."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.helpers import Command
from tests.drafter_folders import Folders

LENGTH = 20
KINDS = {
    "eagle3": ("--head", "specforge"),
    "speculators": ("--head", "speculators", "--drafter", "eagle3"),
    "dflash": ("--head", "dflash", "--drafter", "dflash"),
    "model": ("--draft-model", "draft", "--drafter", "model"),
}


def options(folders: Folders, kind: str) -> tuple[str, ...]:
    role, name, *more = KINDS[kind]
    return (role, getattr(folders, name), *more)


def generate(run: Command, folders: Folders, *arguments: str) -> dict[str, Any]:
    """The JSON of an answer; short budgets make stages."""
    start = ("generate", "hello hello", "-m", folders.target, "-n", str(LENGTH), "--budget", "8")
    ran = run(*start, "--ignore-eos", "--json", *arguments)
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found
