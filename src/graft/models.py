"""The loading edge: from what a user names to a model the engine can decode with.

Invariant: a `LoadedModel` is a causal language model in evaluation mode whose cache can be cut
back, together with its tokenizer and the facts a decoder needs (end-of-sequence ids, the width of
its logits, how many of those ids are real, how long a text it takes). Everything a user can get
wrong ends here as a `ModelError`. Code that comes with a checkpoint is never executed, so there is
no `trust_remote_code`. How tokens are chosen or verified is not known here.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from graft.cuda_graphs import recorder_for
from graft.fingerprint import tokenizer_fingerprint
from graft.hub import HUB_ID
from graft.model_files import Loaded, TokenizerSource, read_gguf, read_pretrained
from graft.model_list import ModelEntry, list_models
from graft.model_support import ModelError, check_config, check_model, last_fixed_position
from graft.recordings import Recorder
from graft.smollm2 import ALIAS as SMOLLM2
from graft.smollm2 import ensure_smollm2

if TYPE_CHECKING:
    from graft.linear import CpuWeights
    from graft.pack_report import PackReport

__all__ = [
    "ALIASES",
    "LoadedModel",
    "ModelEntry",
    "ModelError",
    "list_models",
    "load_model",
    "parse_dtype",
]

ALIASES = (SMOLLM2,)
CPU_WEIGHTS = ("auto", "fp16", "fp32")
_DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "fp16": torch.float16,
    "float16": torch.float16,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
}


log = logging.getLogger("graft")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to decode, with what a decoder must know about it.

    vocab_size: width of its logits. token_count: ids below it are tokens the tokenizer knows; the
    ids from token_count to vocab_size are padding and must never be emitted. eos_token_ids: any
    of them ends a text; may be empty. max_context: most tokens of a text; None if not stated.
    is_chat: the tokenizer has a chat template. packing: what became of the CPU linears; None if
    nothing was tried. recorder: of CUDA graphs, for the model and its drafter; None without.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    source: Path | str
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    token_count: int
    max_context: int | None
    is_chat: bool
    packing: PackReport | None = None
    recorder: Recorder | None = None

    @cached_property
    def fingerprint(self) -> str:
        """What its token ids mean (`graft.fingerprint`)."""
        return tokenizer_fingerprint(self.tokenizer, self.token_count)


def load_model(
    model: str | Path | PreTrainedModel = SMOLLM2,
    *,
    tokenizer: TokenizerSource = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    threads: int | None = None,
    cpu_weights: CpuWeights = "auto",
    cuda_graphs: bool = True,
    progress: Callable[[str], None] | None = None,
) -> LoadedModel:
    """Load a model by name, or take one that is loaded already.

    Args:
        model: "smollm2-135m" (converted on first use), a Transformers folder, a .gguf file, a hub
            id "org/name", or a model object. Of an object neither device nor dtype nor, unless
            cpu_weights asks for it, weights are touched; it needs `tokenizer`.
        tokenizer: an object, a folder or a hub id; by default the one beside the model.
        device: "auto" takes CUDA where there is one, else the CPU.
        dtype: "fp32", "fp16", "bf16" or a torch dtype. "auto" computes in fp32 on the CPU and in
            the stored dtype (fp16 for a GGUF file) elsewhere.
        threads: torch's CPU threads for this process; None leaves them.
        cpu_weights: how linear layers keep weights on a CPU: "auto" (packed where that is
            faster), "fp16" (of a model in fp32) or "fp32" (as loaded).
        cuda_graphs: record forwards of a model that is on one CUDA device, and replay them: faster,
            for some memory and time at the first round of each shape.
        progress: gets one sentence before a step that takes seconds.

    Raises:
        ModelError: if the model cannot be found, read, supported or placed.
    """
    _check_settings(threads, cpu_weights)
    name: str
    source: Path | str
    if isinstance(model, nn.Module):
        loaded = _adopt(model, tokenizer, device, dtype)
        cpu_weights = "fp32" if cpu_weights == "auto" else cpu_weights
        name, source = _object_name(loaded.model), f"{type(loaded.model).__name__} object"
    else:
        place, kind = _device(device), parse_dtype(dtype)
        if kind is None and place.type == "cpu":
            kind = torch.float32
        loaded, name, source = _read(model, kind, tokenizer, progress)
        _move(loaded.model, place, name)
    if threads is not None:
        torch.set_num_threads(threads)
    described = _describe(loaded, name, source)
    recorder = recorder_for(loaded.model) if cuda_graphs else None
    return replace(described, packing=_pack(loaded.model, cpu_weights), recorder=recorder)


def _check_settings(threads: int | None, cpu_weights: str) -> None:
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int)):
        raise ModelError(f"threads must be a whole number, not {threads!r}")
    if threads is not None and threads < 1:
        raise ModelError(f"threads must be 1 or more, not {threads}")
    if cpu_weights not in CPU_WEIGHTS:
        raise ModelError(
            f"cpu_weights must be one of {', '.join(CPU_WEIGHTS)}, not {cpu_weights!r}"
        )


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"unknown device {device!r}; use auto, cpu, cuda or cuda:0") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {device} was asked for, but torch finds no CUDA here; use cpu")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ModelError(f"there is no {device}: torch sees {torch.cuda.device_count()} device(s)")
    return place


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    """The dtype that a name means; None for "auto".

    Raises:
        ModelError: for another name.
    """
    if dtype == "auto":
        return None
    found = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ModelError(f"unknown dtype {dtype!r}; use auto, fp32, fp16 or bf16")
    return found


def _read(
    model: str | Path,
    dtype: torch.dtype | None,
    tokenizer: TokenizerSource,
    progress: Callable[[str], None] | None,
) -> tuple[Loaded, str, Path | str]:
    text, path = str(model), Path(model).expanduser()
    if text == SMOLLM2:
        folder = ensure_smollm2(progress=progress)
        return read_pretrained(str(folder), text, dtype, tokenizer, local=True), text, folder
    if path.is_dir():
        name = path.resolve().name
        return read_pretrained(str(path), name, dtype, tokenizer, local=True), name, path
    if path.is_file():
        return read_gguf(path, path.name, dtype, tokenizer), path.stem, path
    if isinstance(model, str) and HUB_ID.fullmatch(text) and not text.endswith(".gguf"):
        return read_pretrained(text, text, dtype, tokenizer, local=False), text, text
    raise _unknown(text)


def _unknown(text: str) -> ModelError:
    close = difflib.get_close_matches(text.lower(), ALIASES, n=1, cutoff=0.4)
    meant = f"did you mean {close[0]}? Otherwise use" if close else "use"
    return ModelError(
        f"there is no model {text!r}: no such file or folder, and no alias of that name; {meant} "
        f"an alias ({', '.join(ALIASES)}), a Transformers folder, a .gguf file or a hub id org/name"
    )


def _adopt(model: nn.Module, tokenizer: TokenizerSource, device: object, dtype: object) -> Loaded:
    """Check a model object without changing it."""
    if not isinstance(model, PreTrainedModel):
        raise ModelError(f"a {type(model).__name__} is not a model of Transformers")
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        found = "none was given" if tokenizer is None else f"a {type(tokenizer).__name__} was given"
        raise ModelError(
            f"a loaded model needs its tokenizer object too, but {found}; load it with "
            "AutoTokenizer.from_pretrained and give it as tokenizer="
        )
    if device != "auto" or dtype != "auto":
        raise ModelError("device and dtype of a loaded model are left alone; use model.to(...)")
    name = _object_name(model)
    check_config(model.config, name)
    check_model(model, name)
    if model.training:
        raise ModelError(f"{name} is in training mode, where dropout is on; call model.eval()")
    return Loaded(model, tokenizer)


def _object_name(model: PreTrainedModel) -> str:
    return str(getattr(model, "name_or_path", "") or type(model).__name__)


def _move(model: PreTrainedModel, device: torch.device, name: str) -> None:
    try:
        model.to(device)  # type: ignore[arg-type]
    except RuntimeError as error:
        raise ModelError(
            f"{name} cannot be moved to {device}: {error}; try device='cpu'"
        ) from error


def _describe(loaded: Loaded, name: str, source: Path | str) -> LoadedModel:
    model, tokenizer = loaded
    config = model.config.get_text_config(decoder=True)
    weight = getattr(model.get_output_embeddings(), "weight", None)
    width = int(config.vocab_size if weight is None else weight.shape[0])
    known = 1 + max(tokenizer.get_vocab().values())
    if known > width:
        log.warning(
            "the tokenizer knows %d ids, but %s has logits for %d: is it this model's tokenizer? "
            "Texts that need the others will be refused.",
            known,
            name,
            width,
        )
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        source=source,
        eos_token_ids=_eos_token_ids(model.generation_config, config, tokenizer),
        vocab_size=width,
        token_count=min(width, known),
        max_context=_max_context(config),
        is_chat=bool(getattr(tokenizer, "chat_template", None)),
    )


def _eos_token_ids(*sources: Any) -> tuple[int, ...]:
    """The ids of the first source that states any: an int, or a list of them."""
    for source in sources:
        stated = getattr(source, "eos_token_id", None)
        ids = stated if isinstance(stated, list | tuple) else [stated]
        if known := [i for i in ids if isinstance(i, int) and i >= 0]:
            return tuple(dict.fromkeys(known))
    return ()


def _max_context(config: Any) -> int | None:
    limits = [n for n in (_stated_context(config), last_fixed_position(config)) if n is not None]
    return min(limits, default=None)


def _stated_context(config: Any) -> int | None:
    for field in ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len"):
        stated = getattr(config, field, None)
        if isinstance(stated, int) and stated > 0:
            return stated
    return None


def _pack(model: PreTrainedModel, mode: CpuWeights) -> PackReport | None:
    if mode == "fp32" or model.device.type != "cpu":
        return None
    if model.dtype == torch.bfloat16 and mode == "auto":
        from graft.linear_bf16 import pack_bf16

        return pack_bf16(model)
    if model.dtype != torch.float32:
        return None
    from graft.linear import pack_linears

    try:
        return pack_linears(model, mode)
    except ValueError as error:
        raise ModelError(str(error)) from error
