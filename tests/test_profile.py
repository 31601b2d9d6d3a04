"""Profiles fill what users leave open, and nothing else; files say what is wrong with them."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graft.costs import Costs
from graft.profile import MadeFor, Profile, load_profile, save_profile
from graft.profiles import any_profile, find_profile, own_place
from graft.settings import EngineSettings
from graft.template import Template

HERE = MadeFor(
    "tiny", "f" * 16, "2 layers of 8", None, "cpu", "cpu (one)", "float32", "as loaded", 2
)
RULE = {"depth": 4, "checkpoints": (0, 2), "thresholds": (0.4, 0.1), "kept": (2, 4), "beam": 3}
PROFILE = Profile(
    HERE,
    Costs((1, 9), (0.02, 0.04), draft=0.003, step=0.002, round=0.001),
    "graft",
    {"graft": {"budget": 6, **RULE}, "retrieval": {"budget": 3}, "graft+": {"budget": 8}},
    {"plain": 50.0, "graft": 80.0},
)


def test_it_fills_what_is_open() -> None:
    filled = PROFILE.fill(EngineSettings())
    assert filled == EngineSettings(policy="graft", budget=6, **RULE)  # type: ignore[arg-type]
    assert PROFILE.fill(EngineSettings(policy="retrieval")).budget == 3
    assert PROFILE.fill(EngineSettings(policy="graft", budget=6)).kept == (2, 4)


def test_templates_go_with_the_settings_they_were_made_for(tmp_path: Path) -> None:
    three = tuple(Template(((0,), (r,), (0, 0))) for r in (1, 2, 3))
    profile = replace(PROFILE, templates={"graft": three})
    assert profile.templates_of(profile.fill(EngineSettings())) == three
    for other in (EngineSettings(budget=9), EngineSettings(policy="retrieval")):
        assert profile.templates_of(profile.fill(other)) == ()
    save_profile(tmp_path / "p.json", profile)
    assert load_profile(tmp_path / "p.json") == profile


def test_dense_drafts_of_an_eagle_head_go_by_its_name_too() -> None:
    profile = replace(PROFILE, settings={"dense": {"budget": 5, "depth": 2}})
    filled = profile.fill(EngineSettings(policy="eagle3"))
    assert filled == EngineSettings(policy="eagle3", budget=5, depth=2)


@pytest.mark.parametrize(
    "said",
    [
        {"policy": "graft", "budget": 16},
        {"policy": "graft", "depth": 2},
        {"policy": "graft", "thresholds": (0.5, 0.5, 0.5), "budget": 16},
        {"policy": "graft", "preset": "paper-16"},
        {"policy": "suffix"},
        {"policy": "plain"},
    ],
)
def test_what_is_said_holds(said: dict[str, Any]) -> None:
    settings = EngineSettings(**said)
    assert PROFILE.fill(settings) == settings


def test_costs_are_of_one_machine() -> None:
    assert PROFILE.costs_on(HERE) == PROFILE.costs
    assert PROFILE.costs_on(HERE._replace(device="cpu (other)")) is None
    assert PROFILE.costs_on(HERE._replace(threads=8)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer": "0" * 16},
        {"shape": "3 layers of 8"},
        {"head": "abc"},
        {"device_type": "cuda"},
        {"dtype": "bfloat16"},
        {"weights": "packed"},
    ],
)
def test_it_says_what_it_was_made_for(change: dict[str, Any], tmp_path: Path) -> None:
    (said,) = PROFILE.differences(HERE._replace(**change))
    assert next(iter(change)) in said
    save_profile(tmp_path / "p.json", PROFILE)
    with pytest.raises(ValueError, match="graft calibrate"):
        find_profile(tmp_path / "p.json", HERE._replace(**change))
    assert find_profile(tmp_path / "p.json", HERE) == PROFILE


def test_it_is_read_back(tmp_path: Path) -> None:
    save_profile(tmp_path / "deep" / "p.json", PROFILE)
    assert load_profile(tmp_path / "deep" / "p.json") == PROFILE
    assert PROFILE.differences(HERE._replace(device="elsewhere", threads=1, model="alias")) == []


def spoilt(change: Any) -> str:
    data = json.loads(json.dumps({
        "format": 1,
        "made_for": HERE._asdict(),
        "costs": {"rows": [1], "verify": [1.0], "draft": 0.0, "step": 0.0, "round": 0.0},
        "policy": "graft",
        "settings": {"retrieval": {"budget": 3}},
        "tokens_per_second": {"plain": 1.0},
    }))  # fmt: skip
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        spoilt(lambda d: d.update(format=2)),
        spoilt(lambda d: d.update(policy="fast")),
        spoilt(lambda d: d["costs"].update(speed=1)),
        spoilt(lambda d: d["costs"].update(rows=[3])),
        spoilt(lambda d: d["settings"]["retrieval"].update(budget=0)),
        spoilt(lambda d: d["settings"]["retrieval"].update(model="x")),
        spoilt(lambda d: d["made_for"].pop("threads")),
        spoilt(lambda d: d.pop("tokens_per_second")),
    ],
)
def test_a_broken_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"p\.json"):
        load_profile(file)


def test_the_one_of_this_machine_is_found(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))
    assert find_profile(None, HERE) is None
    place = own_place(HERE)
    save_profile(place, PROFILE)
    assert find_profile(None, HERE) == PROFILE
    assert find_profile("none", HERE) is None
    assert find_profile(None, HERE._replace(head="abc")) is None
    save_profile(place, replace(PROFILE, made_for=HERE._replace(shape="2 layers of 9")))
    assert find_profile(None, HERE) is None  # of an older model with this name
    place.write_text("half")
    with caplog.at_level(logging.WARNING, logger="graft"):
        assert find_profile(None, HERE) is None
    assert "is no profile" in caplog.text


def test_a_missing_file_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        find_profile(tmp_path / "nowhere.json", HERE)


def test_names_tell_whether_there_is_a_profile_at_all(tmp_path: Path, monkeypatch: Any) -> None:
    """Where there is none, nothing is read to compare with it."""
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))
    assert not any_profile(None, "tiny")
    assert not any_profile("none", "tiny")
    assert any_profile("p.json", "tiny")
    save_profile(own_place(HERE), PROFILE)
    assert any_profile(None, "tiny")
