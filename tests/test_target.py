"""The target: one forward by parts, features, and a model left as it was."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from graft import target as target_module
from graft.cache import BLOCK
from graft.features import decoder_layers
from graft.target import TransformersTarget
from graft.tree import root_tree
from tests.random_trees import FIVE, make_tree, path_of
from tests.tiny_models import tiny_model

PROMPT = torch.randint(0, 255, (23,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "PREFILL_CHUNK", 7)


def opened(family: str = "llama", **settings: Any) -> TransformersTarget:
    target = TransformersTarget(tiny_model(family), **settings)
    target.open(2, 64)
    return target


def plain(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Logits [n, V] of the model's own forward."""
    logits: Tensor = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0]
    return logits


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_prefill_by_chunks_is_one_forward(family: str) -> None:
    target = opened(family)
    close(target.prefill(0, PROMPT), plain(target.model, PROMPT)[-1])
    assert target.length(0) == len(PROMPT)


@pytest.mark.usefixtures("small_chunks")
def test_prefill_goes_on_where_it_stopped() -> None:
    target = opened()
    target.prefill(1, PROMPT[:9])
    close(target.prefill(1, PROMPT[9:]), plain(target.model, PROMPT)[-1])
    assert (target.length(0), target.length(1)) == (0, len(PROMPT))


@pytest.mark.usefixtures("small_chunks")
def test_an_observer_sees_every_token_with_its_logits_in_order() -> None:
    target, seen = opened(), []
    last = target.prefill(0, PROMPT, lambda tokens, logits: seen.append((tokens, logits)))
    tokens, logits = (torch.cat(part) for part in zip(*seen, strict=True))
    assert tokens.tolist() == PROMPT.tolist()
    close(logits, plain(target.model, PROMPT))
    assert torch.equal(last, logits[-1])


@pytest.mark.usefixtures("small_chunks")
def test_the_output_layer_runs_over_the_whole_prompt_only_for_an_observer() -> None:
    target, rows = opened(), []
    head = target.model.get_output_embeddings()
    head.register_forward_hook(lambda _m, args, _out: rows.append(args[0].shape[1]))
    target.prefill(0, PROMPT)
    assert rows == [1, 1, 1, 1]
    rows.clear()
    target.prefill(1, PROMPT, lambda tokens, logits: None)
    assert rows == [7, 7, 7, 2]


def test_a_tree_gets_the_logits_of_its_paths_for_uneven_sequences() -> None:
    target = opened()
    prompts = [PROMPT[:20], PROMPT[3:8]]
    for slot, prompt in enumerate(prompts):
        target.prefill(slot, prompt)
    tree = make_tree([FIVE, [*FIVE, (4, 3)]], [5, 8])
    seen = target.verify(tree)
    assert seen.features is None
    for row, prompt in enumerate(prompts):
        for node in tree.used[row].nonzero().flatten().tolist():
            path = tree.tokens[row, path_of(tree, row, node)]
            close(seen.logits[row, node], plain(target.model, torch.cat([prompt, path]))[-1])


def test_commit_truncate_and_move_leave_the_right_past() -> None:
    target = opened()
    target.prefill(0, PROMPT[:6])
    target.prefill(1, PROMPT[6:])
    target.verify(make_tree([FIVE, FIVE], [5, 8]))
    target.commit([[2, 4], []])
    assert (target.length(0), target.length(1)) == (9, 18)
    wanted = torch.cat([PROMPT[:6], torch.tensor([5, 7, 9, 1])])
    logits = target.verify(root_tree(torch.tensor([1]))).logits[0, 0]
    close(logits, plain(target.model, wanted)[-1])
    target.move(1, 0)
    target.truncate(0, 17)
    logits = target.verify(root_tree(torch.tensor([2]))).logits[0, 0]
    close(logits, plain(target.model, torch.cat([PROMPT[6:], torch.tensor([2])]))[-1])


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("layers", [(0, 1, 2, 3), (2, 0)])
def test_features_are_the_inputs_of_the_layers_in_the_order_asked_for(
    family: str, layers: tuple[int, ...]
) -> None:
    target = opened(family, feature_layers=layers)
    target.prefill(0, PROMPT[:5])
    features = target.verify(root_tree(PROMPT[5:6])).features
    assert features is not None
    out = target.model(input_ids=PROMPT[:6].unsqueeze(0), output_hidden_states=True)
    norms = [m for n, m in target.model.named_modules() if n in ("model.norm", "transformer.ln_f")]
    parts = features[0, 0].split(64)
    for layer, part in zip(layers, parts, strict=True):
        # The last hidden state that Transformers gives has passed the final norm.
        found = norms[0](part) if layer == 3 else part
        close(found, out.hidden_states[layer][0, -1])


