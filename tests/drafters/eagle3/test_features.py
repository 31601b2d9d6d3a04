"""Which of the target's layers a head reads: each format against a real target's hidden states.

Equal logits on equal inputs do not show a wrong layer: here the inputs are taken as each project
takes them, by hand, and as the loader tells `TransformersTarget` to.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from graft.drafters.eagle3.loader import HeadError, load_head
from graft.target import TransformersTarget
from tests.tiny_heads import (
    LAYERS,
    WRITERS,
    Config,
    Edit,
    Tensors,
    run_head,
    tiny_facts,
    tiny_head,
    write_angelslim,
    write_authors,
    write_specforge,
    write_speculators,
)
from tests.tiny_models import tiny_model

TOKENS = torch.arange(3, 15)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model("llama", num_hidden_layers=LAYERS)


def inputs_of(model: PreTrainedModel, layers: list[int]) -> Tensor:
    """As SafeAILab's loop, vLLM and speculators do: the state in front of a layer."""
    with torch.no_grad():
        states = model(TOKENS[None], output_hidden_states=True).hidden_states
    return torch.cat([states[i][0] for i in layers], dim=-1)


def outputs_of(model: PreTrainedModel, layers: list[int]) -> Tensor:
    """As SpecForge and AngelSlim do: what a layer returns."""
    found: dict[int, Tensor] = {}

    def keep(index: int) -> Callable[..., None]:
        def hook(_module: Any, _arguments: Any, out: Any) -> None:
            found[index] = (out[0] if isinstance(out, tuple) else out).detach()

        return hook

    modules: Any = model.model.layers
    hooks = [modules[i].register_forward_hook(keep(i)) for i in layers]
    with torch.no_grad():
        model(TOKENS[None])
    for hook in hooks:
        hook.remove()
    return torch.cat([found[i].view(len(TOKENS), -1) for i in layers], dim=-1)


def silent(config: Config, _: Tensors) -> None:
    """No ids at all: the format's default."""
    config.get("eagle_config", {}).pop("eagle_aux_hidden_state_layer_ids", None)
    config.pop("aux_hidden_states_layer_ids", None)
    config.pop("eagle_aux_hidden_state_layer_ids", None)


# How a project takes the features: with the ids written as here (2, 4, 5), and by default.
READ = {
    "authors": (inputs_of, None, [2, LAYERS // 2, LAYERS - 3]),
    "specforge": (outputs_of, [0, 3, 5], [1, LAYERS // 2 - 1, LAYERS - 4]),
    "angelslim": (outputs_of, [0, 3, 5], [1, LAYERS // 2 - 1, LAYERS - 4]),
    "speculators": (inputs_of, [1, 4, 6], [2, LAYERS // 2, LAYERS - 3]),
}
CASES = [(form, written) for form in WRITERS for written in (True, False) if form != "authors"]
CASES += [("authors", False)]


def difference(path: Path, model: PreTrainedModel, wanted: Tensor, reference: Any) -> float:
    """Largest difference of logits: the loaded head on the layers that it asks for, against the
    head that was written on the project's own features."""
    head = load_head(path, tiny_facts(), dtype=torch.float32).head
    target = TransformersTarget(model, feature_layers=head.config.feature_layers)
    target.open(1, 64)
    seen: list[Tensor] = []
    with torch.no_grad():
        target.prefill(0, TOKENS, absorb=seen.append)
        embeddings = model.get_input_embeddings()(TOKENS)
        found = run_head(head, torch.cat(seen), embeddings)
        return float((found - run_head(reference, wanted, embeddings)).abs().max())


@pytest.mark.parametrize(("form", "written"), CASES)
def test_the_layers_are_those_of_the_project(
    form: str, written: bool, model: PreTrainedModel, tmp_path: Path
) -> None:
    take, ids, default = READ[form]
    layers = ids if written and ids else default
    reference = tiny_head(2, feature_layers=(1, 4, 6) if written else (2, 4, 5))
    WRITERS[form](tmp_path, reference, edit=None if written else silent)
    assert difference(tmp_path, model, take(model, layers), reference) < 1e-4


def _shift(by: int) -> Edit:
    def edit(config: Config, _: Tensors) -> None:
        nested, name = config.get("eagle_config", config), "eagle_aux_hidden_state_layer_ids"
        name = name if name in nested else "aux_hidden_states_layer_ids"
        nested[name] = [i + by for i in nested[name]]

    return edit


@pytest.mark.parametrize("form", ["specforge", "angelslim", "speculators"])
@pytest.mark.parametrize("by", [-1, 1])
def test_control_a_shifted_layer_shows(
    form: str, by: int, model: PreTrainedModel, tmp_path: Path
) -> None:
    take, _, default = READ[form]
    reference = tiny_head(2)
    WRITERS[form](tmp_path, reference, edit=_shift(by))
    assert difference(tmp_path, model, take(model, default), reference) > 1e-2


def test_the_last_layers_output_is_the_final_norms_input(
    model: PreTrainedModel, tmp_path: Path
) -> None:
    reference = tiny_head(2, feature_layers=(2, 4, LAYERS))
    write_specforge(tmp_path, reference)
    wanted = outputs_of(model, [1, 3, LAYERS - 1])
    assert difference(tmp_path, model, wanted, reference) < 1e-4


def test_ids_at_the_top_are_inputs_as_vllm_reads_them(tmp_path: Path) -> None:
    def at_the_top(config: Config, _: Tensors) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = [1, 4, 6]

    write_authors(tmp_path, tiny_head(), edit=at_the_top)
    report = load_head(tmp_path, tiny_facts()).report
    assert report.feature_layers == report.written_layers == (1, 4, 6)


def test_inputs_that_are_specforges_outputs_get_a_note(tmp_path: Path) -> None:
    write_speculators(tmp_path, tiny_head(feature_layers=(1, 3, 4)))
    assert any("SpecForge" in note for note in load_head(tmp_path, tiny_facts()).report.notes)


def test_layers_named_twice_must_agree(tmp_path: Path) -> None:
    def twice(config: Config, _: Tensors) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = [1, 4, 6]

    write_specforge(tmp_path, tiny_head(), edit=twice)
    with pytest.raises(HeadError, match="names feature layers twice"):
        load_head(tmp_path, tiny_facts())


def test_angelslims_silence_gets_a_note(tmp_path: Path) -> None:
    write_angelslim(tmp_path, tiny_head(), edit=silent)
    assert any("n - 2" in note for note in load_head(tmp_path, tiny_facts()).report.notes)


def test_layers_beyond_the_target_are_refused(tmp_path: Path) -> None:
    write_speculators(tmp_path, tiny_head())
    with pytest.raises(HeadError, match="input of layer 5, but tiny has layers 0 to 3"):
        load_head(tmp_path, tiny_facts(num_hidden_layers=4))


def test_default_layers_need_a_deep_enough_target(tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head())
    with pytest.raises(HeadError, match="which has 2 layers"):
        load_head(tmp_path, tiny_facts(num_hidden_layers=2))
