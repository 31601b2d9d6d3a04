"""What answers for methods of others: a model as Transformers runs it, or as llama.cpp does.

It knows how they are made, not what they are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from graft.bench import llama
from graft.bench.methods import OTHER_WEIGHTS
from graft.bench.outside import Answer, generate
from graft.models import LoadedModel, load_model


class Others:
    """Gives what answers for a method; each is made once, when it is first asked for.

    Args:
        model: settings of `load_model`.
        gguf: what llama.cpp reads (`gguf_of`).
        loaded: the model as Graft runs it.
    """

    def __init__(
        self,
        model: Mapping[str, Any],
        gguf: Path | None,
        loaded: LoadedModel,
        progress: Callable[[str], None] | None,
    ) -> None:
        self._model, self._gguf, self._loaded = model, gguf, loaded
        self._say = progress or (lambda _: None)
        self._made: dict[str, Answer] = {}

    def __call__(self, method: str) -> Answer:
        kind = method if method in OTHER_WEIGHTS else "hf"  # its two methods share a model
        if kind not in self._made:
            self._made[kind] = self._llama() if kind == llama.METHOD else self._transformers()
        return self._made[kind]

    def _transformers(self) -> Answer:
        self._say("loading the model once more, as Transformers runs it")
        model = load_model(**{**self._model, "cpu_weights": "fp32"}).model
        return partial(generate, model)

    def _llama(self) -> Answer:
        assert self._gguf is not None
        self._say(f"loading {self._gguf.name} into llama.cpp")
        context = self._loaded.max_context or llama.CONTEXT
        return llama.LlamaCpp(self._gguf, torch.get_num_threads(), context).generate


def gguf_of(methods: Sequence[str], model: str, given: str | None) -> Path | None:
    """What llama.cpp reads, if it is among the methods.

    Raises:
        ValueError: as `llama.find_gguf`, and for a file that nobody would read.
    """
    if llama.METHOD in methods:
        return llama.find_gguf(model, given)
    if given is not None:
        raise ValueError(f"gguf is what {llama.METHOD} reads: name that among the methods too")
    return None
