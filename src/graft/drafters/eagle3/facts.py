"""TargetFacts: what a head must know about the target it drafts for.

No weights are needed for them, so a head can be checked before the target is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetFacts:
    """Numbers of a target.

    Attributes:
        name: how messages call it.
        hidden_size: width of its hidden states, and of its embeddings.
        vocab_size: rows of its output embedding, padding included.
        token_count: ids that its tokenizer knows; those from here to vocab_size are padding.
        num_hidden_layers: its decoder layers.
        fingerprint: of its tokenizer; None if unknown.
    """

    name: str
    hidden_size: int
    vocab_size: int
    token_count: int
    num_hidden_layers: int
    fingerprint: str | None = None
