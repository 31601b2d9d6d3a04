"""Eagle3Config: the shape of an EAGLE-3 head, in one form whatever format it came from.

It knows no files and no formats: converters (`graft.drafters.eagle3.formats`) build it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Eagle3Config:
    """An EAGLE-3 head.

    Attributes:
        hidden_size: H, width of the head's own layer.
        target_hidden_size: width of one feature of the target.
        feature_layers: target layers whose *inputs* are concatenated to the features, in this
            order; the number of layers itself means the input of the final norm. All -1: unknown,
            since the checkpoint leaves them to the target and none was given (reports alone).
        vocab_size: tokens of the target. draft_vocab_size: tokens the head can name.
        rope_parameters: in Transformers' form: rope_type, rope_theta, factor, ...
        max_position_embeddings: positions it was trained for; None if the checkpoint is silent.
        sliding_window: keys farther back are hidden; None sees all.
        norm_before_residual: the residual is the normed feature, not the feature itself.
        norm_before_fc: one norm over the concatenated features before they are fused.
        fc_norm: a norm of each feature on its own before they are fused.
        norm_output: what the next draft step reads is normed by the final norm (EAGLE-3.1).
        fc_bias, attention_bias, mlp_bias: linears with biases; attention_bias means queries, keys
            and values.
        output_bias: a bias after attention; None: as attention_bias (Qwen 2 has only the former).
        qk_norm: queries and keys are normed per head.
        own_embeddings: the checkpoint has embeddings of its own; else the target's are used.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    feature_layers: tuple[int, ...]
    num_hidden_layers: int = 1
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    rope_parameters: dict[str, Any] = field(default_factory=lambda: {"rope_theta": 10000.0})
    max_position_embeddings: int | None = None
    sliding_window: int | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    fc_bias: bool = False
    attention_bias: bool = False
    output_bias: bool | None = None
    mlp_bias: bool = False
    qk_norm: bool = False
    own_embeddings: bool = False
