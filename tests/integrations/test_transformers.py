"""`model.generate(custom_generate=decode)` against plain `generate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import logits_process as hf
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StopStringCriteria,
)

from graft.integrations.transformers import Decode, decode, engine_of
from tests.exactness.helpers import teach
from tests.fakes import byte_tokenizer
from tests.integrations.agreement import (
    COUNT,
    ONE,
    PADDED,
    Settings,
    agree,
    answer,
    batch,
    generate,
    model_of,
    row,
)
from tests.tiny_models import tiny_model


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2", "gemma3", "mistral"])
def test_greedy_decoding_is_that_of_generate(family: str) -> None:
    one = agree(model_of(family), ONE, {})
    assert one > 1.2  # nodes were accepted, else equality says little
    assert agree(model_of(family), batch(row(40)), {}) > 1.2
    assert agree(model_of(family), PADDED, {}) > 1.2


def test_half_precision_agrees() -> None:
    """Over a few tokens without near-ties."""
    model = tiny_model("llama")
    model.to(torch.bfloat16)  # type: ignore[arg-type]
    agree(model, ONE, {"max_new_tokens": 8})


def _custom(ids: Tensor, scores: Tensor) -> Tensor:
    """Forbids the neighbours of the last token, and counts on the length of the text."""
    scores = scores.clone()
    last = int(ids[0, -1]) if len(ids) == 1 else None
    for each, index in enumerate(ids[:, -1].tolist() if last is None else [last]):
        scores[each, max(index - 60, 0) : index + 60] = -float("inf")
        scores[each, ids.shape[1] % 200] += 5.0
    return scores


SETTINGS: dict[str, Settings] = {
    "max_length": {"max_length": 20},
    "default length": {"max_new_tokens": None},
    "minimum": lambda: {"min_new_tokens": 12, "eos_token_id": [255, answer()[3]]},
    "minimum length": lambda: {"min_length": 16, "eos_token_id": answer()[3]},
    "ends": lambda: {"eos_token_id": [answer()[9], 255], "pad_token_id": 17},
    "no pad": lambda: {"eos_token_id": [answer()[5], 255], "pad_token_id": None},
    "repetition": {"repetition_penalty": 1.7},
    "n-grams": {"no_repeat_ngram_size": 2},
    "single tokens": {"no_repeat_ngram_size": 1},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 5},
    "bad words": lambda: {"bad_words_ids": [[answer()[2]], answer()[5:7]]},
    "bias": lambda: {"sequence_bias": [[[answer()[1]], -20.0], [answer()[2:4], 9.0]]},
    "suppressed": lambda: {"suppress_tokens": answer()[:4], "begin_suppress_tokens": [7, 9]},
    "forced end": {"forced_eos_token_id": 77},
    "decay": {"exponential_decay_length_penalty": (4, 1.5)},
    "decoration": {"renormalize_logits": True, "remove_invalid_values": True},
    "prompt penalty": {"encoder_repetition_penalty": 1.8},
    "prompt n-grams": {"encoder_no_repeat_ngram_size": 1},
    "allowed": {
        "prefix_allowed_tokens_fn": lambda b, ids: range(40 + b * 60, 90 + b * 60 + len(ids) % 9)
    },
    "own processor": lambda: {"logits_processor": [_custom]},
    "own warper": lambda: {"logits_processor": [hf.TemperatureLogitsWarper(0.5), _custom]},
    "all": lambda: {
        "repetition_penalty": 1.2,
        "min_length": 14,
        "eos_token_id": answer()[4],
        "suppress_tokens": answer()[:2],
        "logits_processor": [_custom],
    },
    "no cache": {"use_cache": False},
    "config": lambda: {"generation_config": GenerationConfig(repetition_penalty=1.4)},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_those_of_generate(name: str) -> None:
    agree(model_of("llama"), ONE, SETTINGS[name])


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "no cache"])
def test_settings_hold_in_padded_batches(name: str) -> None:
    agree(model_of("llama"), PADDED, SETTINGS[name])


def test_guidance_of_one_row() -> None:
    agree(model_of("llama"), ONE, {"guidance_scale": 1.5})


class _Stop(StoppingCriteria):
    """Ends a row at one of some tokens, and notes what it was shown."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self.seen += input_ids.tolist()
        met = [ids[-1] in self.tokens for ids in input_ids.tolist()]
        return torch.tensor(met)


STOPS: dict[str, Callable[[], dict[str, Any]]] = {
    "one token": lambda: {"stopping_criteria": [_Stop(answer()[6])]},
    "many tokens": lambda: {"stopping_criteria": [_Stop(*range(60, 110))]},
    "with an end": lambda: {
        "stopping_criteria": [_Stop(*range(30))],
        "eos_token_id": [answer()[4], 255],
    },
    "no time": lambda: {"stopping_criteria": [MaxTimeCriteria(-1.0)]},
    "own ends": lambda: {"stopping_criteria": [EosTokenCriteria([answer()[2], 255])]},
    "text": lambda: {"stopping_criteria": [StopStringCriteria(byte_tokenizer(), chr(answer()[2]))]},
    "no end tokens": lambda: {"stopping_criteria": [_Stop(*range(60, 110))], "eos_token_id": None},
    "with a processor": lambda: {
        "stopping_criteria": [_Stop(*range(60, 110))],
        "logits_processor": [_custom],
    },
}


