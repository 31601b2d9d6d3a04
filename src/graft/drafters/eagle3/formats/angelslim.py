"""AngelSlim's format, and vLLM's flat one: architectures Eagle3LlamaForCausalLM.

Facts from Tencent/AngelSlim, `angelslim/compressor/speculative`: tensors as the authors name
them. Where `aux_hidden_states_layer_ids` is given, the trainer (`target_model_wrapper.py`) takes
`hidden_states[id + 1]`: layer *outputs*, hence one more as our inputs. Where it is not, AngelSlim's
own inference (`modeling_qwen3_kv.py`) takes the inputs of 2, n // 2 and n - 3 as the authors do,
and so do the servers. (Its trainer counts the embedding as a layer in its default and so reads
n - 2 for the last one; a note says so.) `tie_word_embeddings` is copied from the target and means
nothing where the head has an lm_head of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from graft.drafters.eagle3.facts import TargetFacts
from graft.drafters.eagle3.formats import base
from graft.drafters.eagle3.formats.assemble import assemble_flat
from graft.drafters.eagle3.formats.fields import Fields

NAME = "angelslim"
SIGNS = "architectures Eagle3LlamaForCausalLM, or aux_hidden_states_layer_ids (AngelSlim, vLLM)"
_OUTPUTS = "aux_hidden_states_layer_ids"
_INPUTS = "eagle_aux_hidden_state_layer_ids"
_TRAINER = (
    "AngelSlim's trainer may have read the input of layer n - 2, not n - 3, for the last feature; "
    "if acceptance is low, write aux_hidden_states_layer_ids into config.json"
)


def matches(config: Mapping[str, Any], keys: Collection[str]) -> bool:
    """Whether its class is vLLM's, or it has the list of layers that AngelSlim reads."""
    if "speculators_config" in config or "speculators_model_type" in config:
        return False
    named = any(name.startswith("Eagle3") for name in base.architectures(config))
    return _OUTPUTS in config or (named and "eagle_config" not in config)


def convert(
    config: Mapping[str, Any], state: Mapping[str, Tensor], target: TargetFacts | None
) -> base.Converted:
    """Configuration and tensors in our words."""
    fields = Fields(config)
    outputs, inputs = fields.layer_ids(_OUTPUTS), fields.layer_ids(_INPUTS)
    layers = base.Layers(inputs, shift=0) if outputs is None else base.Layers(outputs, shift=1)
    made = assemble_flat(fields, state, target, layers, Fields({}))
    notes = base.outputs_written_as_inputs(layers, target)
    if layers.written is None:
        notes.append(_TRAINER)
    return replace(made, notes=(*made.notes, *notes))
