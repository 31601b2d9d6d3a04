"""Sampling through `generate`: repeatable, by the law of the processed distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper

from graft.integrations import hf_call
from graft.integrations.hf_processors import RowProcessors, as_settings
from graft.integrations.hf_rows import Prompt
from graft.integrations.transformers import Decode, decode, engine_of
from tests.exactness.helpers import teach
from tests.integrations.agreement import ONE, PADDED, answer, batch, generate, model_of, row

SAMPLED: dict[str, dict[str, Any]] = {
    "bare": {"top_k": 0},
    "default": {},
    "temperature": {"temperature": 0.7, "top_k": 0},
    "top-k": {"temperature": 1.6, "top_k": 9},
    "top-p": {"top_p": 0.8, "temperature": 1.5},
    "min-p": {"min_p": 0.05, "temperature": 1.5},
    "typical": {"typical_p": 0.9},
    "cutoffs": {"epsilon_cutoff": 0.01, "eta_cutoff": 0.01},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "temperature": 1.2},
}


def _draw(settings: dict[str, Any], inputs: Any = ONE, **more: Any) -> Any:
    more = {"graft_seed": 11, **more}
    return generate(
        model_of("llama"), inputs, {"do_sample": True, **settings}, custom_generate=decode, **more
    )


@pytest.mark.parametrize("inputs", [ONE, PADDED], ids=["one row", "padded"])
@pytest.mark.parametrize("name", SAMPLED)
def test_trees_draw_what_the_plain_policy_draws(name: str, inputs: Any) -> None:
    plain = _draw(SAMPLED[name], inputs, graft_policy="plain")
    for sequence in plain.tolist():
        teach(engine_of(model_of("llama")), sequence)
    assert _draw(SAMPLED[name], inputs).tolist() == plain.tolist()
    assert _draw(SAMPLED[name], inputs, graft_seed=12).tolist() != plain.tolist()


def test_the_global_seed_makes_it_repeatable() -> None:
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(_draw({}, graft_seed=None).tolist())
    assert outs[0] == outs[1] != outs[2]


def test_a_greedy_call_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    generate(model_of("llama"), ONE, {}, custom_generate=decode)
    assert torch.equal(torch.rand(3), expected)


def test_returned_sequences_differ() -> None:
    out = _draw({"num_return_sequences": 4})
    assert out.shape[0] == 4
    assert len({tuple(sequence) for sequence in out.tolist()}) == 4
    assert len(decode.last_results) == 4


@pytest.mark.parametrize("settings", [{"top_k": 4}, {"top_p": 0.7, "temperature": 2.0}])
def test_the_law_is_that_of_the_processed_distribution(settings: dict[str, Any]) -> None:
    draws = 120
    more: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True}
    plain = generate(
        model_of("llama"), ONE, {"do_sample": True, "max_new_tokens": 1, **settings, **more}
    )
    law = plain.scores[0][0].softmax(0)
    out = _draw({"max_new_tokens": 1, "num_return_sequences": draws, **settings})
    counts = torch.bincount(out[:, -1], minlength=256) / draws
    spread = (law * (1 - law) / draws).sqrt()
    assert ((counts - law).abs() <= 4.5 * spread + 1e-6).all()
    assert (law > 0).sum() > 1
    other = law.roll(1)  # the control: another law is noticed
    assert not ((counts - other).abs() <= 4.5 * spread + 1e-6).all()


def _spied(monkeypatch: pytest.MonkeyPatch, off: bool) -> list[dict[str, Any] | None]:
    """What became of the processors of each row; with `off`, none become settings."""
    seen: list[dict[str, Any] | None] = []

    def spy(processors: Sequence[Any], prompt: Prompt, ends: frozenset[int], sample: bool) -> Any:
        fields = as_settings(processors, prompt, ends, sample)
        seen.append(fields)
        return None if off else fields

    monkeypatch.setattr(hf_call, "as_settings", spy)
    return seen


SETTLED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"do_sample": False}, {}),
    "bare": ({"top_k": 0}, {}),
    "default": ({}, {"top_k": 50}),
    "temperature": ({"temperature": 0.7, "top_k": 0}, {"temperature": 0.7}),
    "top-k": ({"temperature": 1.6, "top_k": 9}, {"temperature": 1.6, "top_k": 9}),
    "repetition": ({"repetition_penalty": 1.5, "top_k": 0}, {"repetition_penalty": 1.5}),
    "n-grams": (
        {"no_repeat_ngram_size": 1, "do_sample": False},
        {"no_repeat_ngram_size": 1},
    ),
    "minimum": (
        {"min_new_tokens": 9, "do_sample": False, "eos_token_id": [255, 194]},
        {"min_new_tokens": 9},
    ),
    "minimum length": (
        {"min_length": 14, "do_sample": False, "eos_token_id": 194},
        {"min_new_tokens": 7},
    ),
}


@pytest.mark.parametrize("name", SETTLED)
def test_processors_that_become_settings_draw_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, fields = SETTLED[name]
    assert 194 in answer()  # the end token of the cases above
    seen = _spied(monkeypatch, off=False)
    as_fields = _draw(settings)
    assert seen == [fields]
    _spied(monkeypatch, off=True)
    assert _draw(settings).tolist() == as_fields.tolist()


@pytest.mark.parametrize(
    "settings",
    [
        {"top_p": 0.9},
        {"min_p": 0.1},
        {"repetition_penalty": 2e4},
        {"logits_processor": [lambda ids, scores: scores]},
        {"typical_p": 0.9},
    ],
)
def test_other_processors_run_as_they_are(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = _spied(monkeypatch, off=False)
    called: list[Tensor] = []
    original = RowProcessors.__call__

    def watched(self: Any, ids: Tensor, scores: Tensor) -> Tensor:
        called.append(ids)
        return original(self, ids, scores)

    monkeypatch.setattr(RowProcessors, "__call__", watched)
    _draw(settings)
    assert called
    assert seen in ([None], [{"repetition_penalty": 2e4, "top_k": 50}])


def test_warpers_without_sampling_are_no_settings() -> None:
    prompt = Prompt(0, torch.tensor([[5]]), 0)
    warpers = [TemperatureLogitsWarper(0.5), TopKLogitsWarper(3)]
    assert as_settings(warpers, prompt, frozenset(), True) == {"temperature": 0.5, "top_k": 3}
    assert as_settings(warpers, prompt, frozenset(), False) is None
    assert as_settings(warpers[::-1], prompt, frozenset(), True) is None  # another order
    assert as_settings(warpers[:1] * 2, prompt, frozenset(), True) is None


def test_a_decode_object_may_fix_the_seed() -> None:
    fixed = Decode(seed=11)
    more: dict[str, Any] = {"do_sample": True, "max_new_tokens": 8}
    assert (
        generate(model_of("llama"), ONE, more, custom_generate=fixed).tolist()
        == _draw({"max_new_tokens": 8}).tolist()
    )


def test_a_row_of_a_batch_draws_by_its_number() -> None:
    twice = batch(row(7), row(7))
    out = _draw({}, twice)
    assert out[0].tolist() != out[1].tolist()
    assert out[0].tolist() == _draw({})[0].tolist()
