"""Graft: faster decoding of open-weight language models, with the same tokens.

import graft

engine = graft.load("smollm2-135m")
result = engine.generate("Name three rivers of Europe.", max_new_tokens=80)
print(result.text, result.stats.tau)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graft.engine import Engine
    from graft.loader import load
    from graft.models import ModelError, list_models
    from graft.request import Result, StreamToken, Usage
    from graft.sampling_params import SamplingParams
    from graft.settings import EngineSettings
    from graft.stream import TokenStream
    from graft.tree import Source

__version__ = "0.1.0"

__all__ = [
    "Engine",
    "EngineSettings",
    "ModelError",
    "Result",
    "SamplingParams",
    "Source",
    "StreamToken",
    "TokenStream",
    "Usage",
    "list_models",
    "load",
]

_HOMES = {
    "Engine": "engine",
    "EngineSettings": "settings",
    "ModelError": "models",
    "Result": "request",
    "SamplingParams": "sampling_params",
    "Source": "tree",
    "StreamToken": "request",
    "TokenStream": "stream",
    "Usage": "request",
    "list_models": "models",
    "load": "loader",
}


def __getattr__(name: str) -> Any:
    # torch and transformers take seconds to import; `graft --help` needs neither.
    if name in _HOMES:
        return getattr(importlib.import_module(f"graft.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
