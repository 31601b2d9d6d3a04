"""Small files for loading tests: a byte tokenizer, model folders and a Llama GGUF.

Invariant: everything is deterministic and made of random weights; nothing is fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.tiny_models import VOCAB_SIZE, tiny_model

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
EXTRA = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HIDDEN, LAYERS, HEADS, KV_HEADS, INNER, HEAD_DIM = 64, 2, 4, 2, 96, 16


def tiny_tokenizer(size: int = VOCAB_SIZE, chat: bool = True) -> PreTrainedTokenizerFast:
    """One token per byte of the byte-level alphabet, cut to `size` tokens; the last is EOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: size - 1]
    vocabulary = {c: i for i, c in enumerate([*alphabet, "<eos>"])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<eos>", normalized=False, special=True)])
    made: Any = PreTrainedTokenizerFast
    return made(
        tokenizer_object=backend, eos_token="<eos>", chat_template=TEMPLATE if chat else None
    )


def save_folder(folder: Path, family: str = "llama", **overrides: Any) -> PreTrainedModel:
    """Save a tiny model and its tokenizer as a Transformers folder; return the model."""
    model = tiny_model(family, **overrides)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return model


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Order of rotary rows in a Llama GGUF: rows i and i + d/2 of a head become neighbours."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def write_tiny_gguf(path: Path, architecture: str = "llama") -> dict[str, np.ndarray]:
    """Write a two-layer Llama GGUF with mixed quantisation; return its unquantised q weights.

    The query projections are kept in fp32, everything else as in the default model: Q4_1 for
    matrices, Q8_0 for embeddings, fp32 for norms.
    """
    writer = GGUFWriter(path, architecture)
    tokens = _write_tokenizer(writer)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    queries = _write_weights(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return queries


def _write_tokenizer(writer: GGUFWriter) -> list[str]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = ["\u0120\u0120", "he", "\u01201"]  # the last one may never fire: digits stand alone
    tokens = [*EXTRA, *alphabet, *merged]
    types = [TokenType.CONTROL] * len(EXTRA) + [TokenType.NORMAL] * (len(tokens) - len(EXTRA))
    writer.add_name("tiny")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["\u0120 \u0120", "h e", "\u0120 1"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    return tokens


def _write_weights(writer: GGUFWriter, vocabulary: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    queries: dict[str, np.ndarray] = {}

    def add(name: str, shape: tuple[int, ...], kind: GGMLQuantizationType, heads: int = 0) -> None:
        values = random.normal(0, 0.3, shape).astype(np.float32)
        if kind is GGMLQuantizationType.F32 and heads:
            queries[name] = values
        stored = permuted(values, heads) if heads else values
        writer.add_tensor(name, quantize(stored, kind), raw_dtype=kind)

    packed, full = GGMLQuantizationType.Q4_1, GGMLQuantizationType.F32
    add("token_embd.weight", (vocabulary, HIDDEN), GGMLQuantizationType.Q8_0)
    add("output_norm.weight", (HIDDEN,), full)
    for layer in range(LAYERS):
        start = f"blk.{layer}."
        add(start + "attn_norm.weight", (HIDDEN,), full)
        add(start + "ffn_norm.weight", (HIDDEN,), full)
        add(start + "attn_q.weight", (HEADS * HEAD_DIM, HIDDEN), full, HEADS)
        add(start + "attn_k.weight", (KV_HEADS * HEAD_DIM, HIDDEN), packed, KV_HEADS)
        add(start + "attn_v.weight", (KV_HEADS * HEAD_DIM, HIDDEN), packed)
        add(start + "attn_output.weight", (HIDDEN, HIDDEN), packed)
        add(start + "ffn_gate.weight", (INNER, HIDDEN), packed)
        add(start + "ffn_up.weight", (INNER, HIDDEN), packed)
        add(start + "ffn_down.weight", (HIDDEN, INNER), packed)
    return queries
