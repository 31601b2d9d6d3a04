"""Groups of options that several commands have in common, given to a command by a decorator.

A command takes the values of such options from its context by name (`graft.cli.loading`), so its
own signature holds only what is its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, get_type_hints

import typer

from graft.cli import options as o

__all__ = ["ANSWER", "DRAW", "ENGINE", "MODEL", "shares"]

# name of the parameter -> (its option, its default)
Group = Mapping[str, tuple[Any, Any]]

MODEL: Final[Group] = {
    "model": (o.Model, "smollm2-135m"),
    "device": (o.Device, "auto"),
    "dtype": (o.DtypeOption, o.Dtype.auto),
    "threads": (o.Threads, None),
    "cpu_weights": (o.CpuWeightsOption, o.CpuWeights.auto),
    "cuda_graphs": (o.CudaGraphs, True),
}
ENGINE: Final[Group] = {
    "policy": (o.PolicyOption, None),
    "budget": (o.Budget, None),
    "preset": (o.Preset, None),
    "drafter": (o.DrafterOption, None),
    "head": (o.Head, None),
    "draft_model": (o.DraftModel, None),
    "head_window": (o.HeadWindow, None),
    "beam": (o.Beam, None),
    "depth": (o.Depth, None),
    "checkpoints": (o.Checkpoints, None),
    "thresholds": (o.Thresholds, None),
    "kept": (o.Kept, None),
    "refill": (o.Refill, True),
    "dedup": (o.DedupOption, o.Dedup.redirect),
    "template": (o.Template, None),
    "k": (o.Successors, None),
    "matrix": (o.Matrix, None),
    "profile": (o.ProfileOption, None),
    "matrix_scope": (o.MatrixScopeOption, o.MatrixScope.process),
    "prompt_learning": (o.PromptLearningOption, o.PromptLearning.text),
}
DRAW: Final[Group] = {
    "temperature": (o.Temperature, 0.0),
    "top_k": (o.TopK, 0),
    "top_p": (o.TopP, 1.0),
    "min_p": (o.MinP, 0.0),
    "repetition_penalty": (o.RepetitionPenalty, 1.0),
    "presence_penalty": (o.PresencePenalty, 0.0),
    "frequency_penalty": (o.FrequencyPenalty, 0.0),
    "no_repeat_ngram_size": (o.NoRepeatNgramSize, 0),
    "logit_bias": (o.LogitBias, None),
    "banned_token": (o.BannedToken, None),
    "seed": (o.Seed, None),
}
ANSWER: Final[Group] = {
    "max_new_tokens": (o.MaxNewTokens, 256),
    "min_new_tokens": (o.MinNewTokens, 0),
    "stop": (o.Stop, None),
    "stop_token_id": (o.StopTokenId, None),
    "ignore_eos": (o.IgnoreEos, False),
}

_TYPES: Final = {"Context": typer.Context, "Path": Path}


def shares(*groups: Group, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these groups, behind its own.

    Args:
        defaults: other defaults for some of them. Options that the command declares itself stay
            its own.

    Raises:
        TypeError: for a default of an option that no group gives to the command.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters
        hints = get_type_hints(command, localns=_TYPES, include_extras=True)
        mine = [p.replace(annotation=hints[n], kind=p.KEYWORD_ONLY) for n, p in own.items()]
        merged = {n: option for group in groups for n, option in group.items() if n not in own}
        if unknown := defaults.keys() - merged.keys():
            raise TypeError(f"no shared option of this command is called {', '.join(unknown)}")
        for name, (option, default) in merged.items():
            value = defaults.get(name, default)
            kind = inspect.Parameter.KEYWORD_ONLY
            mine.append(inspect.Parameter(name, kind, default=value, annotation=option))

        @functools.wraps(command)
        def run(**values: Any) -> None:
            command(**{name: value for name, value in values.items() if name in own})

        run.__signature__ = inspect.Signature(mine)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in mine}
        return run

    return decorate
