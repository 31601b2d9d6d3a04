"""From the values of a command's options to an engine and to settings of sampling.

Values are taken by name, so a command only declares the options it has. This module imports the
library inside its functions, and after the first note: the import takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from graft.cli.notes import held_warnings, progress_notes

if TYPE_CHECKING:
    from graft.engine import Engine
    from graft.sampling_params import SamplingParams

__all__ = ["load_engine", "numbers", "plain_values", "policy_of", "sampling_params"]

# Options of the same name as a field of SamplingParams ...
_SAMPLING: Final = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
    "seed",
    "logprobs",
    "ignore_eos",
    "max_new_tokens",
    "min_new_tokens",
)
# ... and repeatable ones, whose name is in the singular.
_LISTS: Final = {
    "stop": "stop",
    "stop_token_id": "stop_token_ids",
    "banned_token": "banned_tokens",
}
# Arguments of `graft.load`, by the same name ...
_LOADING: Final = (
    "device",
    "dtype",
    "threads",
    "cpu_weights",
    "cuda_graphs",
    "drafter",
    "head",
    "draft_model",
    "head_window",
    "matrix",
    "profile",
)
_ENGINE: Final = (
    "policy",
    "budget",
    "preset",
    "beam",
    "depth",
    "refill",
    "dedup",
    "k",
    "matrix_scope",
    "prompt_learning",
    "max_batch",
)
# ... and lists of numbers, written with commas.
_NUMBERS: Final = {"checkpoints": int, "thresholds": float, "kept": int}


def sampling_params(values: Mapping[str, Any]) -> SamplingParams:
    """The settings of sampling among a command's values.

    Raises:
        ValueError: a value out of range, or a bias that is not ID=VALUE.
    """
    bias = _bias(values.get("logit_bias") or ())
    from graft.sampling_params import SamplingParams

    chosen: dict[str, Any] = {name: values[name] for name in _SAMPLING if name in values}
    chosen |= {field: tuple(values.get(name) or ()) for name, field in _LISTS.items()}
    return SamplingParams(**chosen, logit_bias=bias)


def load_engine(values: Mapping[str, Any], *, quiet: bool = False) -> Engine:
    """Load the model that a command's values name, and say so on stderr.

    Raises:
        ValueError: for a model or a setting that is not supported.
    """
    model = values["model"]
    if not model:
        raise ValueError("--model is empty: give an alias (see: graft models), a folder or a file")
    with held_warnings(quiet=quiet), progress_notes(f"loading {model}", quiet=quiet) as progress:
        from graft.loader import load

        chosen = plain_values(values, _LOADING + _ENGINE + tuple(_NUMBERS))
        return load(model, templates=values.get("template") or (), progress=progress, **chosen)


def plain_values(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Values of options as the library takes them, without those that are None.

    Raises:
        ValueError: for a list of numbers that is none.
    """
    out: dict[str, Any] = {}
    for name in names:
        value = values.get(name)
        if value is not None:
            # A choice of an option is a text of a class of its own.
            value = str(value) if isinstance(value, str) else value
            out[name] = numbers(name, value, _NUMBERS[name]) if name in _NUMBERS else value
    return out


def numbers(name: str, text: str, kind: type[int] | type[float]) -> tuple[Any, ...]:
    """Numbers with commas between them.

    Args:
        name: of the option, without the dashes.

    Raises:
        ValueError: naming the option.
    """
    try:
        return tuple(kind(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"--{name} {text!r} is not {what} with commas between them") from None


def _bias(pairs: Sequence[str]) -> dict[int, float]:
    bias = {}
    for pair in pairs:
        token, _, value = pair.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise ValueError(
                f"--logit-bias {pair!r} is not ID=VALUE, a token id and a number (as in 42=-1.5)"
            ) from None
    return bias


def policy_of(engine: Engine) -> str:
    """The policy of an engine, and whether a profile had a say in it."""
    return engine.policy if engine.profile is None else f"{engine.policy} (by profile)"
