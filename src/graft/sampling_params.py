"""The settings of sampling, as a user states them, validated once.

Purpose: hold every setting of one request in a frozen dataclass, and refuse what is not supported
by name, with what was found and what would work.

Invariant: an instance that exists is valid as far as that can be known without a model. The
ranges keep every processed score of a finite logit finite in float32 (or -inf where banned).

What it does not know: the vocabulary (the sampler checks token ids against it), tensors, how a
setting is applied. The ranges are ours.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:  # torch takes seconds to import, a mistake in a setting is told at once
    from torch import Tensor

__all__ = ["LogitsProcessor", "SampleRequest", "SamplingParams"]

# (input_ids [1, n] int64, scores [1, V] float32) -> scores [1, V], as in Transformers.
LogitsProcessor = Callable[["Tensor", "Tensor"], "Tensor"]


class _Range(NamedTuple):
    low: float
    high: float
    words: str  # the range, for the error message
    open_low: bool = False  # low itself is outside
    also: float | None = None  # one value outside the range that is allowed too


_REALS: Final = {
    "temperature": _Range(1e-5, 1e5, "0 (greedy), or 1e-5 to 1e5", also=0.0),
    "top_p": _Range(0.0, 1.0, "above 0, at most 1 (off)", open_low=True),
    "min_p": _Range(0.0, 1.0, "0 (off) to 1"),
    "repetition_penalty": _Range(1e-4, 1e4, "1e-4 to 1e4 (1 is off)"),
    "presence_penalty": _Range(-1e4, 1e4, "-1e4 to 1e4 (0 is off)"),
    "frequency_penalty": _Range(-1e4, 1e4, "-1e4 to 1e4 (0 is off)"),
}
_BIAS: Final = _Range(-1e4, 1e4, "-1e4 to 1e4; to forbid a token use banned_tokens")
_COUNTS: Final = {
    "top_k": _Range(0, math.inf, "0 (off) or more"),
    "no_repeat_ngram_size": _Range(0, 256, "0 (off) to 256"),
    "max_new_tokens": _Range(1, math.inf, "1 or more"),
    "min_new_tokens": _Range(0, math.inf, "0 or more"),
}
_LOGPROBS: Final = _Range(0, 20, "None (off), or 0 to 20 alternatives")
_TOKEN_ID: Final = _Range(0, math.inf, "a token id, 0 or more")
_ANY_INT: Final = _Range(-math.inf, math.inf, "None (a fresh one), or any int")


class _Refused(NamedTuple):
    feature: str
    neutral: tuple[object, ...] = (None,)  # values that wish for nothing
    advice: str = ""


# Settings of other libraries that change the output and that we do not have.
_REFUSED: Final = {
    "num_beams": _Refused("beam search", (None, 1)),
    "num_beam_groups": _Refused("diverse beam search", (None, 1)),
    "diversity_penalty": _Refused("diverse beam search", (None, 0)),
    "length_penalty": _Refused("the length penalty of beam search", (None, 1)),
    "early_stopping": _Refused("the stopping rule of beam search", (None, False)),
    "best_of": _Refused("choosing among several answers", (None, 1)),
    "guidance_scale": _Refused("classifier-free guidance", (None, 1)),
    "negative_prompt_ids": _Refused("classifier-free guidance"),
    "typical_p": _Refused("typical sampling", (None, 1)),
    "epsilon_cutoff": _Refused("epsilon sampling", (None, 0)),
    "eta_cutoff": _Refused("eta sampling", (None, 0)),
    "top_a": _Refused("top-a sampling", (None, 0)),
    "top_h": _Refused("top-h sampling"),
    "tfs": _Refused("tail-free sampling", (None, 1)),
    "mirostat": _Refused("mirostat sampling", (None, 0)),
    "xtc_probability": _Refused("XTC sampling", (None, 0)),
    "dry_multiplier": _Refused("the DRY penalty", (None, 0), "try no_repeat_ngram_size"),
    "penalty_alpha": _Refused("contrastive search", (None, 0)),
    "dola_layers": _Refused("DoLa decoding"),
    "encoder_repetition_penalty": _Refused("the encoder's repetition penalty", (None, 1)),
    "encoder_no_repeat_ngram_size": _Refused("the encoder's n-gram ban", (None, 0)),
    "exponential_decay_length_penalty": _Refused("the decaying length penalty"),
    "sequence_bias": _Refused("bias on token sequences", advice="logit_bias takes single tokens"),
    "bad_words_ids": _Refused("bans of token sequences", advice="banned_tokens takes single ids"),
    "watermarking_config": _Refused("watermarking", advice="pass it in logits_processors"),
    "do_sample": _Refused("a switch for sampling", advice="set temperature (0 is greedy)"),
} | {
    name: _Refused("constrained output", advice="pass a constraint in logits_processors")
    for name in (
        "constraints",
        "force_words_ids",
        "prefix_allowed_tokens_fn",
        "grammar",
        "regex",
        "json_schema",
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "guided_decoding",
    )
}  # fmt: skip


def _error(name: str, found: object, supported: str) -> ValueError:
    return ValueError(f"{name}={found!r} is not supported; supported: {supported}")


def _number(name: str, found: object, span: _Range, kind: type[Real] | type[Integral]) -> Any:
    """The number as a plain Python one, if it is of the kind and lies within the range."""
    if isinstance(found, bool) or not isinstance(found, kind):
        wanted = "an int" if kind is Integral else "a number"
        raise _error(name, found, f"{wanted}, {span.words}")
    number: Any = int(found) if isinstance(found, Integral) else float(found)
    inside = (span.low < number if span.open_low else span.low <= number) and number <= span.high
    if not inside and number != span.also:
        raise _error(name, found, span.words)
    return number


def _tuple(name: str, found: object, wanted: str) -> tuple[Any, ...]:
    if found is None:
        return ()
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise _error(name, found, wanted)
    return tuple(found)


def _ids(name: str, found: object) -> tuple[int, ...]:
    return tuple(
        _number(name, token, _TOKEN_ID, Integral)
        for token in _tuple(name, found, "a sequence of token ids")
    )


def _bias(found: object) -> dict[int, float]:
    if not isinstance(found, Mapping):
        raise _error("logit_bias", found, "a mapping of token ids to numbers")
    return {
        _number("logit_bias", token, _TOKEN_ID, Integral): float(
            _number(f"logit_bias[{token!r}]", value, _BIAS, Real)
        )
        for token, value in found.items()
    }


def _stop(found: object) -> tuple[str, ...]:
    wanted = "a text that is not empty, or a sequence of such"
    texts = (found,) if isinstance(found, str) else _tuple("stop", found, wanted)
    if not all(isinstance(text, str) and text for text in texts):
        raise _error("stop", found, wanted)
    return texts


def _processors(found: object) -> tuple[LogitsProcessor, ...]:
    wanted = "a sequence of callables (input_ids [1, n], scores [1, V]) -> scores [1, V]"
    callables = _tuple("logits_processors", found, wanted)
    if not all(callable(each) for each in callables):
        raise _error("logits_processors", found, wanted)
    return callables


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends; the default is greedy.

    The settings act in this order, which is that of Transformers: repetition penalty, frequency
    and presence penalty, n-gram ban, bias, bans, minimum length, the user's own processors, then
    (not in greedy rows) temperature, top-k, top-p, min-p. Lists are accepted where a tuple is
    declared, and one text for ``stop``.

    Raises:
        ValueError: naming the setting, what was found, and what is supported.
    """

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0  # 1 is off
    min_p: float = 0.0  # relative to the best probability after the temperature; 0 is off
    repetition_penalty: float = 1.0  # prompt and output tokens count; 1 is off
    presence_penalty: float = 0.0  # subtracted from tokens that the output holds
    frequency_penalty: float = 0.0  # subtracted once for each time the output holds the token
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    banned_tokens: tuple[int, ...] = ()
    no_repeat_ngram_size: int = 0  # over prompt and output; 0 is off
    seed: int | None = None  # counts modulo 2^64; None: the engine draws a fresh one
    logprobs: int | None = None  # None is off; n: the chosen token's and n alternatives
    stop: tuple[str, ...] = ()  # texts that end the output
    stop_token_ids: tuple[int, ...] = ()  # ids that end the output, besides the model's own
    ignore_eos: bool = False  # the model's own end ids do not end the output
    max_new_tokens: int = 256
    min_new_tokens: int = 0  # ids that end the output are banned before so many tokens
    logits_processors: tuple[LogitsProcessor, ...] = ()  # in order; the Transformers protocol

    def __post_init__(self) -> None:
        for name, span in _REALS.items():
            self._set(name, float(_number(name, getattr(self, name), span, Real)))
        for name, span in _COUNTS.items():
            self._set(name, _number(name, getattr(self, name), span, Integral))
        for name, span in (("seed", _ANY_INT), ("logprobs", _LOGPROBS)):
            if getattr(self, name) is not None:
                self._set(name, _number(name, getattr(self, name), span, Integral))
        for name in ("banned_tokens", "stop_token_ids"):
            self._set(name, _ids(name, getattr(self, name)))
        self._set("logit_bias", _bias(self.logit_bias))
        self._set("stop", _stop(self.stop))
        self._set("logits_processors", _processors(self.logits_processors))
        if not isinstance(self.ignore_eos, bool):
            raise _error("ignore_eos", self.ignore_eos, "True or False")
        if self.min_new_tokens > self.max_new_tokens:
            raise _error(
                "min_new_tokens",
                self.min_new_tokens,
                f"0 to max_new_tokens ({self.max_new_tokens})",
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """True if the best processed logit is taken, without noise."""
        return self.temperature == 0.0

    @property
    def reads_history(self) -> bool:
        """True if the choice depends on which tokens came before, not on the logits alone."""
        penalised = (
            self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty
        )
        return bool(penalised or self.no_repeat_ngram_size or self.logits_processors)

    @classmethod
    def from_kwargs(cls, **kwargs: Any) -> SamplingParams:
        """Build from loose names, as a command line or a server receives them.

        Settings of other libraries that we do not have pass where their value wishes for nothing
        (``num_beams=1``), and are refused otherwise.

        Raises:
            ValueError: a feature we do not have, a name nobody knows, or a value out of range.
        """
        known = [each.name for each in fields(cls)]
        faults = [_fault(name, found, known) for name, found in kwargs.items() if name not in known]
        if any(faults):
            supported = f"supported settings are {', '.join(known)}"
            raise ValueError("; ".join([*filter(None, faults), supported]))
        return cls(**{name: found for name, found in kwargs.items() if name in known})


def _fault(name: str, found: object, known: list[str]) -> str:
    """What is wrong with a setting that is not ours; empty if its value wishes for nothing."""
    refused = _REFUSED.get(name)
    if refused is None:
        near = difflib.get_close_matches(name, known, n=1)
        return f"unknown setting {name!r}" + (f" (did you mean {near[0]!r}?)" if near else "")
    if found is None or (isinstance(found, int | float) and found in refused.neutral):
        return ""
    advice = f" ({refused.advice})" if refused.advice else ""
    return f"{refused.feature} ({name}={found!r}) is not supported{advice}"


@dataclass(frozen=True)
class SampleRequest:
    """One batch row of a sampler: a request's settings with everything open in them decided."""

    params: SamplingParams
    seed: int  # any int; counts modulo 2^64
    row: int  # the row's number within its request, which keys the noise
    prompt_length: int  # tokens before the output
    stop_ids: tuple[int, ...] = ()  # all ids that end the request
