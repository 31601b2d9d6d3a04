"""Eagle3Head: the EAGLE-3 draft model, one decoder layer (or a few) over the target's features.

Row j of a sequence joins the target's feature at position j with the embedding of the token at
position j + 1, and says what follows that token:

    x = concat(input_layernorm(embedding), hidden_norm(feature))        2H wide
    h = feature + attention(x);  h = h + mlp(post_attention_layernorm(h))
    logits = lm_head(norm(h))                                           over the draft vocabulary

Where tokens are drafted ahead no feature of the target exists: h of the parent takes its place,
and `fuse` is not applied to it [EAGLE-3]. Keys and values go through the cache it is given.

It does not know trees, drafts, or the target; embeddings may be the target's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from graft.attention import FixedStep, Step, tree_attention
from graft.cache import KVCache
from graft.drafters.eagle3.config import Eagle3Config

# Rotary embeddings whose angles depend on more than the position.
_MOVING = ("dynamic", "longrope")
TABLE = 1 << 15  # positions whose angles are kept at most


class Eagle3Head(nn.Module):
    """The draft model.

    Args:
        config: its shape.

    Parameters and buffers: `fc`, `input_norm` (norm_before_fc), `feature_norms.i` (fc_norm),
    `embed_tokens` (own_embeddings), `layers.i.*`, `norm`, `lm_head`, and `target_ids`: int64
    [draft_vocab_size], the target's id of each draft id.
    """

    target_ids: Tensor

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        width, count = config.target_hidden_size, len(config.feature_layers)
        eps = config.rms_norm_eps
        self.fc = nn.Linear(count * width, config.hidden_size, bias=config.fc_bias)
        self.input_norm = _Norm(count * width, eps) if config.norm_before_fc else None
        norms = [_Norm(width, eps) for _ in range(count if config.fc_norm else 0)]
        self.feature_norms = nn.ModuleList(norms)
        self.embed_tokens = (
            nn.Embedding(config.vocab_size, config.hidden_size) if config.own_embeddings else None
        )
        self.layers = nn.ModuleList(_Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = _Norm(config.hidden_size, eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        # Of this head alone: two models in one process share no tables of positions.
        # Never on "meta": a loader builds the rest there, and no checkpoint holds the tables.
        with torch.device("cpu"):
            self.rotary = LlamaRotaryEmbedding(_rope_config(config))
        self._moves = config.rope_parameters.get("rope_type") in _MOVING
        self._table: _Turn | None = None  # by position: [P, 1, D]
        self.register_buffer("target_ids", torch.arange(config.draft_vocab_size))

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.norm.weight.dtype

    def limit_window(self, window: int) -> None:
        """Let every layer see only the last `window` positions."""
        for layer in self.layers:
            attention: Any = layer.self_attn
            attention.window = min(window, attention.window or window)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features [..., count * target_hidden_size] as one feature [..., H]."""
        features = features.to(self.dtype)
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.feature_norms:
            parts = features.chunk(len(self.feature_norms), dim=-1)
            normed = [norm(part) for norm, part in zip(self.feature_norms, parts, strict=True)]
            features = torch.cat(normed, dim=-1)
        fused: Tensor = self.fc(features)
        return fused

    def forward(
        self, features: Tensor, embeddings: Tensor, positions: Tensor, step: Step, cache: KVCache
    ) -> Tensor:
        """Run rows [B, N]: fused features and next tokens' embeddings [B, N, H], positions int64.

        Returns h [B, N, H]: what `logits` reads, before the final norm.
        """
        cache.begin(step)
        hidden = features
        turn = self._turn(hidden, positions, step)
        for layer in self.layers:
            hidden = layer(hidden, embeddings, turn, step, cache)
        return hidden

    def remember(
        self, features: Tensor, embeddings: Tensor, positions: Tensor, step: Step, cache: KVCache
    ) -> None:
        """As `forward`, for rows whose output nobody reads: keys and values alone.

        With one layer that is a ninth of the work.
        """
        if len(self.layers) > 1:
            self(features, embeddings, positions, step, cache)
            return
        cache.begin(step)
        layer: Any = self.layers[0]
        read, _ = layer.read(features, embeddings)
        layer.self_attn.write(read, self._turn(features, positions, step), cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., draft_vocab_size] of `forward`'s output [..., H]."""
        out: Tensor = self.lm_head(self.norm(hidden))
        return out

    def feedback(self, hidden: Tensor) -> Tensor:
        """What a child's row reads as its feature."""
        return self.norm(hidden) if self.config.norm_output else hidden

    def _turn(self, like: Tensor, positions: Tensor, step: Step) -> _Turn:
        """Of positions [B, N], all of them below the step's end."""
        # A table is replaced when it grows; what is recorded may read only what stays.
        if self._moves or step.end > TABLE or isinstance(step, FixedStep):
            return self._turn_of(like, positions)
        table = self._table
        fits = table is not None and len(table.cos) >= step.end
        if table is None or not fits or not _alike(table.cos, like):
            with torch.inference_mode(False):  # training may read it too
                place = torch.arange(1 << step.end.bit_length(), device=like.device)
                made = self._turn_of(torch.empty_like(like[:0]), place.unsqueeze(0))
            table = self._table = _Turn(made.cos[0], made.sin[0])
        return _Turn(table.cos[positions], table.sin[positions])

    def _turn_of(self, like: Tensor, positions: Tensor) -> _Turn:
        cos, sin = self.rotary(like, positions)
        half = cos.shape[-1] // 2
        signed = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        return _Turn(cos.unsqueeze(2), signed.unsqueeze(2))


