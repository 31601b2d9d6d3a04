"""DFlashModel: the network that denoises a block of masked tokens in one pass.

A block is the root followed by masked tokens, at the positions from the root's on. Every layer's
attention reads the context, whose keys and values come from the target's features alone, and the
block itself:

    context = hidden_norm(fc(features))                    the same for all layers
    h = embedding;  h = h + attention(input_layernorm(h), context);  h = h + mlp(...)
    logits of row i: what stands at the position of row i itself (not at the next one)

Layers and norms are those of Qwen3 [DFlash, arXiv 2602.06036, and its public code]. In a layer
that is not causal the rows of a block see each other in both directions.

It does not know trees, drafts or files. Embeddings and output layer may be the target's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import (
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    rotate_half,
)

from graft.attention import Step, tree_attention
from graft.drafters.dflash.config import DFlashConfig
from graft.drafters.dflash.store import ContextStore

# What the rows of a block see of each other: (causal, window).
Sight = tuple[bool, int | None]
Turn = tuple[Tensor, Tensor]  # cosines and sines [B, 1, N, D]


class DFlashModel(nn.Module):
    """The drafter's network.

    Args:
        config: its shape.

    Parameters and buffers: `fc`, `hidden_norm`, `layers.i.*`, `norm`; `embed_tokens`
    (own_embeddings), `lm_head` (own_head); `d2t`: int64 [draft_vocab_size], the target's id of
    each draft id less that id, where the drafter cannot name every token.
    """

    d2t: Tensor | None

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        size, eps = config.hidden_size, config.rms_norm_eps
        features = len(config.feature_layers) * config.target_hidden_size
        self.fc = nn.Linear(features, size, bias=False)
        self.hidden_norm = LlamaRMSNorm(size, eps)
        self.layers = nn.ModuleList(_Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(size, eps)
        self.embed_tokens = nn.Embedding(config.vocab_size, size) if config.own_embeddings else None
        self.lm_head = (
            nn.Linear(size, config.draft_vocab_size, bias=False) if config.own_head else None
        )
        reduced = config.draft_vocab_size != config.vocab_size
        offsets = torch.zeros(config.draft_vocab_size, dtype=torch.int64) if reduced else None
        self.register_buffer("d2t", offsets)
        with torch.device("cpu"):  # tables are no weights: real even in a model without storage
            self.rotary = LlamaRotaryEmbedding(_rope_config(config))

    def context(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [B, Hkv, N, D] of every layer.

        `features`: the target's [B, N, F], concatenated. `positions`: int64 [B, N].
        """
        fused = self.hidden_norm(self.fc(features.to(self.fc.weight.dtype)))
        turn = self._turn(fused, positions)
        return [layer.self_attn.keys_values(fused, turn) for layer in self._stack()]

    def forward(
        self,
        embeddings: Tensor,
        positions: Tensor,
        steps: Mapping[Sight, Step],
        store: ContextStore,
    ) -> Tensor:
        """Run a block: embeddings [B, N, H], positions int64 [B, N]; returns normed [B, N, H].

        `steps`: where its rows stand, for each sight of `sights`.
        """
        hidden = embeddings.to(self.fc.weight.dtype) * self.config.embedding_scale
        turn = self._turn(hidden, positions)
        store.begin_block(next(iter(steps.values())))
        for layer in self._stack():
            hidden = layer(hidden, turn, steps[layer.self_attn.sight], store)
        normed: Tensor = self.norm(hidden)
        return normed

    def scale_logits(self, logits: Tensor) -> Tensor:
        """float32 logits, scaled and capped as the drafter was trained."""
        logits = logits.float() * self.config.logit_scale
        cap = self.config.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def sights(self) -> tuple[Sight, ...]:
        """The different ways in which its layers look at a block."""
        return tuple(dict.fromkeys(zip(self.config.causal, self.config.windows, strict=True)))

    def _stack(self) -> Iterable[_Layer]:
        return cast("Iterable[_Layer]", self.layers)

    def _turn(self, like: Tensor, positions: Tensor) -> Turn:
        cos, sin = self.rotary(like, positions)
        return cos.unsqueeze(1), sin.unsqueeze(1)


def block_steps(sights: Sequence[Sight], starts: Sequence[int], rows: Tensor) -> dict[Sight, Step]:
    """Where the rows of a block stand and what they see, for sequences in slots 0 .. B-1.

    `rows`: int64 [N], 0 .. N-1. A window also cuts what a row sees of the rows behind it.
    """
    ahead = rows - rows.unsqueeze(1)  # [N, N]: how far row j stands ahead of row i
    steps: dict[Sight, Step] = {}
    for causal, window in sights:
        visible = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
        if window is not None:
            visible = visible & (ahead.abs() < window)
        batch = len(starts)
        visible = visible.expand(batch, -1, -1)
        steps[causal, window] = Step(0, starts, visible, rows.expand(batch, -1))
    return steps


class _Layer(nn.Module):
    def __init__(self, config: DFlashConfig, index: int) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = LlamaRMSNorm(size, eps)
        self.self_attn = _Attention(config, index)
        self.post_attention_layernorm = LlamaRMSNorm(size, eps)
        self.mlp = _MLP(config)

    def forward(self, hidden: Tensor, turn: Turn, step: Step, store: ContextStore) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), turn, step, store)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class _Attention(nn.Module):
    """Queries of the block over keys of context and block, which share their projections."""

    def __init__(self, config: DFlashConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.head_dim = config.head_dim
        self.sight: Sight = (config.causal[index], config.windows[index])
        size, bias = config.hidden_size, config.attention_bias
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(size, queries, bias=bias)
        self.k_proj = nn.Linear(size, keys, bias=bias)
        self.v_proj = nn.Linear(size, keys, bias=bias)
        self.o_proj = nn.Linear(queries, size, bias=bias)
        self.q_norm = LlamaRMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = LlamaRMSNorm(config.head_dim, config.rms_norm_eps)

    def keys_values(self, read: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """[B, Hkv, N, D] each, of rows [B, N, H]."""
        keys = self.k_norm(self._split(self.k_proj(read))).transpose(1, 2)
        return _rotate(keys, turn), self._split(self.v_proj(read)).transpose(1, 2)

    def forward(self, read: Tensor, turn: Turn, step: Step, store: ContextStore) -> Tensor:
        keys, values = store.update(*self.keys_values(read, turn), self.index)
        query = _rotate(self.q_norm(self._split(self.q_proj(read))).transpose(1, 2), turn)
        window = self.sight[1]
        out, _ = tree_attention(
            self, query, keys, values, None, graft_step=step, sliding_window=window
        )
        mixed: Tensor = self.o_proj(out.flatten(2))
        return mixed

    def _split(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:2], -1, self.head_dim)


class _MLP(nn.Module):
    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)
        self.act = ACT2FN[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        gated = self.act(self.gate_proj(hidden)) * self.up_proj(hidden)
        out: Tensor = self.down_proj(gated)
        return out


def _rotate(rows: Tensor, turn: Turn) -> Tensor:
    """Rotary embedding of [B, heads, N, D]."""
    turned: Tensor = rows * turn[0] + rotate_half(rows) * turn[1]
    return turned


def _rope_config(config: DFlashConfig) -> LlamaConfig:
    """What Transformers' rotary embedding reads, from the drafter's own numbers."""
    return LlamaConfig(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=dict(config.rope_parameters),
    )
