"""The facts of a target: of a loaded one, or from its files, without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from graft.drafters.eagle3.facts import TargetFacts
from graft.fingerprint import tokenizer_fingerprint
from graft.hub import HUB_ID, first_line
from graft.model_files import quiet
from graft.model_support import ModelError, check_config
from graft.models import LoadedModel
from graft.smollm2 import ALIAS, ensure_smollm2


def read_target_facts(model: str | Path) -> TargetFacts:
    """Configuration and tokenizer of a target.

    Args:
        model: "smollm2-135m", a Transformers folder or a hub id "org/name".

    Raises:
        ModelError: if it cannot be read, or Graft cannot decode it.
    """
    text = str(model)
    source = str(ensure_smollm2()) if text == ALIAS else text
    local = Path(source).expanduser().is_dir()
    if not local and not HUB_ID.fullmatch(source):
        raise ModelError(
            f"there is no target {text!r} whose configuration can be read alone: give {ALIAS}, a "
            "Transformers folder or a hub id org/name"
        )
    options: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    place = str(Path(source).expanduser()) if local else source
    try:
        with quiet():
            config = AutoConfig.from_pretrained(place, **options)
            tokenizer = AutoTokenizer.from_pretrained(place, **options)
    except Exception as error:  # the library raises anything on files it does not know
        reason = first_line(error)
        raise ModelError(
            f"configuration and tokenizer of {text} cannot be read ({reason[:300].rstrip('. ')}); "
            "check the name, and that the hub can be reached if it is one"
        ) from error
    check_config(config, text)
    return _facts(config.get_text_config(decoder=True), tokenizer, text)


def facts_of(loaded: LoadedModel) -> TargetFacts:
    """Those of a target that is loaded."""
    config = loaded.model.config.get_text_config(decoder=True)
    return TargetFacts(
        name=loaded.name,
        hidden_size=int(config.hidden_size),
        vocab_size=loaded.vocab_size,
        token_count=loaded.token_count,
        num_hidden_layers=int(config.num_hidden_layers),
        fingerprint=loaded.fingerprint,
    )


def _facts(config: Any, tokenizer: Any, name: str) -> TargetFacts:
    vocab = int(config.vocab_size)
    count = min(vocab, 1 + max(tokenizer.get_vocab().values()))
    return TargetFacts(
        name=name,
        hidden_size=int(config.hidden_size),
        vocab_size=vocab,
        token_count=count,
        num_hidden_layers=int(config.num_hidden_layers),
        fingerprint=tokenizer_fingerprint(tokenizer, count),
    )