class _Turn(NamedTuple):
    """How rows are turned by their positions: [B, N, 1, D]."""

    cos: Tensor
    sin: Tensor  # of the first half of dimensions with its sign changed


class _Norm(nn.Module):
    """RMS norm, as one operation of torch."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._shape, self._epsilon = (size,), epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self._shape, self.weight, self._epsilon)


class _Layer(nn.Module):
    """A decoder layer; the first one reads embeddings and features side by side."""

    def __init__(self, config: Eagle3Config, index: int) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.first = index == 0
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = _Norm(size, eps)
        if self.first:
            self.hidden_norm = _Norm(size, eps)
        self.self_attn = _Attention(config, index, 2 * size if self.first else size)
        self.post_attention_layernorm = _Norm(size, eps)
        self.mlp = _MLP(config)

    def forward(
        self,
        hidden: Tensor,
        embeddings: Tensor,
        turn: _Turn,
        step: Step,
        cache: KVCache,
    ) -> Tensor:
        read, residual = self.read(hidden, embeddings)
        hidden = residual + self.self_attn(read, turn, step, cache)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out

    def read(self, hidden: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads, and the residual."""
        if not self.first:
            return self.input_layernorm(hidden), hidden
        normed = self.hidden_norm(hidden)
        read = torch.cat([self.input_layernorm(embeddings), normed], dim=-1)
        return read, normed if self.norm_before_residual else hidden


class _Attention(nn.Module):
    """Grouped-query attention over committed rows and a tree, as `graft.attention` does it."""

    def __init__(self, config: Eagle3Config, index: int, width: int) -> None:
        super().__init__()
        self.index = index
        self.head_dim = config.head_dim
        self.window = config.sliding_window
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        bias = config.attention_bias
        output_bias = bias if config.output_bias is None else config.output_bias
        self.q_proj = nn.Linear(width, heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, kv_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * config.head_dim, config.hidden_size, bias=output_bias)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = _Norm(config.head_dim, config.rms_norm_eps)
            self.k_norm = _Norm(config.head_dim, config.rms_norm_eps)

    def forward(self, read: Tensor, turn: _Turn, step: Step, cache: KVCache) -> Tensor:
        query = self.q_proj(read).view(*read.shape[:2], -1, self.head_dim)
        if self.q_norm is not None:
            query = self.q_norm(query)
        both = _turned(torch.cat([query, self._keys(read)], 2), turn)
        heads = query.shape[2]
        keys, values = cache.update(both[:, heads:], self._values(read), self.index)
        out, _ = tree_attention(
            self, both[:, :heads], keys, values, None, graft_step=step, sliding_window=self.window
        )
        mixed: Tensor = self.o_proj(out.flatten(2))
        return mixed

    def write(self, read: Tensor, turn: _Turn, cache: KVCache) -> None:
        """Put the rows' keys and values into the cache."""
        cache.update(_turned(self._keys(read), turn), self._values(read), self.index)

    def _keys(self, read: Tensor) -> Tensor:
        """[B, N, Hkv, D], not turned."""
        key: Tensor = self.k_proj(read).view(*read.shape[:2], -1, self.head_dim)
        return key if self.k_norm is None else self.k_norm(key)

    def _values(self, read: Tensor) -> Tensor:
        """[B, Hkv, N, D]."""
        value: Tensor = self.v_proj(read).view(*read.shape[:2], -1, self.head_dim)
        return value.transpose(1, 2)


def _turned(rows: Tensor, turn: _Turn) -> Tensor:
    """Queries or keys [B, N, heads, D] turned by their positions: [B, heads, N, D]."""
    half = rows.shape[-1] // 2
    swapped = torch.cat([rows[..., half:], rows[..., :half]], -1)
    return (rows * turn.cos + swapped * turn.sin).transpose(1, 2)


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device


class _MLP(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        size, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(size, inner, bias=bias)
        self.up_proj = nn.Linear(size, inner, bias=bias)
        self.down_proj = nn.Linear(inner, size, bias=bias)
        self.act = ACT2FN[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.act(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


def _rope_config(config: Eagle3Config) -> LlamaConfig:
    """What Transformers' rotary embedding reads, from the head's own numbers."""
    limit: dict[str, Any] = {}
    if config.max_position_embeddings is not None:
        limit["max_position_embeddings"] = config.max_position_embeddings
    return LlamaConfig(
        hidden_size=config.num_attention_heads * config.head_dim,
        num_attention_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        rope_parameters={"rope_type": "default", **config.rope_parameters},
        **limit,
    )
