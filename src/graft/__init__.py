"""Graft: faster decoding of open-weight language models, with the same tokens.

import graft

engine = graft.load("smollm2-135m")
result = engine.generate("Name three rivers of Europe.", max_new_tokens=80)
print(result.text, result.stats.tau)
"""

from graft.engine import Engine, TokenStream
from graft.load import load
from graft.models import ModelError, list_models
from graft.request import Result, StreamToken, Usage
from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings
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
