"""What a run was run with: everything that a figure depends on and that its reader must know.

It looks at the process and the machine; it measures nothing. It names neither users nor hosts.
"""

from __future__ import annotations

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

import graft
from graft.machine import device_name, digest_of, name_of, weights_of
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
        "weights": weights_of(loaded),
        "drafters": {kind: [name_of(path), digest_of(path)] for kind, path in drafters.items()},
        "device": device_name(model.device),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "versions": {"graft": graft.__version__}
        | {name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


def _anonymous(text: str) -> str:
    """Results are shared; where somebody's home folder lies is nobody's business."""
    home = str(Path.home())
    return text.replace(home, "~") if home != "/" else text
