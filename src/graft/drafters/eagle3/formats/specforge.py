"""SpecForge's and SGLang's format: `midlayer.*`, a flat config.json with an `eagle_config`.

Facts: SpecForge (`specforge/modeling/target/eagle3_target_model.py`) takes the features from
forward hooks of the layers it names, by default 1, n // 2 - 1 and n - 4: they are layer
*outputs*, hence one more as our inputs. It writes them as
`eagle_config.eagle_aux_hidden_state_layer_ids`, and SGLang (`set_eagle3_layers_to_capture`) adds
1 to them; vLLM, where it reads that object, is said not to [second-hand]. NVIDIA's ModelOpt
writes the same object. `fc_norm` and `norm_output` (EAGLE-3.1) stand at the top; NVIDIA puts
`norm_before_fc` into `eagle_config` (vLLM PR 42143). Like the authors' code, `llama3_eagle.py`
builds no biases, whatever the configuration says.

Ids at the top (`eagle_aux_hidden_state_layer_ids`) are vLLM's word, and inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from graft.drafters.eagle3.errors import HeadError
from graft.drafters.eagle3.facts import TargetFacts
from graft.drafters.eagle3.formats import base
from graft.drafters.eagle3.formats.assemble import assemble_flat
from graft.drafters.eagle3.formats.fields import Fields

NAME = "specforge"
SIGNS = "architectures LlamaForCausalLMEagle3, or an eagle_config (SpecForge, SGLang, ModelOpt)"
_IDS = "eagle_aux_hidden_state_layer_ids"


def matches(config: Mapping[str, Any], keys: Collection[str]) -> bool:
    """Whether its class is SGLang's, or it has the object that SGLang reads."""
    if "speculators_config" in config or "speculators_model_type" in config:
        return False
    named = any(name.endswith("Eagle3") for name in base.architectures(config))
    return "eagle_config" in config or (named and "aux_hidden_states_layer_ids" not in config)


def convert(
    config: Mapping[str, Any], state: Mapping[str, Tensor], target: TargetFacts | None
) -> base.Converted:
    """Configuration and tensors in our words."""
    fields = Fields(config)
    nested = fields.part("eagle_config")
    layers = _layers(fields, nested)
    made = assemble_flat(fields, state, target, layers, nested)
    return replace(made, notes=(*made.notes, *base.outputs_written_as_inputs(layers, target)))


def _layers(fields: Fields, nested: Fields) -> base.Layers:
    outputs, inputs = nested.layer_ids(_IDS), fields.layer_ids(_IDS)
    if outputs is None:
        return base.Layers(inputs, shift=0)
    # Some trainers repeat the outputs at the top, others write the inputs there.
    if inputs not in (None, outputs, tuple(i + 1 for i in outputs)):
        raise HeadError(
            f"{fields.where} names feature layers twice: outputs {outputs} in eagle_config and "
            f"{inputs} at the top; keep the ones that the head was trained with"
        )
    return base.Layers(outputs, shift=1)
