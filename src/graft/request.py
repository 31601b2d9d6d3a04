"""One request: its tokens, its text, and the rules by which it ends.

A round commits several tokens at once; the rules are applied to them one by one, so that ids,
text, log-probabilities and usage all end at the same token, wherever in a block it stands.

This module knows no model and no device: ids and text alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from graft.metrics import RoundRecord, Stats, summarise
from graft.sampling_params import SamplingParams
from graft.text import Decode, Detokenizer, StopText
from graft.tree import Source

FinishReason = Literal["stop", "length", "cancelled"]


class Logprob(NamedTuple):
    """Log-probabilities of one output position, from the target's raw logits."""

    chosen: float
    top: dict[int, float]  # the asked number of most likely tokens, best first


class Drawn(NamedTuple):
    """A committed token before the request's own rules are applied."""

    token: int
    source: Source
    logprob: Logprob | None


@dataclass(frozen=True)
class StreamToken:
    """One token of a stream. The texts of a request's tokens joined are its whole text."""

    request: int  # index of the prompt in the call
    token_id: int
    text: str  # may be empty: text is held back while it may still change
    source: Source
    logprob: Logprob | None
    finish_reason: FinishReason | None  # on the last token of a request


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  # prompt tokens found in the cache of an earlier turn


@dataclass(frozen=True)
class Result:
    """A finished request.

    `token_ids` ends with the token that ended it (an end token, or the one that completed a stop
    string); `text` ends before it.
    """

    text: str
    token_ids: list[int]
    sources: list[Source]
    logprobs: list[Logprob] | None
    finish_reason: FinishReason
    stop_reason: int | str | None  # the end token or stop string met
    usage: Usage
    seed: int
    stats: Stats


@dataclass
class Request:
    """A running request.

    Attributes:
        prompt: token ids, at least one.
        stop_ids: ids that end the output.
        limit: output tokens at most, by the request or by the model's context.
        forced: output already fixed, which is prefilled and not drawn again.
    """

    index: int
    prompt: list[int]
    params: SamplingParams
    seed: int
    row: int
    stop_ids: frozenset[int]
    limit: int
    decode: Decode
    forced: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    trimmed: int = 0
    records: list[RoundRecord] = field(default_factory=list)
    prefill_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.drawn: list[Drawn] = []
        self.text: list[str] = []
        self._detokenizer = Detokenizer(self.decode)
        self._stop_text = StopText(self.params.stop)
        for token in self.forced:  # text given out before; a stop string may begin in it
            self._stop_text.push(self._detokenizer.push(token))
        self._created = time.perf_counter()
        self._first = self._last = self._created

    @property
    def context(self) -> list[int]:
        """Everything committed: prompt, forced and drawn tokens."""
        return [*self.prompt, *self.forced, *(d.token for d in self.drawn)]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def take(self, block: Sequence[Drawn]) -> list[StreamToken]:
        """Commit a block of tokens up to the end of the request."""
        out = []
        for i, drawn in enumerate(block):
            out.append(self._take_one(drawn))
            if self.finished:
                self.trimmed += len(block) - i - 1
                break
        self._last = time.perf_counter()
        if len(self.drawn) == len(out):
            self._first = self._last
        return out

    def look_ahead(self) -> Callable[[int], bool] | None:
        """A function that is told the tokens that would follow, one by one, and says whether a
        stop string ends the request there. None without stop strings. Changes nothing here."""
        if not self.params.stop:
            return None
        detokenizer, stop_text = self._detokenizer.copy(), self._stop_text.copy()

        def ends(token: int) -> bool:
            if token >= 0:
                stop_text.push(detokenizer.push(token))
            return stop_text.found is not None

        return ends

    def result(self) -> Result:
        """What came out, once finished."""
        assert self.finish_reason is not None
        logprobs = [d.logprob for d in self.drawn if d.logprob is not None]
        return Result(
            text="".join(self.text),
            token_ids=[d.token for d in self.drawn],
            sources=[d.source for d in self.drawn],
            logprobs=logprobs if self.params.logprobs is not None else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            usage=Usage(len(self.prompt), len(self.drawn), self.cached_tokens),
            seed=self.seed,
            stats=summarise(
                self.records,
                generated=len(self.drawn),
                trimmed=self.trimmed,
                prefill_seconds=self.prefill_seconds,
                decode_seconds=self._last - self._first,
                time_to_first_token=self._first - self._created,
            ),
        )

    def _take_one(self, drawn: Drawn) -> StreamToken:
        self.drawn.append(drawn)
        ended = drawn.token in self.stop_ids
        full = len(self.forced) + len(self.drawn) >= self.limit
        text = "" if ended else self._stop_text.push(self._detokenizer.push(drawn.token))
        if (ended or full) and self._stop_text.found is None:
            text += self._stop_text.push(self._detokenizer.flush())
            text += self._stop_text.flush()
        if self._stop_text.found is not None:
            self.finish_reason, self.stop_reason = "stop", self._stop_text.found
        elif ended:
            self.finish_reason, self.stop_reason = "stop", drawn.token
        elif full:
            self.finish_reason = "length"
        self.text.append(text)
        return StreamToken(
            self.index, drawn.token, text, drawn.source, drawn.logprob, self.finish_reason
        )
