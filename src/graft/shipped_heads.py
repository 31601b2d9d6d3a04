"""The heads that come with the package, for models that an alias names.

It knows names and folders; loaders do the rest.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

NO_HEAD = "none"
_ALIAS = re.compile(r"[a-z0-9][a-z0-9.-]*")  # no path


def shipped_head(model: object) -> Path | None:
    """The folder of the head that the package holds for a model; None if there is none.

    Args:
        model: as `graft.load` takes it; an alias alone has one.
    """
    if not isinstance(model, str) or not _ALIAS.fullmatch(model):
        return None
    place = resources.files("graft").joinpath("data", "heads", model)
    folder = Path(str(place))
    return folder if (folder / "config.json").is_file() else None


def choose_head(
    model: object,
    head: str | Path | None,
    *,
    drafter: str | None,
    draft_model: object | None,
    drafts: bool,
) -> str | Path | None:
    """The head to load.

    Args:
        head: what was asked for; "none" for none, None for the shipped one where it has a use.
        drafter, draft_model: what else was asked for.
        drafts: whether the policy drafts, as far as one was chosen.
    """
    if head is not None:
        return None if str(head) == NO_HEAD else head
    if draft_model is not None or drafter not in (None, "eagle3") or not drafts:
        return None
    return shipped_head(model)
