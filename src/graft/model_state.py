"""The state of a model: whether it is still what it was. It knows torch's modules alone."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from torch import nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_PLAIN = (bool, int, float, str, type(None))


def state_of(model: nn.Module) -> Hashable:
    """Equal where a model has the same parts with the same settings and hooks, and weights in the
    same places. Weights that were changed where they are make no difference: whoever runs the
    model sees them."""
    modules = list(model.modules())
    configs = {id(c): c for m in modules if (c := vars(m).get("config")) is not None}
    settings = tuple(_plain(vars(config)) for config in configs.values())
    return settings, tuple(_part(module) for module in modules)


def _plain(named: Mapping[str, Any]) -> Hashable:
    return tuple((name, value) for name, value in named.items() if isinstance(value, _PLAIN))


def _part(module: nn.Module) -> Hashable:
    own = vars(module)
    tensors = [*own["_parameters"].values(), *own["_buffers"].values()]
    return (
        id(module),
        type(module),
        own.get("forward"),
        _plain(own),
        # By their numbers, which torch gives to no other hook; an address may be used again.
        tuple(number for hooks in _HOOKS for number in own[hooks]),
        tuple(None if t is None else (t.data_ptr(), t.dtype) for t in tensors),
    )
