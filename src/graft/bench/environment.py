"""What a run was run with: everything that a figure depends on and that its reader must know.

It looks at the process and the machine; it measures nothing. It names neither users nor hosts.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache

import graft
from graft.models import LoadedModel

_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")


def environment(
    loaded: LoadedModel,
    drafters: Mapping[str, str],
    *,
    prompts_hash: str,
    settings: Mapping[str, Any],
    command: Sequence[str],
) -> dict[str, Any]:
    """The record of a run.

    Args:
        drafters: kind and checkpoint of each drafter: a folder, a file or a hub id.
        prompts_hash: of the suite as it was run.
        settings: of the run, as plain values.
        command: the words of the command line; the user's home folder is written "~".
    """
    model = loaded.model
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _anonymous(shlex.join(command)),
        "settings": dict(settings),
        "prompts_hash": prompts_hash,
        "model": loaded.name,
        "model_digest": digest_of(loaded.source),
        "tokenizer": loaded.fingerprint,
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights": _weights(loaded),
        "drafters": {kind: [_name(path), digest_of(path)] for kind, path in drafters.items()},
        "device": _device(model.device),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "versions": {"graft": graft.__version__}
        | {name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


def digest_of(source: object) -> str | None:
    """sha256 over the weights in a folder or file, or of a hub id that was fetched; 16 digits.

    None where there are none.
    """
    path = _place(str(source))
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    files = files or sorted(path.glob("*.bin"))
    if not files:
        return None
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()[:16]


def _anonymous(text: str) -> str:
    """Results are shared; where somebody's home folder lies is nobody's business."""
    home = str(Path.home())
    return text.replace(home, "~") if home != "/" else text


def _name(path: str) -> str:
    """A folder or file by its name, a hub id as it is."""
    place = Path(path).expanduser()
    return place.resolve().name if place.exists() else path


def _place(source: str) -> Path:
    """Where a checkpoint lies: one of the hub has been fetched by now."""
    path = Path(source).expanduser()
    if path.exists():
        return path
    try:
        found = try_to_load_from_cache(source, "config.json")
    except ValueError:  # no name of the hub
        return path
    return Path(found).parent if isinstance(found, str) else path


def _weights(loaded: LoadedModel) -> str:
    if loaded.packing is None or not loaded.packing.packed:
        return "as loaded"
    return f"{loaded.packing.packed} linears packed in {loaded.packing.kind}"


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    names = [
        line.partition(":")[2].strip()
        for line in _read(Path("/proc/cpuinfo")).splitlines()
        if line.startswith("model name")
    ]
    return f"{device.type} ({names[0] if names else platform.processor() or 'unknown'})"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
