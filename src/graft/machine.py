"""The machine and what runs on it, by names and digests that tell them apart.

It names neither users nor hosts, and measures nothing.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import torch
from huggingface_hub import try_to_load_from_cache

from graft.models import LoadedModel
from graft.profile import MadeFor


def made_for(loaded: LoadedModel, drafter: str | Path | None) -> MadeFor:
    """What a profile is made for, here.

    Args:
        drafter: checkpoint of the drafter; None without one.
    """
    model = loaded.model
    text = model.config.get_text_config()
    return MadeFor(
        loaded.name,
        loaded.fingerprint,
        f"{text.num_hidden_layers} layers of {text.hidden_size}",
        None if drafter is None else digest_of(drafter),
        model.device.type,
        device_name(model.device),
        str(model.dtype).removeprefix("torch."),
        weights_of(loaded),
        torch.get_num_threads(),
    )


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


def name_of(path: str) -> str:
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


def weights_of(loaded: LoadedModel) -> str:
    """What became of the linears."""
    if loaded.packing is None or not loaded.packing.packed:
        return "as loaded"
    return f"{loaded.packing.packed} linears packed in {loaded.packing.kind}"


def device_name(device: torch.device) -> str:
    """Of the GPU, or of the processor."""
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
