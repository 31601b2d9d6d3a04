"""Transformers' own decoding: the tokens are its own, and forwards and times are counted right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel

from graft.bench.outside import Asked, Outside, generate
from tests.exactness.helpers import family_engine
from tests.tiny_models import EOS_ID, tiny_model

PROMPT = [5, 6, 7, 8, 9] * 6  # it repeats itself, so lookup has something to copy
LENGTH = 24


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def looping() -> PreTrainedModel:
    """Goes on with the five tokens of the prompt: the next token follows from the last one."""
    made = tiny_model("llama", num_hidden_layers=1)
    layers: Any = made.model.layers
    for layer in layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    embeddings: Any = made.get_input_embeddings().weight
    outputs: Any = made.get_output_embeddings().weight
    outputs.zero_()
    for token in range(5, 10):
        outputs[5 + (token - 4) % 5] = embeddings[token]
    return made


def ask(model: PreTrainedModel, prompt: Sequence[int] = PROMPT, **changes: Any) -> Outside:
    options: dict[str, Any] = {
        "lookup": 0,
        "max_new_tokens": LENGTH,
        "temperature": 0.0,
        "eos_token_ids": (EOS_ID,),
        "seed": 0,
    }
    return generate(model, Asked(prompt, **{**options, **changes}))


@contextmanager
def counted(model: PreTrainedModel) -> Iterator[list[int]]:
    """Widths of the model's forwards."""
    widths: list[int] = []

    def look(_module: nn.Module, args: Any, kwargs: Any, _out: Any) -> None:
        widths.append((kwargs["input_ids"] if "input_ids" in kwargs else args[0]).shape[1])

    hook = model.register_forward_hook(look, with_kwargs=True)
    try:
        yield widths
    finally:
        hook.remove()


@pytest.mark.parametrize("lookup", [0, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("repeats", [False, True])
def test_rounds_are_the_forwards_after_the_first(
    model: PreTrainedModel,
    looping: PreTrainedModel,
    repeats: bool,
    temperature: float,
    lookup: int,
) -> None:
    asked = looping if repeats else model
    with counted(asked) as widths:
        found = ask(asked, lookup=lookup, temperature=temperature)
    assert found.rounds == len(widths) - 1
    assert found.tau * found.rounds + found.first_tokens == pytest.approx(len(found.token_ids))
    assert len(found.token_ids) == LENGTH
    assert found.finish_reason == "length"


def test_lookup_copies(looping: PreTrainedModel) -> None:
    plain, copied = ask(looping), ask(looping, lookup=4)
    assert copied.token_ids == plain.token_ids
    assert set(plain.token_ids) == set(range(5, 10))
    assert (plain.tau, plain.first_tokens) == (1.0, 1)
    # The first forward copies already: its tokens are those of no round.
    assert copied.first_tokens == 5
    assert 4 < copied.tau <= 5


@pytest.mark.parametrize("lookup", [0, 4])
def test_greedy_tokens_are_those_of_generate_and_of_plain_decoding(
    model: PreTrainedModel, lookup: int
) -> None:
    ids = torch.tensor([PROMPT])
    theirs = model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=LENGTH
    )
    found = ask(model, lookup=lookup)
    assert found.token_ids == theirs[0, len(PROMPT) :].tolist()
    ours = family_engine("llama").generate(PROMPT, policy="plain", max_new_tokens=LENGTH)
    assert found.token_ids == ours.token_ids


def test_times_are_in_order(model: PreTrainedModel) -> None:
    found = ask(model)
    assert 0 < found.time_to_first_token < found.latency_seconds
    single = ask(model, max_new_tokens=1)
    assert single.time_to_first_token == single.latency_seconds
    assert (single.rounds, single.tau) == (0, 1.0)


@pytest.mark.parametrize("lookup", [0, 4])
def test_the_seed_decides_and_nothing_else_changes(model: PreTrainedModel, lookup: int) -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first, other = (ask(model, lookup=lookup, temperature=1.0, seed=s) for s in (1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    assert ask(model, lookup=lookup, temperature=1.0, seed=1).token_ids == first.token_ids
    assert first.token_ids != other.token_ids != ask(model).token_ids


@pytest.mark.parametrize("lookup", [0, 4])
def test_an_end_token_ends(model: PreTrainedModel, looping: PreTrainedModel, lookup: int) -> None:
    tokens = ask(model).token_ids
    end = next(t for i, t in enumerate(tokens) if i > 2 and t not in tokens[:i])
    found = ask(model, lookup=lookup, eos_token_ids=(254, end))
    assert found.token_ids == tokens[: tokens.index(end) + 1]
    assert found.finish_reason == "stop"
    # In the middle of what was copied, too.
    loop = ask(looping, lookup=lookup, eos_token_ids=(7,)).token_ids
    assert loop == [5, 6, 7]


def test_without_an_end_token(model: PreTrainedModel) -> None:
    wanted = ask(model).token_ids
    # The model's own end token counts no more than the rest of its settings.
    own = GenerationConfig(eos_token_id=wanted[2])
    kept, model.generation_config = model.generation_config, own
    try:
        assert ask(model, eos_token_ids=()).token_ids == wanted
    finally:
        model.generation_config = kept


@pytest.mark.parametrize(
    "own", [{"repetition_penalty": 1.9}, {"suppress_tokens": list(range(200))}, {"top_k": 1}]
)
def test_settings_beside_the_model_do_not_count(
    model: PreTrainedModel, own: dict[str, Any]
) -> None:
    temperature = 1.0 if "top_k" in own else 0.0
    wanted = ask(model, temperature=temperature).token_ids
    kept, model.generation_config = model.generation_config, GenerationConfig(**own)
    try:
        assert ask(model, temperature=temperature).token_ids == wanted
        assert model.generation_config.to_diff_dict().items() >= own.items()  # left as it was
        ids = torch.tensor([PROMPT])
        options = {"max_new_tokens": LENGTH, "do_sample": False, "pad_token_id": 0}
        theirs = model.generate(ids, **options)[0, len(PROMPT) :].tolist()  # type: ignore[operator]
        assert temperature or theirs != wanted  # they would have counted
    finally:
        model.generation_config = kept