def test_a_layer_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="feature layer 4: this model has layers 0 to 3"):
        opened(feature_layers=(4,))


def test_decoder_layers_are_found_by_their_number() -> None:
    model = tiny_model("gpt2")
    assert decoder_layers(model) is model.transformer.h
    model.config.n_layer = 7
    with pytest.raises(ValueError, match="no list of 7 decoder layers"):
        decoder_layers(model)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_the_model_stays_as_it_was(family: str) -> None:
    model = tiny_model(family)
    prompt = PROMPT.unsqueeze(0)

    def own() -> Tensor:
        out: Tensor = model.generate(prompt, max_new_tokens=9, do_sample=False)
        return out

    name, before, logits = model.config._attn_implementation, own(), plain(model, PROMPT)
    target = TransformersTarget(model)
    target.open(1, 64)
    target.prefill(0, PROMPT)
    target.verify(make_tree([FIVE], [5]))
    assert model.config._attn_implementation == name
    assert torch.equal(own(), before)
    assert torch.equal(plain(model, PROMPT), logits)


def test_the_model_is_restored_after_an_error() -> None:
    target = opened()
    name = target.model.config._attn_implementation
    with pytest.raises(IndexError):
        target.prefill(0, torch.tensor([10**6]))
    assert target.model.config._attn_implementation == name


def test_rows_behind_the_last_position_are_clamped_to_it() -> None:
    # GPT-2 looks positions up in a table, where one too many is an error.
    target = TransformersTarget(tiny_model("gpt2", n_positions=8), max_context=8)
    target.open(1, 8)
    target.prefill(0, PROMPT[:7])
    logits = target.verify(make_tree([[(0, 6), (1, 7), (2, 8)]], [5])).logits
    wanted = plain(target.model, torch.cat([PROMPT[:7], torch.tensor([5])]))[-1]
    close(logits[0, 0], wanted)


def test_open_reuses_the_storage_that_fits() -> None:
    target = opened()
    target.prefill(0, PROMPT)
    storage = target.cache._storage[0]
    target.open(2, BLOCK)
    assert target.cache._storage[0] is storage
    assert (target.length(0), target.length(1)) == (0, 0)
    close(target.prefill(0, PROMPT[4:]), plain(target.model, PROMPT[4:])[-1])
    target.open(2, BLOCK + 1)
    assert target.cache.capacity == 2 * BLOCK
    target.open(3, BLOCK)
    assert target.cache.slots == 3


def test_the_cache_is_there_only_when_opened() -> None:
    target = TransformersTarget(tiny_model("llama"))
    with pytest.raises(AssertionError, match=r"open\(\) comes first"):
        target.prefill(0, PROMPT)


def test_a_prompt_longer_than_the_room_makes_room() -> None:
    target = opened()
    long = PROMPT.repeat(12)
    close(target.prefill(0, long), plain(target.model, long)[-1])
    assert target.cache.capacity == 2 * BLOCK


def test_a_target_leaves_nothing_on_a_model_that_outlives_it() -> None:
    model = tiny_model("llama")
    seen = TransformersTarget(model, feature_layers=(0, 3))
    layers = decoder_layers(model)
    assert layers[0]._forward_pre_hooks
    gone = weakref.ref(seen)
    del seen
    gc.collect()
    assert gone() is None
    assert not layers[0]._forward_pre_hooks
    assert not layers[-1]._forward_hooks
