"""The models that can be named without a download: the aliases and what the hub cache holds.

Invariant: listing reads no weights, unless digests are to be checked, and touches no network.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import CacheNotFound, scan_cache_dir

from graft.model_cache import missing_files
from graft.smollm2 import ALIAS, check_smollm2, smollm2_folder

__all__ = ["ModelEntry", "list_models"]


@dataclass(frozen=True)
class ModelEntry:
    """One model: its name for `load_model`, and whether it is ready to load offline.

    size: bytes on disk when ready. problems: what a check of the digests found.
    """

    alias: str
    description: str
    size: int
    licence: str
    ready: bool
    path: Path
    problems: tuple[str, ...] = ()


def list_models(cache_dir: Path | str | None = None, *, check: bool = False) -> list[ModelEntry]:
    """Return the aliases, then the causal language models in the Hugging Face hub cache.

    Args:
        cache_dir: Graft's cache, as for `ensure_smollm2`.
        check: compare the digests of converted models (a fraction of a second each).
    """
    folder = smollm2_folder(cache_dir)
    ready = not missing_files(folder)
    found = check_smollm2(cache_dir) if check and folder.is_dir() else []
    alias = ModelEntry(
        alias=ALIAS,
        description="SmolLM2-135M-Instruct: chat, English, 30 layers, vocabulary 49,152",
        size=273_000_000,
        licence="Apache-2.0",
        ready=ready and not found,
        path=folder,
        problems=tuple(found),
    )
    return [alias, *_hub_models()]


def _hub_models() -> list[ModelEntry]:
    try:
        repos = scan_cache_dir().repos
    except (CacheNotFound, ValueError, OSError):
        return []
    entries = (_hub_entry(r) for r in repos if r.repo_type == "model")
    return sorted((e for e in entries if e is not None), key=lambda e: e.alias)


def _hub_entry(repo: Any) -> ModelEntry | None:
    revisions = sorted(repo.revisions, key=lambda r: r.last_modified)
    for revision in reversed(revisions):
        kind = _causal_class(revision.snapshot_path)
        weights = any(f.file_name.endswith(".safetensors") for f in revision.files)
        if kind and weights:
            return ModelEntry(
                alias=repo.repo_id,
                description=f"{kind}, from the Hugging Face hub cache",
                size=revision.size_on_disk,
                licence="see its model card",
                ready=True,
                path=Path(revision.snapshot_path),
            )
    return None


def _causal_class(snapshot: Path) -> str | None:
    try:
        fields = json.loads((snapshot / "config.json").read_text(encoding="utf-8"))
        names = [str(n) for n in fields.get("architectures") or ()]
    except (OSError, ValueError, AttributeError):
        return None
    return next((n for n in names if n.endswith(("ForCausalLM", "LMHeadModel"))), None)
