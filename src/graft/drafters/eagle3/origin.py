"""What a checkpoint says of where it comes from: its target and that target's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class Origin:
    """Target and tokenizer fingerprint that a head was trained with; None where it is silent."""

    target: str | None
    fingerprint: str | None
    note: str | None = None


def read_origin(config: Mapping[str, Any], folder: Path, token_count: int | None) -> Origin:
    """Read what `save_head` or speculators wrote; else fingerprint a tokenizer in the folder.

    Args:
        token_count: ids of the target that count; None leaves the tokenizer alone.
    """
    ours = _object(config, "graft")
    named = ours.get("target") or _object(config, "speculators_config", "verifier").get(
        "name_or_path"
    )
    target = str(named) if named else None
    if stated := ours.get("tokenizer_fingerprint"):
        return Origin(target, str(stated))
    if token_count is None or not any((folder / name).is_file() for name in _TOKENIZERS):
        return Origin(target, None)
    return _fingerprint(folder, target, token_count)


def _fingerprint(folder: Path, target: str | None, token_count: int) -> Origin:
    from transformers import AutoTokenizer

    from graft.fingerprint import tokenizer_fingerprint
    from graft.model_files import quiet

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        return Origin(target, tokenizer_fingerprint(tokenizer, token_count))
    except Exception as error:  # the library raises anything on files it does not know
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        return Origin(target, None, f"the tokenizer beside the head cannot be read ({reason})")


def _object(config: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    found: Any = config
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
