"""Features: hidden states of chosen layers, as a model's forward passes them. [EAGLE-3]

They are the inputs of decoder layers, by number; the number of layers itself stands for the input
of the final norm. It knows models, not what features are good for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel


class FeatureHook:
    """A hook that reads hidden states and changes nothing: a kind of its own, so that it can be
    told from those that change what a model computes."""

    def __init__(self, index: int, kept: dict[int, Tensor]) -> None:
        self._index, self._kept = index, kept


class _Given(FeatureHook):
    """Keeps what a layer is given."""

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._kept[self._index] = args[0] if args else kwargs["hidden_states"]


class _Left(FeatureHook):
    """Keeps what a layer leaves."""

    def __call__(self, module: nn.Module, args: Any, out: Any) -> None:
        self._kept[self._index] = out[0] if isinstance(out, tuple) else out


def hook_features(
    model: PreTrainedModel, wanted: Sequence[int], kept: dict[int, Tensor]
) -> list[RemovableHandle]:
    """Let each forward leave the features of `wanted` layers in `kept`.

    Raises:
        ValueError: for a layer that there is not.
    """
    layers = decoder_layers(model) if wanted else nn.ModuleList()
    if absent := [index for index in wanted if not 0 <= index <= len(layers)]:
        raise ValueError(f"feature layer {absent[0]}: this model has layers 0 to {len(layers)}")
    return [
        layers[index].register_forward_pre_hook(_Given(index, kept), with_kwargs=True)
        if index < len(layers)
        else layers[-1].register_forward_hook(_Left(index, kept))
        for index in wanted
    ]


def unhook(hooks: Sequence[RemovableHandle]) -> None:
    """Take hooks off again."""
    for hook in hooks:
        hook.remove()


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The list of the model's decoder layers, whatever its attribute is called."""
    count = model.config.get_text_config().num_hidden_layers
    found = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if not found:
        raise ValueError(f"{type(model).__name__}: no list of {count} decoder layers found")
    return found[0]
