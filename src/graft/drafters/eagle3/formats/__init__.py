"""Formats of EAGLE-3 checkpoints, one converter each, and the choice among them.

A format is told by its configuration; that it is an EAGLE-3 head at all is checked before
(`graft.drafters.eagle3.kinds`). A new format is one file and one line here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from graft.drafters.eagle3.errors import HeadError
from graft.drafters.eagle3.formats import angelslim, authors, specforge, speculators
from graft.drafters.eagle3.formats.base import Converted, Format

__all__ = ["FORMATS", "Converted", "Format", "pick"]

FORMATS: tuple[Format, ...] = (authors, specforge, speculators, angelslim)


def pick(config: Mapping[str, Any], keys: Collection[str]) -> Format:
    """The one format that a checkpoint is in.

    Raises:
        HeadError: if none or several fit, with what is supported.
    """
    fitting = [form for form in FORMATS if form.matches(config, keys)]
    if len(fitting) == 1:
        return fitting[0]
    known = "; ".join(f"{form.NAME}: {form.SIGNS}" for form in FORMATS)
    if fitting:
        names = " and ".join(form.NAME for form in fitting)
        raise HeadError(
            f"config.json has the marks of several formats ({names}), which number feature layers "
            f"differently; remove those that do not apply. Supported are {known}"
        )
    raise HeadError(f"the checkpoint is in no format that Graft knows. Supported are {known}")
