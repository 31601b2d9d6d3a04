"""What a user may ask for, and how the rest is refused."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest

from graft.sampling_params import SamplingParams


def test_default_is_greedy_and_reads_no_history() -> None:
    params = SamplingParams()
    assert params.greedy
    assert not params.reads_history
    assert (params.max_new_tokens, params.logprobs, params.seed) == (256, None, None)


@pytest.mark.parametrize(
    ("name", "found", "supported"),
    [
        ("temperature", -0.1, "0 (greedy)"),
        ("temperature", math.nan, "0 (greedy)"),
        ("temperature", math.inf, "0 (greedy)"),
        ("temperature", 1e-9, "0 (greedy)"),
        ("temperature", True, "a number"),
        ("temperature", "warm", "a number"),
        ("top_k", -1, "0 (off)"),
        ("top_k", 2.5, "an int"),
        ("top_k", None, "an int"),
        ("top_p", 0.0, "above 0"),
        ("top_p", 1.01, "at most 1"),
        ("min_p", -0.1, "0 (off)"),
        ("min_p", 1.1, "to 1"),
        ("repetition_penalty", 0.0, "1e-4"),
        ("presence_penalty", math.inf, "1e4"),
        ("frequency_penalty", -1e5, "1e4"),
        ("logit_bias", [(1, 2.0)], "a mapping"),
        ("logit_bias", {"1": 2.0}, "a token id"),
        ("logit_bias", {-1: 2.0}, "a token id"),
        ("logit_bias", {1: -math.inf}, "banned_tokens"),
        ("banned_tokens", 5, "a sequence"),
        ("banned_tokens", (5, -5), "a token id"),
        ("banned_tokens", "56", "a sequence"),
        ("no_repeat_ngram_size", 257, "256"),
        ("seed", 1.0, "any int"),
        ("logprobs", 21, "20"),
        ("logprobs", True, "an int"),
        ("stop", ("a", ""), "not empty"),
        ("stop", "", "not empty"),
        ("stop", 3, "a text"),
        ("stop_token_ids", (1.5,), "a token id"),
        ("ignore_eos", 1, "True or False"),
        ("max_new_tokens", 0, "1 or more"),
        ("min_new_tokens", 257, "max_new_tokens (256)"),
        ("logits_processors", (len, 3), "callables"),
        ("logits_processors", len, "a sequence"),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, found: Any, supported: str) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        SamplingParams(**{name: found})
    assert supported in str(caught.value)
    assert isinstance(found, tuple | list | dict) or repr(found) in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"temperature": 1e-5},
        {"temperature": np.float32(0.5)},
        {"top_k": np.int64(5)},
        {"top_k": 10**30},
        {"top_p": 1},
        {"min_p": 1.0},
        {"logprobs": 0},
        {"seed": -(10**30)},
        {"min_new_tokens": 256},
        {"stop": None},
    ],
)
def test_values_at_the_edge_are_taken(settings: dict[str, Any]) -> None:
    SamplingParams(**settings)


def test_lists_and_single_texts_are_normalised() -> None:
    params = SamplingParams(
        stop="end", banned_tokens=[1, 2], stop_token_ids=range(2), logits_processors=[max], top_p=1
    )
    assert params.stop == ("end",)
    assert params.banned_tokens == (1, 2)
    assert params.stop_token_ids == (0, 1)
    assert params.logits_processors == (max,)
    assert isinstance(params.top_p, float)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_frozen_comparable_and_copyable() -> None:
    bias = {3: 1}
    params = SamplingParams(logit_bias=bias, temperature=0.5)
    bias[4] = 2
    assert params.logit_bias == {3: 1.0}
    assert params == pickle.loads(pickle.dumps(params)) == copy.deepcopy(params)
    assert hash(params) == hash(copy.copy(params))
    with pytest.raises(FrozenInstanceError):
        params.temperature = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "reads"),
    [
        ({"temperature": 1.0, "top_k": 4, "top_p": 0.5, "min_p": 0.1}, False),
        ({"logit_bias": {1: 1.0}, "banned_tokens": (1,), "min_new_tokens": 4}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": -0.1}, True),
        ({"no_repeat_ngram_size": 3}, True),
        ({"logits_processors": (max,)}, True),
    ],
)
def test_which_settings_read_the_history(settings: dict[str, Any], reads: bool) -> None:
    assert SamplingParams(**settings).reads_history is reads


def test_loose_names_build_the_same() -> None:
    assert SamplingParams.from_kwargs(temperature=0.5, stop=["a"]) == SamplingParams(
        temperature=0.5, stop=("a",)
    )
    with pytest.raises(ValueError, match="top_p"):
        SamplingParams.from_kwargs(top_p=3)


@pytest.mark.parametrize(
    ("name", "found", "feature"),
    [
        ("num_beams", 4, "beam search (num_beams=4) is not supported"),
        ("num_beam_groups", 2, "diverse beam search"),
        ("guidance_scale", 1.5, "classifier-free guidance"),
        ("typical_p", 0.9, "typical sampling"),
        ("epsilon_cutoff", 1e-4, "epsilon sampling"),
        ("grammar", "root ::= x", "constrained output"),
        ("guided_json", {}, "constrained output"),
        ("response_format", {"type": "json_object"}, "constrained output"),
        ("constraints", [object()], "constrained output"),
        ("do_sample", True, "set temperature"),
        ("do_sample", False, "set temperature"),
        ("bad_words_ids", [[1, 2]], "banned_tokens takes single ids"),
    ],
)
def test_features_we_do_not_have_are_refused_by_name(name: str, found: Any, feature: str) -> None:
    with pytest.raises(ValueError, match="supported settings are temperature, top_k") as caught:
        SamplingParams.from_kwargs(**{name: found})
    assert feature in str(caught.value)


@pytest.mark.parametrize("name", ["num_beams", "guidance_scale", "typical_p", "best_of"])
def test_values_that_wish_for_nothing_pass(name: str) -> None:
    assert SamplingParams.from_kwargs(**{name: 1}) == SamplingParams()
    assert SamplingParams.from_kwargs(**{name: None}) == SamplingParams()


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"'temprature' .did you mean 'temperature'"):
        SamplingParams.from_kwargs(temprature=1.0)
    with pytest.raises(ValueError, match=r"'max_tokens' .did you mean 'max_new_tokens'"):
        SamplingParams.from_kwargs(max_tokens=1)
    with pytest.raises(ValueError, match="unknown setting 'zzz'; supported"):
        SamplingParams.from_kwargs(zzz=1)


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"beam search.*'zzz'"):
        SamplingParams.from_kwargs(num_beams=2, zzz=1, temperature=1.0)


def test_no_setting_of_ours_is_listed_as_refused() -> None:
    for each in fields(SamplingParams):
        SamplingParams.from_kwargs(**{each.name: getattr(SamplingParams(), each.name)})
