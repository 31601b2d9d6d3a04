"""save_head: write a head so that Graft and other servers load it.

Invariant: the folder appears complete or not at all, and `load_head` reads back the same head.
Nothing is written that the format cannot say: such a head is refused, with the format that can.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor

from graft.drafters.eagle3.config import Eagle3Config
from graft.drafters.eagle3.errors import HeadError
from graft.drafters.eagle3.head import Eagle3Head

HeadFormat = Literal["specforge", "speculators"]
FORMATS: tuple[HeadFormat, ...] = ("specforge", "speculators")
_SHAPE = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_hidden_layers",
    "rms_norm_eps",
    "hidden_act",
)


def save_head(
    path: str | Path,
    head: Eagle3Head,
    *,
    target_name: str,
    fingerprint: str | None,
    format: HeadFormat = "specforge",
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write config.json and model.safetensors.

    Args:
        path: the folder; a head that is there already is replaced.
        target_name: what the head was trained for; loaders show it.
        fingerprint: of the target's tokenizer; loaders compare it.
        format: "specforge" (SGLang, SpecForge and, where the target's default layers are used,
            the authors' code), or "speculators" (vLLM).

    Returns:
        The folder.

    Raises:
        HeadError: for a head that the format cannot describe, or a folder that holds other things.
    """
    folder = Path(path).expanduser()
    if format not in FORMATS:
        raise HeadError(f"unknown format {format!r} of heads; supported are {', '.join(FORMATS)}")
    check_place(folder)
    dtype = str(head.lm_head.weight.dtype).removeprefix("torch.")
    origin = {"target": target_name, "tokenizer_fingerprint": fingerprint}
    build = _specforge if format == "specforge" else _speculators
    config = {**build(head.config, dtype, target_name), "graft": origin}
    first = "midlayer." if format == "specforge" else "layers.0."
    _write(folder, config, _tensors(head, first), files or {})
    return folder


def check_place(folder: Path) -> None:
    """Refuse a folder that a head must not replace.

    Raises:
        HeadError: for a file, or a folder that holds other things than a head.
    """
    if folder.exists() and not folder.is_dir():
        raise HeadError(f"{folder} is a file; give a folder for the head")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
        raise HeadError(f"{folder} holds other things than a head; give another folder")


def _write(
    folder: Path,
    config: Mapping[str, Any],
    tensors: dict[str, Tensor],
    files: Mapping[str, str],
) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        made.chmod(0o755)  # a temporary folder is its owner's alone
        new, old = made / "new", made / "old"
        new.mkdir()
        text = json.dumps(config, indent=2, sort_keys=True)
        for name, content in {**files, "config.json": text + "\n"}.items():
            (new / name).write_text(content, encoding="utf-8")
        (new / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        if (made / "old").exists() and not folder.exists():
            (made / "old").rename(folder)
        shutil.rmtree(made, ignore_errors=True)


def _tensors(head: Eagle3Head, first: str) -> dict[str, Tensor]:
    """The head's tensors in the names of the format; vocabulary tables where they say anything."""
    state = {k: t.detach().to("cpu").contiguous() for k, t in head.state_dict().items()}
    ids = state.pop("target_ids").to(torch.int64)
    named = {
        k.replace("layers.0.", first, 1).replace("feature_norms.", "fc_norm."): t
        for k, t in state.items()
    }
    plain = torch.arange(len(ids))
    if len(ids) < head.config.vocab_size or not torch.equal(ids, plain):
        named["d2t"] = ids - plain
        named["t2d"] = torch.zeros(head.config.vocab_size, dtype=torch.bool)
        named["t2d"][ids] = True
    return named


def _layer(config: Eagle3Config) -> dict[str, Any]:
    """Fields of the draft layer that all formats share."""
    rope = dict(config.rope_parameters)
    theta, kind = rope.pop("rope_theta", 10000.0), rope.pop("rope_type", "default")
    fields: dict[str, Any] = {name: getattr(config, name) for name in _SHAPE}
    fields["rope_theta"] = theta
    fields["rope_scaling"] = {"rope_type": kind, **rope} if kind != "default" else None
    if config.max_position_embeddings is not None:
        fields["max_position_embeddings"] = config.max_position_embeddings
    if config.sliding_window is not None:
        fields["sliding_window"], fields["use_sliding_window"] = config.sliding_window, True
        fields["layer_types"] = ["sliding_attention"] * config.num_hidden_layers
    return {**fields, "tie_word_embeddings": False}


def _specforge(config: Eagle3Config, dtype: str, target_name: str) -> dict[str, Any]:
    unsaid = {
        "several layers": config.num_hidden_layers > 1,
        "norm_before_residual": config.norm_before_residual,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "qk_norm": config.qk_norm,
        "the input of layer 0 as a feature": 0 in config.feature_layers,
    }
    if wrong := [name for name, there in unsaid.items() if there]:
        raise HeadError(f"SpecForge's format has no {', '.join(wrong)}; save as speculators")
    nested: dict[str, Any] = {
        # There an id names the *output* of a layer.
        "eagle_aux_hidden_state_layer_ids": [i - 1 for i in config.feature_layers],
        "use_aux_hidden_state": True,
    }
    if config.norm_before_fc:
        nested["norm_before_fc"] = True
    made = {
        **_layer(config),
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "attention_bias": False,
        "bias": config.fc_bias,
        "draft_vocab_size": config.draft_vocab_size,
        "eagle_config": nested,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "torch_dtype": dtype,
    }
    if config.target_hidden_size != config.hidden_size:
        made["target_hidden_size"] = config.target_hidden_size
    return made


def _speculators(config: Eagle3Config, dtype: str, target_name: str) -> dict[str, Any]:
    if config.fc_bias:
        raise HeadError("speculators' format has no bias in fc; save as specforge")
    inputs_only = config.attention_bias and config.output_bias is False
    kind = "qwen3" if config.qk_norm else "qwen2" if inputs_only else "llama"
    layer = {
        **_layer(config),
        "model_type": kind,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
    }
    method = {"proposal_type": "greedy", "speculative_tokens": 5}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": config.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(config.feature_layers),
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "target_hidden_size": config.target_hidden_size,
        "torch_dtype": dtype,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": target_name, "architectures": []},
        },
    }
