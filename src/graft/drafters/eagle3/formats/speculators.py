"""The format of vLLM's speculators library: `layers.0.*`, a nested `transformer_layer_config`.

Facts from vllm-project/speculators, `models/eagle3/config.py` and `core.py`, and vLLM,
`transformers_utils/configs/speculators/algos.py`: the draft layer's fields stand in
`transformer_layer_config`, which leaves out whatever equals the default of its model type; the
flags and `draft_vocab_size` stand at the top. `eagle_aux_hidden_state_layer_ids` are read by vLLM
as layer *inputs*, and the default is 2, n // 2, n - 3. `norm_before_fc` brings `input_norm`,
`fc_norm` a norm per feature. Biases are built where the layer's configuration asks for them, and
a Qwen 3 layer norms its heads.

`norm_before_residual` is false by default in speculators and true in vLLM: a checkpoint that does
not state it is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import AutoConfig

from graft.drafters.eagle3.errors import HeadError
from graft.drafters.eagle3.facts import TargetFacts
from graft.drafters.eagle3.formats import base
from graft.drafters.eagle3.formats.assemble import assemble, read_flags
from graft.drafters.eagle3.formats.fields import Fields
from graft.drafters.eagle3.formats.shape import model_type

NAME = "speculators"
SIGNS = "speculators_model_type eagle3 (vLLM speculators)"
_LAYER = "transformer_layer_config"
_SHAPE = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
)


def matches(config: Mapping[str, Any], keys: Collection[str]) -> bool:
    """Whether the library wrote it."""
    return "speculators_config" in config or "speculators_model_type" in config


def convert(
    config: Mapping[str, Any], state: Mapping[str, Tensor], target: TargetFacts | None
) -> base.Converted:
    """Configuration and tensors in our words."""
    top = Fields(config)
    top.text("speculators_model_type")
    if top.flag("norm_before_residual") is None:
        raise HeadError(
            "config.json does not state norm_before_residual, for which vLLM and speculators have "
            "opposite defaults; add the value that the head was trained with"
        )
    layer = _with_defaults(top.part(_LAYER))
    layers = base.Layers(top.layer_ids("eagle_aux_hidden_state_layer_ids"), shift=0)
    flags = read_flags(top, Fields({}))
    made = assemble(layer, top, state, target, layers, flags, biased=True)
    return replace(made, notes=(*made.notes, *base.outputs_written_as_inputs(layers, target)))


def _with_defaults(layer: Fields) -> Fields:
    """Fields that were left out, since they equal the defaults of the model type."""
    given = {name: layer.values[name] for name in _SHAPE if layer.values.get(name) is not None}
    missing = [name for name in _SHAPE if name not in given]
    kind = model_type(layer)
    if not missing:
        return layer
    whole: Any = AutoConfig.for_model(kind, **given)
    found = {name: getattr(whole, name, None) for name in missing}
    found = {name: value for name, value in found.items() if value is not None}
    completed = Fields({**layer.values, **found}, layer.where)
    listed = ", ".join(f"{name} {value}" for name, value in found.items())
    completed.notes.append(f"defaults of {kind}: {listed}")
    return completed
