"""What converters make, and what they agree on: names of tensors and feature layers.

A converter is a pure function from a checkpoint's configuration and tensors to an `Eagle3Config`
and a state dict in the names of `Eagle3Head`, with `d2t` and `t2d` still as they were written.
It decides what a format's words mean; whether the tensors are all there and fit is checked later,
for all formats alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from graft.drafters.eagle3.config import Eagle3Config
from graft.drafters.eagle3.errors import HeadError
from graft.drafters.eagle3.facts import TargetFacts

State = dict[str, Tensor]
FEATURES = 3  # of the target, when a checkpoint does not say how many
UNKNOWN_LAYERS = (-1,) * FEATURES
# Tables that are computed, and copies of the target's matrices that training needs.
_UNWRAPPED = ("lm_head.", "d2t", "t2d", "draft_id_to_target_id")  # never below "model."
_DROPPED = re.compile(r"(^|\.)(rotary_emb\..*|verifier_lm_head\.weight|verifier_norm\.weight)$")


@dataclass(frozen=True)
class Converted:
    """What a converter made of a checkpoint.

    written_layers: the ids of feature layers as the checkpoint has them; None if it has none.
    """

    config: Eagle3Config
    state: State
    written_layers: tuple[int, ...] | None
    notes: tuple[str, ...]


class Format(Protocol):
    """One file of this package."""

    NAME: str
    SIGNS: str  # what it is recognised by, for messages

    def matches(self, config: Mapping[str, Any], keys: Collection[str]) -> bool: ...

    def convert(
        self, config: Mapping[str, Any], state: Mapping[str, Tensor], target: TargetFacts | None
    ) -> Converted: ...


@dataclass(frozen=True)
class Layers:
    """Feature layers: as written, and how many layers the format's ids are behind our inputs."""

    written: tuple[int, ...] | None
    shift: int


def architectures(config: Mapping[str, Any]) -> list[str]:
    """Names of the classes that a checkpoint was written for."""
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def rename(state: Mapping[str, Tensor]) -> State:
    """Tensors under the names of `Eagle3Head`: midlayer and layers.0 are one and the same."""
    names = _names(state)
    twice = [k for k, name in names.items() if list(names.values()).count(name) > 1]
    if twice:
        raise HeadError(f"the checkpoint holds one tensor under several names: {', '.join(twice)}")
    return {name: state[k] for k, name in names.items() if not _DROPPED.search(name)}


def spelling(state: Collection[str]) -> Callable[[str], str]:
    """From names of `Eagle3Head` to those of a checkpoint, as messages must have them.

    A tensor that the checkpoint lacks is called as its neighbours are.
    """
    known = {name: key for key, name in _names(state).items()}
    prefix = _prefix(state)
    keys = [key.removeprefix(prefix) for key in state]
    single = any(re.match(r"midlayer\.(?!\d+\.)", key) for key in keys)
    several = any(re.match(r"midlayer\.\d+\.", key) for key in keys)

    def spell(name: str) -> str:
        if name in known or name.startswith(_UNWRAPPED):
            return known.get(name, name)
        name = re.sub(r"^feature_norms\.", "fc_norm.", name)
        name = re.sub(r"^layers\.0\.", "midlayer.", name) if single else name
        return prefix + (re.sub(r"^layers\.", "midlayer.", name) if several else name)

    return spell


def _prefix(keys: Collection[str]) -> str:
    wrapped = [k for k in keys if not k.startswith(_UNWRAPPED)]
    return "model." if wrapped and all(k.startswith("model.") for k in wrapped) else ""


def _names(keys: Collection[str]) -> dict[str, str]:
    prefix = _prefix(keys)
    return {k: _name(k.removeprefix(prefix)) for k in keys}


def _name(key: str) -> str:
    key = re.sub(r"^midlayer\.(?=\d+\.)", "layers.", key)
    key = re.sub(r"^midlayer\.", "layers.0.", key)
    key = re.sub(r"^fc_norm\.(?=\d+\.)", "feature_norms.", key)
    return "d2t" if key == "draft_id_to_target_id" else key


def default_layers(count: int) -> tuple[int, ...]:
    """EAGLE-3's feature layers in a target of `count` layers: inputs of 2, n // 2 and n - 3."""
    return (2, count // 2, count - 3)


def feature_layers(layers: Layers, target: TargetFacts | None, notes: list[str]) -> tuple[int, ...]:
    """Our inputs: those that are written, else the default ones of the target.

    Raises:
        HeadError: if the target is too shallow for the default ones.
    """
    if layers.written is not None:
        return tuple(i + layers.shift for i in layers.written)
    if target is None:
        notes.append(
            "feature layers are not stated: the inputs of layers 2, n // 2 and n - 3 of a target "
            "of n layers"
        )
        return UNKNOWN_LAYERS
    ids = default_layers(target.num_hidden_layers)
    if len(set(ids)) < FEATURES or min(ids) < 0:
        raise HeadError(
            f"the checkpoint names no feature layers, and the default ones {ids} do not exist in "
            f"{target.name}, which has {target.num_hidden_layers} layers"
        )
    notes.append(f"feature layers are not stated: the inputs of {ids} assumed")
    return ids


def outputs_written_as_inputs(layers: Layers, target: TargetFacts | None) -> list[str]:
    """A note where ids read as inputs are the very ones that SGLang and SpecForge write for
    outputs."""
    if target is None or layers.shift or layers.written is None:
        return []
    if layers.written != tuple(i - 1 for i in default_layers(target.num_hidden_layers)):
        return []
    return [
        f"feature layers {layers.written} are read as inputs, as this format has it, but they are "
        "what SpecForge writes for outputs; if acceptance is low, add 1 to each"
    ]
