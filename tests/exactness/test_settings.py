"""Every setting of sampling: trees say what plain decoding says."""

from __future__ import annotations

import pytest

from graft.exactness import compare
from tests.exactness.cases import ALONE, SETTINGS
from tests.exactness.helpers import (
    PROMPTS,
    assert_accepting,
    assert_same,
    family_engine,
    plain_answers,
    teach_answers,
)
from tests.tiny_models import EOS_ID

_FAMILY_TESTS_HAVE = ("greedy", "top_p")


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s not in _FAMILY_TESTS_HAVE])
def test_trees_say_what_plain_decoding_says(setting: str) -> None:
    engine, params = family_engine("llama"), SETTINGS[setting]
    batch = 1 if setting in ALONE else 3
    teach_answers(engine, PROMPTS, params, batch)
    found = compare(engine, PROMPTS, params, budget=16, batch=batch)
    assert_same(found)
    assert_accepting(found)


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s not in ("greedy", "sampled")])
def test_the_settings_have_an_effect(setting: str) -> None:
    """A setting that changes nothing would make its test above one of plain sampling."""
    engine = family_engine("llama")
    base = "greedy" if SETTINGS[setting]().greedy else "sampled"
    without = plain_answers(engine, PROMPTS[1:2], SETTINGS[base])
    assert plain_answers(engine, PROMPTS[1:2], SETTINGS[setting]) != without


def test_the_minimum_length_is_what_ends_the_answers() -> None:
    answers = plain_answers(family_engine("llama"), PROMPTS, SETTINGS["minimum"])
    assert all(len(a) >= 12 for a in answers)
    assert all(a[-1] == EOS_ID for a in answers)
