"""The format of EAGLE-3's authors: `midlayer.*`, one flat config.json.

Facts from SafeAILab/EAGLE, `eagle/model/cnets.py` and `modeling_llama_kv.py`: one layer, no
biases anywhere, `fc` over 3 features of `target_hidden_size` (else of `hidden_size`); the feature
is the residual; d2t is a table of offsets. The features are taken in front of layers 2, n // 2
and n - 3 of the target's loop: they are layer *inputs*, and the checkpoint never names them.

vLLM (`gpu_model_runner.py`) loads these checkpoints too, and reads ids that stand at the top as
`eagle_aux_hidden_state_layer_ids` as inputs: so do we.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from graft.drafters.eagle3.facts import TargetFacts
from graft.drafters.eagle3.formats import base
from graft.drafters.eagle3.formats.assemble import assemble_flat
from graft.drafters.eagle3.formats.fields import Fields

NAME = "authors"
SIGNS = "a flat config.json without marks of a trainer (SafeAILab/EAGLE)"
_MARKS = (
    "aux_hidden_states_layer_ids",
    "eagle_config",
    "speculators_config",
    "speculators_model_type",
)


def matches(config: Mapping[str, Any], keys: Collection[str]) -> bool:
    """Whether no other trainer has signed it."""
    marked = any(mark in config for mark in _MARKS)
    return not marked and not any("Eagle3" in name for name in base.architectures(config))


def convert(
    config: Mapping[str, Any], state: Mapping[str, Tensor], target: TargetFacts | None
) -> base.Converted:
    """Configuration and tensors in our words."""
    fields = Fields(config)
    layers = base.Layers(fields.layer_ids("eagle_aux_hidden_state_layer_ids"), shift=0)
    return assemble_flat(fields, state, target, layers, Fields({}))
