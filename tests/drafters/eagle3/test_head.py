"""The head's forward against the formulas of EAGLE-3, written out plainly in this file."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graft.drafters.eagle3.head import Eagle3Head
from tests.tiny_heads import head_logits, tiny_head

VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"norm_output": True},
    {"num_hidden_layers": 2, "norm_output": True},
    {"attention_bias": True, "mlp_bias": True, "fc_bias": True},
    {"attention_bias": True, "output_bias": False},
    {"qk_norm": True},
    {"sliding_window": 3},
    {"head_dim": 8, "num_key_value_heads": 4},
    {"hidden_size": 32, "own_embeddings": True},
    {"feature_layers": (1, 2, 3, 4, 5)},
]


class Plain:
    """One sequence, one row after another, all keys kept in lists."""

    def __init__(self, head: Eagle3Head) -> None:
        self.config, self.state = head.config, head.state_dict()
        self.keys: list[list[Tensor]] = [[] for _ in range(head.config.num_hidden_layers)]
        self.values: list[list[Tensor]] = [[] for _ in range(head.config.num_hidden_layers)]

    def norm(self, name: str, x: Tensor) -> Tensor:
        scale = (x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt()
        out: Tensor = x * scale * self.state[f"{name}.weight"]
        return out

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"))

    def fuse(self, features: Tensor) -> Tensor:
        config = self.config
        if config.norm_before_fc:
            features = self.norm("input_norm", features)
        if config.fc_norm:
            parts = features.split(config.target_hidden_size)
            parts = tuple(self.norm(f"feature_norms.{i}", p) for i, p in enumerate(parts))
            features = torch.cat(parts)
        return self.linear("fc", features)

    def turned(self, x: Tensor, position: int) -> Tensor:
        """[heads, D]: pairs (i, i + D/2) turned by position * theta^(-2i/D)."""
        half = self.config.head_dim // 2
        theta = self.config.rope_parameters["rope_theta"]
        angle = position * theta ** (-torch.arange(half) / half)
        a, b = x[:, :half], x[:, half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], 1)

    def attention(self, layer: int, read: Tensor, position: int) -> Tensor:
        config, name = self.config, f"layers.{layer}.self_attn"
        q, k, v = (
            self.linear(f"{name}.{p}_proj", read).view(-1, config.head_dim) for p in ("q", "k", "v")
        )
        if config.qk_norm:
            q, k = self.norm(f"{name}.q_norm", q), self.norm(f"{name}.k_norm", k)
        self.keys[layer].append(self.turned(k, position))
        self.values[layer].append(v)
        window = config.sliding_window or position + 1
        keys, values = (torch.stack(x[layer][-window:]) for x in (self.keys, self.values))
        group = config.num_attention_heads // config.num_key_value_heads
        mixed = []
        for index, query in enumerate(self.turned(q, position)):
            scores = keys[:, index // group] @ query / math.sqrt(config.head_dim)
            mixed.append(scores.softmax(0) @ values[:, index // group])
        return self.linear(f"{name}.o_proj", torch.cat(mixed))

    def row(self, feature: Tensor, embedding: Tensor, position: int) -> Tensor:
        hidden = feature
        for layer in range(self.config.num_hidden_layers):
            name = f"layers.{layer}"
            if layer == 0:
                normed = self.norm(f"{name}.hidden_norm", hidden)
                read = torch.cat([self.norm(f"{name}.input_layernorm", embedding), normed])
                residual = normed if self.config.norm_before_residual else hidden
            else:
                read, residual = self.norm(f"{name}.input_layernorm", hidden), hidden
            hidden = residual + self.attention(layer, read, position)
            x = self.norm(f"{name}.post_attention_layernorm", hidden)
            gate = F.silu(self.linear(f"{name}.mlp.gate_proj", x))
            up = self.linear(f"{name}.mlp.up_proj", x)
            hidden = hidden + self.linear(f"{name}.mlp.down_proj", gate * up)
        return hidden


def plain_logits(head: Eagle3Head, count: int = 12) -> Tensor:
    """What `head_logits` computes."""
    config, plain = head.config, Plain(head)
    made = torch.Generator().manual_seed(5)
    width = config.target_hidden_size * len(config.feature_layers)
    features = torch.randn(count, width, generator=made)
    embeddings = torch.randn(count, config.hidden_size, generator=made)
    rows = [plain.row(plain.fuse(features[i]), embeddings[i], i) for i in range(count)]
    last = plain.norm("norm", rows[-1]) if config.norm_output else rows[-1]
    rows.append(plain.row(last, embeddings[0], count))
    return plain.linear("lm_head", plain.norm("norm", torch.stack(rows)))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_head_computes_the_formulas(variant: dict[str, Any]) -> None:
    head = tiny_head(3, **variant)
    torch.testing.assert_close(head_logits(head), plain_logits(head), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "flag", ["norm_before_residual", "norm_output", "sliding_window", "rope_parameters"]
)
def test_control_what_has_no_tensors_shows(flag: str) -> None:
    other: dict[str, Any] = {
        "norm_before_residual": True,
        "norm_output": True,
        "sliding_window": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 7.0},
    }
    head, changed = tiny_head(3), tiny_head(3, **{flag: other[flag]})
    assert float((head_logits(changed) - plain_logits(head)).abs().max()) > 1e-2
