"""Names of checkpoints on the Hugging Face hub, and what libraries say that read them.

It fetches nothing and knows no kind of checkpoint.
"""

from __future__ import annotations

import re

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def first_line(error: Exception) -> str:
    """What an error of a library says, in one line; its kind if it says nothing."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
