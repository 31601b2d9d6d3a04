"""Reading a head's files: config.json and tensors, from a folder or the Hugging Face hub.

Invariant: nothing that is read is executed; a pickled .bin is loaded with `weights_only`. What
the names of fields and tensors mean is not known here.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from graft.drafters.eagle3.errors import HeadError
from graft.hub import HUB_ID, first_line

_FOLDER = "a head's folder holds config.json and model.safetensors (or pytorch_model.bin)"
_NAMES = ("model.safetensors", "pytorch_model.bin")
_POINTER = b"version https://git-lfs"  # how a file that Git LFS has not fetched begins


class Checkpoint(NamedTuple):
    """config.json as it is, and the tensors on the CPU as they are stored."""

    config: dict[str, Any]
    state: dict[str, Tensor]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a head.

    Args:
        path: a folder with config.json and safetensors, sharded safetensors with an index, or a
            .bin; or a hub id "org/name".

    Raises:
        HeadError: if there is no such thing, the hub cannot be reached, or a file is damaged.
    """
    folder = find_folder(path)
    config = read_config(folder)
    state = _tensors(folder)
    for key, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            raise HeadError(
                f"{folder}: {key} holds values that are not finite: the file is damaged"
            )
    return Checkpoint(config, state)


def find_folder(path: str | Path) -> Path:
    """The folder of a head, fetched from the hub if it is an id and not here yet."""
    place, text = Path(path).expanduser(), str(path)
    if place.is_dir():
        return place
    if place.is_file():
        raise HeadError(f"{text} is a file; give its folder: {_FOLDER}")
    if isinstance(path, str) and HUB_ID.fullmatch(text):
        return _fetch(text)
    raise HeadError(f"there is no head {text!r}: give a folder or a hub id org/name; {_FOLDER}")


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a head's folder."""
    file = folder / "config.json"
    if not file.is_file():
        if (folder / "adapter_config.json").is_file():
            raise HeadError(f"{folder} is a LoRA adapter, not an EAGLE-3 head; {_FOLDER}")
        raise HeadError(f"{folder} has no config.json; {_FOLDER}")
    found = _json(file)
    if not isinstance(found, dict):
        raise HeadError(f"{file} is no JSON object; restore the file")
    return found


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HeadError(f"{file} is not valid JSON ({error}); restore the file") from error


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
        if not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=["*.json", "*.bin"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = first_line(error)
        raise HeadError(
            f"there is no folder {name}, and the hub gave no head of that name "
            f"({reason[:300].rstrip('. ')}); check the name and the network (a gated head needs a "
            "login); HF_HUB_OFFLINE=1 uses only what was fetched before"
        ) from error
    return folder


def _tensors(folder: Path) -> dict[str, Tensor]:
    for name in _NAMES:
        if (folder / name).is_file():
            return read_file(folder / name)
        if (folder / f"{name}.index.json").is_file():
            return _shards(folder / f"{name}.index.json")
    others = [*sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*.bin"))]
    if len(others) == 1:
        return read_file(others[0])
    if not others:
        raise HeadError(f"{folder} holds no weights; {_FOLDER}")
    raise HeadError(
        f"{folder} holds several files of weights ({', '.join(f.name for f in others)}), and none "
        f"is called {' or '.join(_NAMES)}; {_FOLDER}"
    )


def _shards(index: Path) -> dict[str, Tensor]:
    places = _json(index)
    places = places.get("weight_map") if isinstance(places, dict) else None
    if not isinstance(places, dict) or not all(Path(str(v)).name == v for v in places.values()):
        raise HeadError(f"{index} has no weight_map of tensors to files; restore the file")
    state: dict[str, Tensor] = {}
    for shard in sorted(set(places.values())):
        if not (index.parent / shard).is_file():
            raise HeadError(f"{index.parent} lacks {shard}, which {index.name} names")
        state |= read_file(index.parent / shard)
    if missing := sorted(set(places) - set(state)):
        raise HeadError(f"{index.name} names tensors that no file holds: {', '.join(missing[:8])}")
    return state


def _is_pointer(file: Path) -> bool:
    """Whether Git LFS left a note in place of the file."""
    with file.open("rb") as opened:
        return opened.read(len(_POINTER)) == _POINTER


def read_file(file: Path) -> dict[str, Tensor]:
    """The tensors of one file, .safetensors or .bin, on the CPU as they are stored.

    Raises:
        HeadError: for a file that is damaged, a pointer of Git LFS, or holds more than tensors.
    """
    try:
        if _is_pointer(file):
            raise HeadError(
                f"{file} is a Git LFS pointer, not the weights: run git lfs pull in its folder"
            )
        if file.suffix == ".safetensors":
            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except HeadError:
        raise
    except pickle.UnpicklingError as error:
        raise HeadError(
            f"{file} is damaged, or holds more than tensors; Graft runs no code of a checkpoint: "
            "save it as safetensors"
        ) from error
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        reason = first_line(error)
        raise HeadError(f"{file} cannot be read ({reason[:200]}); fetch it again") from error
    if not isinstance(state, Mapping) or not all(isinstance(t, Tensor) for t in state.values()):
        raise HeadError(
            f"{file} holds no plain table of tensors (but {type(state).__name__}); save the head's "
            "state_dict"
        )
    return dict(state)
