"""Profiles: what calibration found for a model, a head and a machine, as a file. [ours]

A profile holds what rounds cost here and, per policy, the settings that made most tokens per
second. They fill what a user leaves open; what a user says holds. Settings serve wherever model,
head and kind of device are the same; costs only on the same device with as many threads.

It knows settings and numbers: not engines, not how they were found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, get_args

from graft.atomic import write_whole
from graft.costs import Costs
from graft.settings import EngineSettings, Policy
from graft.template import Template

FORMAT = 1
# What a profile may set, per policy.
TUNED = ("budget", "beam", "depth", "checkpoints", "thresholds", "kept")


class MadeFor(NamedTuple):
    """What a profile was made for."""

    model: str  # name
    tokenizer: str  # fingerprint
    shape: str  # of the model, in words
    head: str | None  # digest of the drafter's weights; None without one
    device_type: str
    device: str  # name of the processor or GPU
    dtype: str
    weights: str  # how CPU linears are packed
    threads: int


@dataclass(frozen=True)
class Profile:
    """What calibration found.

    Attributes:
        made_for: see there.
        costs: of rounds.
        policy: the one that made most tokens per second.
        settings: per policy, fields of `EngineSettings` (`TUNED`).
        tokens_per_second: per policy, as played; "plain" among them.
        templates: per policy, one per stage, where there are better ones than those that ship.
    """

    made_for: MadeFor
    costs: Costs
    policy: Policy
    settings: Mapping[str, Mapping[str, Any]]
    tokens_per_second: Mapping[str, float]
    templates: Mapping[str, tuple[Template, ...]] = field(default_factory=dict)

    def differences(self, here: MadeFor) -> list[str]:
        """Where settings would not serve: names with what was found and what is there."""
        names = ("tokenizer", "shape", "head", "device_type", "dtype", "weights")
        return [
            f"{name} {_told(getattr(self.made_for, name))}, not {_told(getattr(here, name))}"
            for name in names
            if getattr(self.made_for, name) != getattr(here, name)
        ]

    def require(self, here: MadeFor, name: str | Path) -> None:
        """Refuse to serve what it was not made for.

        Raises:
            ValueError: saying what differs; `name` is the profile's.
        """
        if different := self.differences(here):
            raise ValueError(
                f"profile {name} was made for {'; '.join(different)}: make one for this with "
                "graft calibrate, or leave it out"
            )

    def costs_on(self, here: MadeFor) -> Costs | None:
        """The costs, if they were measured on such a machine."""
        same = self.made_for.device == here.device and self.made_for.threads == here.threads
        return self.costs if same else None

    def fill(self, settings: EngineSettings) -> EngineSettings:
        """Settings with what was found for their policy, where they say nothing."""
        policy = settings.policy or self.policy
        settings = settings.having(policy=policy)
        found = self.settings.get("dense" if policy == "eagle3" else policy)
        said = [name for name in TUNED if getattr(settings, name) is not None]
        if found is None or settings.preset is not None or set(said) - {"budget"}:
            return settings
        if settings.budget not in (None, found.get("budget")):
            return settings
        return settings.having(**found)

    def templates_of(self, settings: EngineSettings) -> tuple[Template, ...]:
        """What was found for settings, if they are the profile's; else none."""
        found = self.settings.get(settings.policy or self.policy)
        if found is None or any(getattr(settings, name) != found[name] for name in found):
            return ()
        return self.templates.get(settings.policy or self.policy, ())


def _told(value: str | None) -> str:
    return "none" if value is None else value


def save_profile(path: str | Path, profile: Profile) -> None:
    """Write a profile, whole or not at all.

    Raises:
        OSError: for a path that cannot be written.
    """
    data = {
        "format": FORMAT,
        "made_for": profile.made_for._asdict(),
        "costs": asdict(profile.costs),
        "policy": profile.policy,
        "settings": {k: dict(v) for k, v in profile.settings.items()},
        "tokens_per_second": dict(profile.tokens_per_second),
        "templates": {
            policy: [template.paths for template in templates]
            for policy, templates in profile.templates.items()
        },
    }
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, (json.dumps(data, indent=2) + "\n").encode())


def load_profile(path: str | Path) -> Profile:
    """Read a profile.

    Raises:
        ValueError: for a file that cannot be read or is no profile, naming what is wrong.
    """
    try:
        return _parsed(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"profile {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(
            f"{path} is no profile of graft calibrate ({error}): make it anew"
        ) from error
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is no profile of graft calibrate, or parts of it are missing: make it anew"
        ) from error


def _parsed(data: Any) -> Profile:
    if data["format"] != FORMAT:
        raise ValueError(f"format {data['format']!r}, supported is {FORMAT}")
    if data["policy"] not in get_args(Policy):
        raise ValueError(f"policy {data['policy']!r}")
    costs = data["costs"]
    if unknown := costs.keys() - {f.name for f in fields(Costs)}:
        raise ValueError(f"costs {sorted(unknown)}")
    settings: dict[str, dict[str, Any]] = {}
    for policy, found in data["settings"].items():
        if unknown := found.keys() - set(TUNED):
            raise ValueError(f"settings {sorted(unknown)} of {policy}")
        settings[policy] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
        EngineSettings(policy=policy, **settings[policy])  # refuses what does not fit
    templates = {
        policy: tuple(Template(tuple(tuple(path) for path in paths)) for paths in each)
        for policy, each in data.get("templates", {}).items()
    }
    lists = {name: tuple(costs[name]) for name in ("rows", "verify")}
    return Profile(
        MadeFor(**data["made_for"]),
        Costs(**{**costs, **lists}),
        data["policy"],
        settings,
        {k: float(v) for k, v in data["tokens_per_second"].items()},
        templates,
    )