@pytest.mark.parametrize("inputs", [ONE, PADDED], ids=["one row", "padded"])
@pytest.mark.parametrize("name", STOPS)
def test_stopping_criteria_end_rows_where_generate_ends_them(name: str, inputs: Any) -> None:
    agree(model_of("llama"), inputs, STOPS[name])


def test_criteria_and_processors_see_each_position_once() -> None:
    model, shown = tiny_model("llama"), dict[str, list[list[int]]]()
    function = Decode(policy="retrieval", budget=8)
    teach(engine_of(model), [*ONE["input_ids"][0].tolist(), *answer()])

    def note(name: str) -> Callable[[Tensor, Tensor], Tensor]:
        def processor(ids: Tensor, scores: Tensor) -> Tensor:
            shown.setdefault(name, []).extend(ids.tolist())
            return scores

        return processor

    for name, more in (("plain", {}), ("ours", {"custom_generate": function})):
        stop = _Stop(answer()[7])
        settings = {"logits_processor": [note(name)], "stopping_criteria": [stop]}
        generate(model, ONE, settings, **more)
        shown[f"{name} criteria"] = stop.seen
    assert shown["ours"] == shown["plain"]
    assert shown["ours criteria"] == shown["plain criteria"]
    assert len(shown["ours"]) == 8
    stats = function.last_results[0].stats
    assert stats.trimmed > 0  # the stop fell inside a block


def test_scores_and_logits_are_returned() -> None:
    settings: dict[str, Any] = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "repetition_penalty": 1.5,
        "eos_token_id": [answer()[9], 255],
    }
    plain = generate(model_of("llama"), ONE, settings)
    ours = generate(model_of("llama"), ONE, settings, custom_generate=decode)
    assert type(ours) is type(plain)
    assert ours.sequences.tolist() == plain.sequences.tolist()
    for name in ("scores", "logits"):
        assert len(ours[name]) == len(plain[name])
        torch.testing.assert_close(
            torch.stack(ours[name]), torch.stack(plain[name]), atol=1e-3, rtol=1e-3
        )
    padded = generate(model_of("llama"), PADDED, settings, custom_generate=decode)
    assert {each.shape for each in padded.scores} == {(3, 256)}
    bare = {"return_dict_in_generate": True}
    assert generate(model_of("llama"), ONE, bare, custom_generate=decode).scores is None


# Negative controls: each takes something away from the decoding function.


def _without(**nothing: Any) -> Callable[..., Any]:
    def broken(model: Any, input_ids: Tensor, **arguments: Any) -> Any:
        return Decode()(model, input_ids, **{**arguments, **nothing})

    return broken


def _changed_last(model: Any, input_ids: Tensor, **arguments: Any) -> Any:
    out = Decode()(model, input_ids, **arguments)
    assert isinstance(out, Tensor)
    out[-1, -1] ^= 1
    return out


def _longer(model: Any, input_ids: Tensor, **arguments: Any) -> Any:
    out = Decode()(model, input_ids, **arguments)
    assert isinstance(out, Tensor)
    return torch.cat([out, out[:, -1:]], dim=1)


def _unstopped(model: Any, input_ids: Tensor, **arguments: Any) -> Any:
    criteria = [each for each in arguments["stopping_criteria"] if not isinstance(each, _Stop)]
    return Decode()(model, input_ids, **{**arguments, "stopping_criteria": criteria})


CONTROLS: dict[str, tuple[Any, Any, Settings]] = {
    "token": (_changed_last, ONE, {}),
    "length": (_longer, ONE, {}),
    "mask": (_without(attention_mask=None, position_ids=None), PADDED, {}),
    "processors": (_without(logits_processor=[]), ONE, {"repetition_penalty": 1.7}),
    "criteria": (_unstopped, ONE, STOPS["one token"]),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_broken_decoding_function_is_noticed(name: str) -> None:
    function, inputs, settings = CONTROLS[name]
    with pytest.raises(AssertionError):
        agree(model_of("llama"), inputs, settings, function)


CHANGING = ["minimum", "repetition", "single tokens", "bad words", "bias", "suppressed", "allowed"]


@pytest.mark.parametrize("name", [*CHANGING, "prompt penalty", "own processor", "own warper"])
def test_the_settings_compared_change_the_answer(name: str) -> None:
    """Else agreement would say nothing of them."""
    with_it = generate(model_of("llama"), ONE, SETTINGS[name])
    assert with_it[0, 7:].tolist() != answer()


def test_outputs_are_filled_with_the_pad_token() -> None:
    ends = {"eos_token_id": [answer()[2], 255], "pad_token_id": 17}
    out = generate(model_of("llama"), PADDED, ends, custom_generate=decode)
    assert out.shape == (3, 12 + COUNT)
    assert out[0, 12 + 3 :].eq(17).all()
