"""DFlashConfig: the shape of a DFlash drafter, in one form whatever format it came from.

Invariant: what exists can be built. It knows no files and no formats: `graft.drafters.dflash.
formats` builds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers.activations import ACT2FN

ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # those whose tables do not change with length


@dataclass(frozen=True)
class DFlashConfig:
    """A DFlash drafter.

    Attributes:
        hidden_size: H, width of the drafter; target_hidden_size: of one feature of the target.
        vocab_size: tokens of the target. draft_vocab_size: tokens the drafter can name.
        feature_layers: target layers whose *inputs* are concatenated to the features, in this
            order; the number of layers itself means the input of the final norm.
        block_size: rows of a block, the root's included; it drafts one token less.
        mask_token_id: the token that stands where one is to be drafted.
        windows: per layer, how many positions back a row sees, itself included; None sees all.
        causal: per layer, whether rows of a block see only what is before them.
        rope_parameters: in Transformers' form: rope_type, rope_theta, factor, ...
        max_position_embeddings: positions it was trained for.
        embedding_scale: factor on the embeddings. logit_scale: factor on the logits.
        logit_softcap: logits are squashed to c * tanh(logit / c) after that; None leaves them.
        own_embeddings, own_head: the checkpoint has its own; else the target's are used.

    Raises:
        ValueError: naming the setting, what was found and what is supported.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    feature_layers: tuple[int, ...]
    block_size: int
    mask_token_id: int
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    rope_parameters: dict[str, Any]
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    own_embeddings: bool = False
    own_head: bool = False

    def __post_init__(self) -> None:
        for name in _SIZES:
            found = getattr(self, name)
            if not isinstance(found, int) or isinstance(found, bool) or found < 1:
                raise ValueError(f"{name}={found!r}: a whole number above 0 is supported")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads}: a multiple of "
                f"num_key_value_heads={self.num_key_value_heads} is supported"
            )
        if self.block_size < 2:
            raise ValueError("block_size=1: a block of the root alone drafts nothing; 2 or more do")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(
                f"mask_token_id={self.mask_token_id}: an id of the {self.vocab_size} tokens that "
                "have embeddings is supported"
            )
        if not self.feature_layers or min(self.feature_layers) < 0:
            raise ValueError(f"feature layers {self.feature_layers}: one or more are needed")
        self._check_layers()

    def _check_layers(self) -> None:
        count = self.num_hidden_layers
        if len(self.windows) != count or any(w is not None and w < 1 for w in self.windows):
            raise ValueError(
                f"sliding windows {self.windows}: each of the {count} layers needs one above 0, "
                "or none"
            )
        if len(self.causal) != count:
            raise ValueError(f"causal={self.causal}: one entry for each of {count} layers")
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act={self.hidden_act!r}: Transformers knows no such function")
        kind = self.rope_parameters.get("rope_type")
        if kind not in ROPE_TYPES:
            raise ValueError(f"rope_type={kind!r}: supported are {', '.join(ROPE_TYPES)}")
        if self.head_dim % 2 or self.rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError("partial_rotary_factor: only rotation of the whole head is supported")


_SIZES = (
    "hidden_size",
    "target_hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "draft_vocab_size",
    "block_size",
    "max_position_embeddings",
)
