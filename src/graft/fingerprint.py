"""The fingerprint of a tokenizer: a short digest of what token ids mean.

Two tokenizers with one fingerprint give every text the same ids, and every id the same text; so
what was learnt over the ids of one (a matrix, a head, a draft model) can be used with the other.

Invariant: it is the same in every process, for every load of the same tokenizer and after saving
it. It does not know models, nor how prompts are made: the chat template, padding, truncation,
which tokens are special, and the special tokens put around a text do not count. [ours]
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from transformers import PreTrainedTokenizerBase

__all__ = ["tokenizer_fingerprint"]

_DIGITS: Final = 16
_PARTS: Final = ("normalizer", "pre_tokenizer", "model", "decoder")
_ADDED: Final = ("id", "content", "normalized", "single_word", "lstrip", "rstrip")

# Where a tokenizer does not show its parts, how it splits these stands for them: case, accents,
# spaces, digits, line ends, other scripts, several characters in one, and pieces of code.
_SAMPLES: Final = (
    "The quick brown fox jumps over the lazy dog. THE QUICK BROWN FOX!",
    " leading,  double   and trailing spaces \t\r\n\n\n",
    "na\u00efve fa\u00e7ade cafe\u0301 \ufb01ne \u00bd \u2460 \uff21\uff22\uff23 \u212b",
    "0 12 345 6789 1,234.56 2024-01-31 0xDEADBEEF",
    "def f(x_1: int) -> None:\n    return {'a': [x_1 ** 2, \"b\\n\"]}  # comment",
    "\u4f60\u597d\uff0c\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \uc548\ub155 \u0441\u043b\u043e"
    "\u0432\u043e \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d"
    "\u0924\u0947",
    "\U0001f469\u200d\U0001f4bb \U0001f1eb\U0001f1f7 \U00020000 \x00\x7f",
    "antidisestablishmentarianism don't won't I'll they've 'tis",
)


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase, token_count: int) -> str:
    """Digest of what the ids below `token_count` mean: 16 hexadecimal digits.

    Vocabulary, merges or scores, added tokens, normaliser, pre-tokenizer and decoder count. A
    tokenizer written in Python does not show its parts: there the class, the vocabulary, the
    added tokens and the ids of some sample texts count. Takes about half a second for 150,000
    tokens.

    Args:
        token_count: V, ids that exist in the model and in the tokenizer.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    facts = _python_facts(tokenizer) if backend is None else _backend_facts(backend)
    text = json.dumps([token_count, facts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:_DIGITS]


def _backend_facts(backend: Any) -> dict[str, Any]:
    stored = json.loads(backend.to_str())
    added = [[token.get(key) for key in _ADDED] for token in stored["added_tokens"]]
    return {**{part: stored[part] for part in _PARTS}, "added": sorted(added)}


def _python_facts(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    added = [
        [index, *(getattr(token, key) for key in _ADDED[1:])]
        for index, token in tokenizer.added_tokens_decoder.items()
    ]
    samples = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in _SAMPLES]
    return {
        "class": type(tokenizer).__name__,
        "vocabulary": tokenizer.get_vocab(),
        "added": sorted(added),
        "samples": samples,
    }
