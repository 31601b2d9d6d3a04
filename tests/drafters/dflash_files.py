"""Tiny DFlash checkpoints of random weights, and a slow reference of the network.

Invariant: the same arguments give the same files. The reference recomputes a whole sequence from
the checkpoint's tensors, row by row, without cache, batch or mask, and shares no code with the
drafter.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig

VOCAB, WIDTH, LAYERS = 96, 32, 6  # of the target
MASK = 95

CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 5,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [4, 1]},
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_target_layers": LAYERS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 100.0,
    "max_position_embeddings": 512,
    "layer_types": ["full_attention", "full_attention"],
    "vocab_size": VOCAB,
}
SLIDING: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
    "use_sliding_window": True,
}
# The settings of Speculators beside its `transformer_layer_config`.
SPECULATORS: dict[str, Any] = {
    "architectures": ["DFlashSpeculator"],
    "speculators_model_type": "dflash",
    "aux_hidden_state_layer_ids": [5, 2],
    "block_size": 5,
    "mask_token_id": MASK,
    "draft_vocab_size": VOCAB,
    "sliding_window_non_causal": False,
}


def target_config(**changes: Any) -> LlamaConfig:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "vocab_size": VOCAB}
    return LlamaConfig(**{**sizes, "intermediate_size": 48, "num_attention_heads": 4, **changes})


def target_parts(seed: int = 7) -> tuple[torch.nn.Embedding, torch.nn.Linear]:
    """The target's embeddings and output layer."""
    random = torch.Generator().manual_seed(seed)
    embeddings, head = torch.nn.Embedding(VOCAB, WIDTH), torch.nn.Linear(WIDTH, VOCAB, bias=False)
    for layer in (embeddings, head):
        layer.weight.data = torch.randn(VOCAB, WIDTH, generator=random)
    return embeddings, head


def random_tensors(config: dict[str, Any], seed: int = 0, features: int = 2) -> dict[str, Tensor]:
    """Weights of every layer; norms are not 1, so that a forgotten one shows."""
    random = torch.Generator().manual_seed(seed)
    size, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (size, features * WIDTH),
        "hidden_norm.weight": (size,),
        "norm.weight": (size,),
    }
    for i in range(config["num_hidden_layers"]):
        shapes |= {
            f"layers.{i}.input_layernorm.weight": (size,),
            f"layers.{i}.post_attention_layernorm.weight": (size,),
            f"layers.{i}.self_attn.q_proj.weight": (queries, size),
            f"layers.{i}.self_attn.k_proj.weight": (keys, size),
            f"layers.{i}.self_attn.v_proj.weight": (keys, size),
            f"layers.{i}.self_attn.o_proj.weight": (size, queries),
            f"layers.{i}.self_attn.q_norm.weight": (dim,),
            f"layers.{i}.self_attn.k_norm.weight": (dim,),
            f"layers.{i}.mlp.gate_proj.weight": (inner, size),
            f"layers.{i}.mlp.up_proj.weight": (inner, size),
            f"layers.{i}.mlp.down_proj.weight": (size, inner),
        }
    return {
        name: torch.rand(shape, generator=random) + 0.5
        if len(shape) == 1
        else torch.randn(shape, generator=random) * 1.5 / shape[1] ** 0.5
        for name, shape in shapes.items()
    }


