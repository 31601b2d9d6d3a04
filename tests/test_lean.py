"""The lean forward is the model's own, bit for bit, where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from graft import lean
from graft.lean import KINDS, LeanForward
from graft.linear import pack_linears
from graft.target import TransformersTarget
from tests.random_trees import FIVE, make_tree
from tests.tiny_models import tiny_model

PROMPTS = [torch.arange(40, 63), torch.arange(7)]
TREE = make_tree([FIVE, [(0, 4), (1, 9)]], [1, 2])
LAYERS = (0, 1, 3)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def heard(model: PreTrainedModel, *, by_lean: bool) -> list[Tensor]:
    """What two forwards over a tree say: logits and features, of committed nodes too."""
    target = TransformersTarget(model, feature_layers=LAYERS)
    target.open(2, 64)
    assert target._lean is not None
    if not by_lean:
        target._lean = None
    for slot, prompt in enumerate(PROMPTS):
        target.prefill(slot, prompt)
    out: list[Tensor] = []
    for _ in range(2):
        seen = target.verify(TREE)
        assert seen.features is not None
        out += [seen.logits, seen.features]
        target.commit([[1], [1, 2]])
    return out


def half(model: PreTrainedModel) -> PreTrainedModel:
    model.bfloat16()
    return model


def packed(model: PreTrainedModel) -> PreTrainedModel:
    pack_linears(model, "fp16")
    return model


def biased(model: PreTrainedModel) -> PreTrainedModel:
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.normal_()
    return model


@pytest.mark.parametrize("change", [biased, half, packed])
@pytest.mark.parametrize("family", KINDS)
def test_it_is_the_models_own_forward(
    family: str, change: Callable[[PreTrainedModel], PreTrainedModel]
) -> None:
    model = change(tiny_model(family))
    for ours, theirs in zip(heard(model, by_lean=True), heard(model, by_lean=False), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("scaling", ["linear", "llama3", "yarn"])
def test_positions_may_be_scaled(scaling: str) -> None:
    more: dict[str, Any] = {"rope_type": scaling, "factor": 4.0, "rope_theta": 10000.0}
    more |= {
        "original_max_position_embeddings": 16,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    model = tiny_model("llama", rope_parameters=more)
    for ours, theirs in zip(heard(model, by_lean=True), heard(model, by_lean=False), strict=True):
        assert torch.equal(ours, theirs)


def test_the_comparison_notices_another_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    model = tiny_model("llama")
    theirs = heard(model, by_lean=False)
    own = lean._Norm.__call__
    monkeypatch.setattr(lean._Norm, "__call__", lambda self, x: own(self, x) * (1 + 1e-6))
    ours = heard(model, by_lean=True)
    assert not all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "phi3", "gpt2", "olmo2", "qwen3_moe"])
def test_others_are_left_to_transformers(family: str) -> None:
    assert LeanForward.of(tiny_model(family)) is None


def _hooked(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda _m, _a, out: out * 2)


def _hooked_before(model: Any) -> None:
    model.model.layers[1].register_forward_pre_hook(lambda _m, args: args)


def _patched(model: Any) -> None:
    model.model.norm.forward = lambda x: x


def _wrapped(model: Any) -> None:
    model.model.layers[0].self_attn.q_proj = nn.Sequential(model.model.layers[0].self_attn.q_proj)


def _derived(model: Any) -> None:
    own = type(model.model.layers[0])
    model.model.layers[0].__class__ = type("Mine", (own,), {})


def _wide(model: Any) -> None:
    model.model.norm.to(torch.float64)


def _activation(model: Any) -> None:
    model.config.hidden_act = "gelu"


@pytest.mark.parametrize(
    "change", [_hooked, _hooked_before, _patched, _wrapped, _derived, _wide, _activation]
)
def test_a_changed_model_is_left_to_transformers(change: Callable[[Any], None]) -> None:
    model = tiny_model("llama")
    assert LeanForward.of(model) is not None
    change(model)
    assert LeanForward.of(model) is None


def test_a_model_may_be_changed_between_two_generations() -> None:
    target = TransformersTarget(tiny_model("llama"))
    target.open(1, 16)
    before = target.prefill(0, PROMPTS[1])
    _hooked(target.model)
    target.open(1, 16)
    assert target._lean is None
    assert not torch.equal(target.prefill(0, PROMPTS[1]), before)


def test_hooks_for_features_are_no_change() -> None:
    """Two engines may share a model, one with a head and one without."""
    model = tiny_model("llama")
    first, second = TransformersTarget(model, feature_layers=LAYERS), TransformersTarget(model)
    assert first._lean is not None
    assert second._lean is not None
