"""Tiny EAGLE-3 heads with random weights, and checkpoints of them in every format.

The writers are independent of the library's own `save_head`: they say by hand how each project
names and numbers things. `edit` changes configuration and tensors before they are written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from graft.attention import Step
from graft.cache import KVCache, LayerShape, RowShape
from graft.drafters.eagle3.config import Eagle3Config
from graft.drafters.eagle3.facts import TargetFacts
from graft.drafters.eagle3.head import Eagle3Head
from tests.tiny_models import VOCAB_SIZE, tiny_config

Config = dict[str, Any]
Tensors = dict[str, Tensor]
Edit = Callable[[Config, Tensors], None]
LAYERS = 8  # of the target: deep enough for EAGLE-3's default feature layers, 2, 4 and 5


def tiny_target_config(**overrides: Any) -> Any:
    """Configuration of the target that tiny heads are for."""
    return tiny_config("llama", **{"num_hidden_layers": LAYERS, **overrides})


def tiny_facts(**overrides: Any) -> TargetFacts:
    """Facts of that target; all ids but one are tokens of its tokenizer."""
    facts = TargetFacts("tiny", 64, VOCAB_SIZE, VOCAB_SIZE - 1, LAYERS, None)
    return replace(facts, **overrides)


def tiny_head_config(target_config: Any = None, **overrides: Any) -> Eagle3Config:
    """A head for a target: a quarter of the vocabulary, EAGLE-3's feature layers."""
    target = tiny_target_config() if target_config is None else target_config
    count = target.num_hidden_layers
    fields: Config = {
        "hidden_size": target.hidden_size,
        "target_hidden_size": target.hidden_size,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": target.vocab_size // 4,
        "feature_layers": (2, count // 2, count - 3),
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        "max_position_embeddings": 2048,
    }
    return Eagle3Config(**{**fields, **overrides})


def tiny_head(seed: int = 0, config: Eagle3Config | None = None, **overrides: Any) -> Eagle3Head:
    """A seeded head in fp32: wide weights, norms that differ, a random draft vocabulary.

    The global random state is left as it was.
    """
    config = tiny_head_config(**overrides) if config is None else replace(config, **overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Eagle3Head(config)
        for name, parameter in head.named_parameters():
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
        ids = torch.randperm(config.vocab_size - 1)[: config.draft_vocab_size]
    if config.draft_vocab_size < config.vocab_size:
        head.target_ids = ids.sort().values
    return head.eval().requires_grad_(False)


def head_cache(head: Eagle3Head, capacity: int = 256) -> KVCache:
    """Room for one sequence."""
    config = head.config
    shape = RowShape(config.num_key_value_heads, config.head_dim, head.dtype, torch.device("cpu"))
    return KVCache([LayerShape(shape, shape)] * config.num_hidden_layers, 1, capacity)


def run_head(head: Eagle3Head, features: Tensor, embeddings: Tensor) -> Tensor:
    """Logits [N, D] after a causal pass over features [N, F] and embeddings [N, H], and after one
    more step that feeds h back."""
    count = len(features)
    step = Step(0, [0], torch.ones(1, count, count).tril().bool(), torch.arange(count)[None])
    cache = head_cache(head)
    fused = head.fuse(features[None])
    hidden = head(fused, embeddings[None], torch.arange(count)[None], step, cache)
    cache.commit(0, [range(1, count)])
    row = torch.ones(1, 1, 1, dtype=torch.bool)
    again = Step(0, [count], row, torch.zeros(1, 1, dtype=torch.int64))
    last = head.feedback(hidden[:, -1:])
    more = head(last, embeddings[None, :1], torch.tensor([[count]]), again, cache)
    return head.logits(torch.cat([hidden, more], dim=1))[0]


def head_logits(head: Eagle3Head, count: int = 12) -> Tensor:
    """`run_head` over fixed random inputs."""
    config = head.config
    made = torch.Generator().manual_seed(5)
    width = config.target_hidden_size * len(config.feature_layers)
    features = torch.randn(count, width, generator=made).to(head.dtype)
    return run_head(
        head, features, torch.randn(count, config.hidden_size, generator=made).to(head.dtype)
    )


def same_logits(one: Eagle3Head, other: Eagle3Head) -> bool:
    """Whether two heads say the same. Kernels of some machines round by where weights lie in
    memory, so equal heads may differ in the last bits."""
    return torch.allclose(head_logits(one), head_logits(other), atol=1e-5, rtol=1e-5)


def _tensors(head: Eagle3Head, first: str) -> Tensors:
    state = {k: t.clone() for k, t in head.state_dict().items() if k != "target_ids"}
    named = {}
    for key, tensor in state.items():
        if key.startswith("layers.0."):
            key = first + key.removeprefix("layers.0.")
        if key.startswith("feature_norms."):
            key = "fc_norm." + key.removeprefix("feature_norms.")
        named[key] = tensor
    if head.config.draft_vocab_size < head.config.vocab_size:
        ids = head.target_ids
        named["d2t"] = ids - torch.arange(len(ids))
        named["t2d"] = torch.isin(torch.arange(head.config.vocab_size), ids)
    return named


def _layer(head: Eagle3Head) -> Config:
    config = head.config
    rope = dict(config.rope_parameters)
    theta, kind = rope.pop("rope_theta"), rope.pop("rope_type")
    return {
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": config.hidden_act,
        "rope_theta": theta,
        "rope_scaling": None if kind == "default" else {"rope_type": kind, **rope},
        "max_position_embeddings": config.max_position_embeddings,
        "use_cache": True,
        "bos_token_id": 1,
        "torch_dtype": "float32",
    }


def _flat(head: Eagle3Head, architecture: str) -> Config:
    config = head.config
    made = {**_layer(head), "architectures": [architecture]}
    made["draft_vocab_size"] = config.draft_vocab_size
    if config.target_hidden_size != config.hidden_size:
        made["target_hidden_size"] = config.target_hidden_size
    return made


def _write(path: Path, config: Config, tensors: Tensors, edit: Edit | None, safe: bool) -> None:
    if edit is not None:
        edit(config, tensors)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if safe:
        tensors = {k: t.clone().contiguous() for k, t in tensors.items()}
        save_file(tensors, path / "model.safetensors")
    else:
        torch.save(tensors, path / "pytorch_model.bin")


def write_authors(
    path: Path, head: Eagle3Head, *, safe: bool = True, edit: Edit | None = None
) -> None:
    """SafeAILab/EAGLE: no layer ids, they are always the inputs of 2, n // 2 and n - 3."""
    config = {**_flat(head, "LlamaForCausalLM"), "pretraining_tp": 1}
    _write(path, config, _tensors(head, "midlayer."), edit, safe)


def write_specforge(
    path: Path, head: Eagle3Head, *, safe: bool = True, edit: Edit | None = None
) -> None:
    """SpecForge: ids of layers whose *outputs* are the features, in eagle_config."""
    made = head.config
    config = _flat(head, "LlamaForCausalLMEagle3")
    config["eagle_config"] = {
        "eagle_aux_hidden_state_layer_ids": [i - 1 for i in made.feature_layers],
        "use_aux_hidden_state": True,
        **({"norm_before_fc": True} if made.norm_before_fc else {}),
    }
    flags = {name: getattr(made, name) for name in ("fc_norm", "norm_output")}
    config |= {name: True for name, there in flags.items() if there}
    _write(path, config, _tensors(head, "midlayer."), edit, safe)


def write_angelslim(
    path: Path, head: Eagle3Head, *, safe: bool = True, edit: Edit | None = None
) -> None:
    """AngelSlim: ids of layers whose *outputs* are the features, at the top."""
    config = _flat(head, "Eagle3LlamaForCausalLM")
    config["aux_hidden_states_layer_ids"] = [i - 1 for i in head.config.feature_layers]
    config["tie_word_embeddings"] = True
    _write(path, config, _tensors(head, "midlayer."), edit, safe)


def write_speculators(
    path: Path, head: Eagle3Head, *, safe: bool = True, edit: Edit | None = None
) -> None:
    """speculators: ids of layers whose *inputs* are the features; the layer's fields nested."""
    made = head.config
    kind = "qwen3" if made.qk_norm else "llama"
    layer = {**_layer(head), "model_type": kind, "attention_bias": made.attention_bias}
    layer["mlp_bias"] = made.mlp_bias
    if made.sliding_window is not None:
        layer |= {"sliding_window": made.sliding_window, "use_sliding_window": True}
        layer["layer_types"] = ["sliding_attention"] * made.num_hidden_layers
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "transformer_layer_config": layer,
        "draft_vocab_size": made.draft_vocab_size,
        "target_hidden_size": made.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(made.feature_layers),
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "org/tiny"}},
        **{name: getattr(made, name) for name in flags},
    }
    _write(path, config, _tensors(head, "layers.0."), edit, safe)


WRITERS: dict[str, Callable[..., None]] = {
    "authors": write_authors,
    "specforge": write_specforge,
    "angelslim": write_angelslim,
    "speculators": write_speculators,
}