def write_checkpoint(
    folder: Path, config: dict[str, Any], tensors: dict[str, Tensor] | None = None
) -> Path:
    """Write config.json and the tensors; `tensors` of None makes random ones."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    shape = config.get("transformer_layer_config", config)
    save_file(random_tensors(shape) if tensors is None else tensors, folder / "model.safetensors")
    return folder


def stored(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


class Reference:
    """The network by the book, for one sequence.

    Args:
        tensors: by the names of z-lab's checkpoints.
        sights: per layer (causal, window): how a row sees.
        scales: factors on embeddings and logits, and the cap of the logits.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor],
        *,
        block: int = 5,
        sights: tuple[tuple[bool, int | None], ...] = ((False, None), (False, None)),
        scales: tuple[float, float, float | None] = (1.0, 1.0, None),
    ) -> None:
        self.t = {name: tensor.double() for name, tensor in tensors.items()}
        self.block, self.sights, self.scales = block, sights, scales
        embeddings, head = target_parts()
        self.embeddings = embeddings.weight.detach().double()
        self.head = head.weight.detach().double()

    def logits(self, features: list[Tensor], root: int) -> Tensor:
        """[block - 1, V] behind a root at position len(features)."""
        context = [
            self._norm("hidden_norm", self.t["fc.weight"] @ f.double().flatten()) for f in features
        ]
        tokens = [root] + [MASK] * (self.block - 1)
        rows = [self.embeddings[token] * self.scales[0] for token in tokens]
        for i, sight in enumerate(self.sights):
            rows = self._layer(f"layers.{i}.", context, rows, *sight)
        out = torch.stack([self.head @ self._norm("norm", row) for row in rows[1:]])
        out = out * self.scales[1]
        cap = self.scales[2]
        return out if cap is None else cap * torch.tanh(out / cap)

    def _layer(
        self, at: str, context: list[Tensor], rows: list[Tensor], causal: bool, window: int | None
    ) -> list[Tensor]:
        start = len(context)
        read = [self._norm(at + "input_layernorm", row) for row in rows]
        keys = [self._heads(at, "k", r, p) for p, r in enumerate(context + read)]
        values = [self._heads(at, "v", r, p) for p, r in enumerate(context + read)]
        out = []
        for i, row in enumerate(rows):
            own = start + i
            seen = [
                p
                for p in range(start + len(rows))
                if not (causal and p > own) and (window is None or abs(p - own) < window)
            ]
            query = self._heads(at, "q", read[i], own)
            mixed = self._attend(query, [keys[p] for p in seen], [values[p] for p in seen])
            row = row + self.t[at + "self_attn.o_proj.weight"] @ mixed
            inner = self._norm(at + "post_attention_layernorm", row)
            gate = self.t[at + "mlp.gate_proj.weight"] @ inner
            up = self.t[at + "mlp.up_proj.weight"] @ inner
            out.append(row + self.t[at + "mlp.down_proj.weight"] @ (gate * gate.sigmoid() * up))
        return out

    def _attend(self, query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        out = []
        for head, q in enumerate(query):
            shared = head // (len(query) // len(keys[0]))
            scores = torch.stack([q @ key[shared] for key in keys]) / math.sqrt(len(q))
            weights = scores.softmax(dim=0)
            out.append(sum((w * v[shared] for w, v in zip(weights, values, strict=True)), 0 * q))
        return torch.cat(out)

    def _heads(self, at: str, kind: str, row: Tensor, position: int) -> Tensor:
        """[heads, dim] of one row; queries and keys normed and turned to their position."""
        heads = (self.t[f"{at}self_attn.{kind}_proj.weight"] @ row).view(-1, 8)
        if kind == "v":
            return heads
        return torch.stack(
            [_turned(self._norm(f"{at}self_attn.{kind}_norm", head), position) for head in heads]
        )

    def _norm(self, name: str, row: Tensor) -> Tensor:
        return self.t[name + ".weight"] * row / (row.square().mean() + 1e-6).sqrt()


def _turned(head: Tensor, position: int) -> Tensor:
    """Rotary embedding with base 100: element i turns with element i + dim / 2."""
    out, half = head.clone(), len(head) // 2
    for i in range(half):
        angle = position * 100.0 ** (-i / half)
        cos, sin = math.cos(angle), math.sin(angle)
        out[i] = head[i] * cos - head[half + i] * sin
        out[half + i] = head[half + i] * cos + head[i] * sin
    return out
