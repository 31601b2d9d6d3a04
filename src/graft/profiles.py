"""Where profiles are: one that is named, the one of this machine, or the one that ships.

It knows names and files; what a profile does is not known here.
"""

from __future__ import annotations

import logging
import re
from importlib import resources
from pathlib import Path

from graft.model_cache import cache_root
from graft.profile import MadeFor, Profile, load_profile

log = logging.getLogger("graft")

NO_PROFILE = "none"


def any_profile(given: str | Path | None, model: str) -> bool:
    """Whether there is a profile that `find_profile` could take, as far as names tell."""
    if given is not None:
        return str(given) != NO_PROFILE
    shipped = _shipped(model)
    kept = (cache_root() / "profiles").glob("*.json")
    return next(kept, None) is not None or (shipped is not None and shipped.is_file())


def find_profile(given: str | Path | None, here: MadeFor) -> Profile | None:
    """The profile to use.

    Args:
        given: a file; "none" for none; None for the one of this machine, or else the shipped one.

    Raises:
        ValueError: for a file that is no profile, or was made for something else.
    """
    if given is not None and str(given) == NO_PROFILE:
        return None
    if given is not None:
        profile = load_profile(given)
        profile.require(here, given)
        return profile
    for place in (own_place(here), _shipped(here.model)):
        if place is None or not place.is_file():
            continue
        try:
            profile = load_profile(place)
        except ValueError as error:
            log.warning("%s", error)
            continue
        if not profile.differences(here):
            return profile
    return None


def own_place(here: MadeFor) -> Path:
    """Where a profile that is made here is kept."""
    parts = (here.model, here.head or "no-head", here.device_type, here.dtype)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts)).strip("-")
    return cache_root() / "profiles" / f"{name}.json"


def _shipped(model: str) -> Path | None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", model):
        return None
    return Path(str(resources.files("graft").joinpath("data", "profiles", f"{model}.json")))
