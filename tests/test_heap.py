"""Freed memory stays, where the C library can be asked for it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Faults of writing a large block once the heap has found its size, with and without.
SCRIPT = """
import resource, sys, torch
from graft.heap import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
block = None
for _ in range(30):
    del block
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = torch.ones(40 << 20, dtype=torch.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_freed_block_is_not_fetched_anew() -> None:
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", SCRIPT, how]))
        for how in ("kept", "given back")
    }
    assert faults["kept"] < 100
    assert faults["given back"] > 10 * faults["kept"] + 100
