"""Reading a model and its tokenizer from a folder, the Hugging Face hub or a GGUF file.

Invariant: what comes back is complete (no weight was left at its random start), has passed the
checks of model_support, and was read without running code that lies beside the weights: code of
a model's authors (`trust_remote_code`) is never executed. Whatever goes wrong is one ModelError.
Devices, threads and weight packing are not known here.
"""

from __future__ import annotations

import io
import json
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from graft.hub import first_line
from graft.model_support import ModelError, check_config, check_model
from graft.smollm2 import smollm_pre_tokenizer

__all__ = ["Loaded", "TokenizerSource", "is_gguf", "quiet", "read_gguf", "read_pretrained"]

TokenizerSource = PreTrainedTokenizerBase | str | Path | None

# The library annotates these only in part.
_LOGGING: Any = logging
_MODELS: Any = AutoModelForCausalLM
_QUIET_LOCK = threading.RLock()  # the library's verbosity belongs to the process
_WEIGHTS_HINT = "the folder needs config.json, *.safetensors and the tokenizer's files"


class Loaded(NamedTuple):
    """What was read: the model in evaluation mode, on the CPU, and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def read_pretrained(
    source: str, name: str, dtype: torch.dtype | None, tokenizer: TokenizerSource, *, local: bool
) -> Loaded:
    """Read a Transformers folder (`local`) or a model of the hub.

    Args:
        source: the folder, or an id "org/name".
        name: how messages call the model.
        dtype: of the weights; None keeps the stored one.
        tokenizer: an object, or where else to read it; None reads it beside the model.

    Raises:
        ModelError: on everything that can be wrong with the files, the name or the network.
    """
    if local:
        _check_folder(Path(source))
    options: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    with _explained(name, _WEIGHTS_HINT if local else _hub_hint(source)):
        config = AutoConfig.from_pretrained(source, **options)
        check_config(config, name)
        # The tokenizer first: a fault there shows before gigabytes are read.
        found = _tokenizer(tokenizer, source, name, **options)
        model, info = _MODELS.from_pretrained(
            source, config=config, dtype=dtype or "auto", output_loading_info=True, **options
        )
        return Loaded(_complete(model, info, name), found)


def read_gguf(
    path: Path, name: str, dtype: torch.dtype | None, tokenizer: TokenizerSource
) -> Loaded:
    """Read a GGUF file of an architecture that Transformers maps, unpacking its weights.

    Arguments and errors as for `read_pretrained`; dtype None means fp16, which keeps more of a
    quantised weight than bf16. The tokenizer is the file's own unless one is given.
    """
    if not is_gguf(path):
        raise ModelError(
            f"{path} is not a GGUF file; give a .gguf file, or the folder that holds a "
            "Transformers model"
        )
    hint = (
        "Graft reads whole GGUF files of the architectures that Transformers maps; fetch the file "
        "again, or give a folder instead"
    )
    with _explained(name, hint), redirect_stderr(io.StringIO()):
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        check_config(config, name)
        model, pre_tokenizer = _gguf_model(path, config, name, dtype or torch.float16)
        if tokenizer is not None:
            return Loaded(model, _tokenizer(tokenizer, "", name))
        found = _tokenizer(None, str(path.parent), name, gguf_file=path.name)
        if pre_tokenizer == "smollm":  # the library rebuilds it without its split of digits
            found.backend_tokenizer.pre_tokenizer = smollm_pre_tokenizer()
        return Loaded(model, found)


def is_gguf(path: Path) -> bool:
    """Whether a file begins like a GGUF file."""
    with path.open("rb") as stream:
        return stream.read(4) == b"GGUF"


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Transformers' warnings and its own progress bars, then restore them.

    Downloads from the hub keep their progress bars.
    """
    with _QUIET_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level = _LOGGING.get_verbosity()
        bars = _LOGGING.is_progress_bar_enabled()
        hub_bars = not are_progress_bars_disabled()
        _LOGGING.set_verbosity_error()
        _LOGGING.disable_progress_bar()
        if hub_bars:
            enable_progress_bars()
        try:
            yield
        finally:
            _LOGGING.set_verbosity(level)
            if bars:
                _LOGGING.enable_progress_bar()
            if not hub_bars:
                disable_progress_bars()


@contextmanager
def _explained(name: str, hint: str) -> Iterator[None]:
    """Turn whatever the library raises on bad files into one sentence."""
    try:
        with quiet():
            yield
    except ModelError:
        raise
    except Exception as error:
        reason = first_line(error)
        raise ModelError(f"{name} cannot be loaded: {reason[:400].rstrip('. ')}; {hint}") from error


def _hub_hint(name: str) -> str:
    return (
        f"check that {name} is a folder here or a model on the Hugging Face hub, and that the hub "
        "can be reached (a gated model needs a login); HF_HUB_OFFLINE=1 uses only what was fetched "
        "before"
    )


def _check_folder(folder: Path) -> None:
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} is not a model folder: it has no config.json; {_WEIGHTS_HINT}")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is not valid JSON ({error}); restore the file") from error
    if not isinstance(fields, dict) or "model_type" not in fields:
        raise ModelError(f"{path} names no model_type; {_WEIGHTS_HINT}")


def _tokenizer(
    given: TokenizerSource, beside: str, name: str, **options: Any
) -> PreTrainedTokenizerBase:
    if isinstance(given, PreTrainedTokenizerBase):
        return given
    source = beside if given is None else str(given)
    hint = "give `tokenizer=` the model's tokenizer, or the folder or hub id that has it"
    if Path(source).is_dir() and not _has_tokenizer(Path(source), options):
        raise ModelError(f"{source} holds no tokenizer; {hint}")
    try:
        found = AutoTokenizer.from_pretrained(source, **options)
    except Exception as error:
        reason = first_line(error)
        raise ModelError(f"the tokenizer of {name} cannot be loaded: {reason}; {hint}") from error
    if not isinstance(found, PreTrainedTokenizerBase) or len(found) == 0:
        raise ModelError(f"the tokenizer of {name} is empty; {hint}")
    return found


def _has_tokenizer(folder: Path, options: dict[str, Any]) -> bool:
    """Without its files the library builds an empty tokenizer and says nothing."""
    patterns = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json", "*spm*")
    return "gguf_file" in options or any(next(folder.glob(p), None) for p in patterns)


def _complete(model: Any, info: dict[str, Any], name: str) -> PreTrainedModel:
    """Refuse a model some of whose weights are not in the checkpoint: they would be random."""
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{name} lacks weights: {', '.join(missing[:3])}"
            f"{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}; the checkpoint is "
            "not complete or is of another model"
        )
    check_model(model, name)
    return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


def _gguf_model(
    path: Path, config: Any, name: str, dtype: torch.dtype
) -> tuple[PreTrainedModel, str | None]:
    # Not `from_pretrained(gguf_file=...)`: that asks for the accelerate package first, and on
    # some machines fetches kernels.
    from transformers import modeling_gguf_pytorch_utils

    reader: Any = modeling_gguf_pytorch_utils
    with torch.device("meta"):
        skeleton = _MODELS.from_config(config)
    parsed = reader.load_gguf_checkpoint(
        str(path), return_tensors=True, model_to_load=skeleton, torch_dtype=dtype
    )
    model, info = type(skeleton).from_pretrained(
        None, config=config, state_dict=parsed["tensors"], dtype=dtype, output_loading_info=True
    )
    return _complete(model, info, name), parsed["tokenizer"].get("pre_tokenizer_type")
