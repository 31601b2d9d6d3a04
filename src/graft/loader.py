"""`graft.load`: from a model's name to an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from graft.engine import Engine
from graft.models import ModelError, load_model
from graft.settings import EngineSettings
from graft.target import TransformersTarget


def load(
    model: str | Path | PreTrainedModel = "smollm2-135m",
    *,
    tokenizer: PreTrainedTokenizerBase | str | Path | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    threads: int | None = None,
    cpu_weights: Any = "auto",
    progress: Callable[[str], None] | None = None,
    **settings: Any,
) -> Engine:
    """Load a model and put an engine over it.

    Args:
        model: "smollm2-135m" (the default, converted on first use), a Transformers folder, a
            .gguf file, a hub id "org/name", or a loaded model object (with `tokenizer`).
        device: "auto" takes CUDA where there is one.
        dtype: "auto" computes in fp32 on a CPU and in the stored dtype elsewhere.
        threads: CPU threads of torch; None leaves torch's own choice.
        cpu_weights: "auto" packs fp16-exact weights for the fast CPU kernel; "fp32" packs none,
            "fp16" all.
        progress: called with a line of text when something takes long.
        **settings: fields of `EngineSettings`: policy, budget, k, prompt_learning, max_batch.

    Raises:
        ValueError: for a model or a setting that is not supported.
    """
    try:
        engine_settings = EngineSettings(**settings)
    except TypeError as error:
        known = ", ".join(EngineSettings.__dataclass_fields__)
        raise ValueError(f"{', '.join(settings)}: supported engine settings are {known}") from error
    loaded = load_model(
        model,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        threads=threads,
        cpu_weights=cpu_weights,
        progress=progress,
    )
    try:
        target = TransformersTarget(loaded.model, max_context=loaded.max_context)
    except ValueError as error:
        raise ModelError(f"{loaded.name} is refused: {error}") from error
    return Engine(
        target,
        loaded.tokenizer,
        name=loaded.name,
        token_count=loaded.token_count,
        eos_token_ids=loaded.eos_token_ids,
        settings=engine_settings,
    )
