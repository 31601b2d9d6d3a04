"""The processors of a `generate` call, row by row.

`generate` hands over one list for the whole batch: penalties, bans, warpers, the user's own. Two
ways lead from it to a request. If all of the list are settings that Graft has with the same law,
they become those settings (`as_settings`). Else the list itself runs as the request's own
processor (`RowProcessors`), once per output position on the accepted path, as plain decoding
would run it.

It does not know models or engines.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch import Tensor
from transformers.generation import logits_process as hf

from graft.integrations.hf_rows import EndRule, Prompt

__all__ = ["RowProcessors", "as_settings", "for_row"]

Processor = Callable[[Tensor, Tensor], Tensor]


class RowProcessors:
    """A call's processors for one row, as one processor of Graft.

    Args:
        processors: those of `for_row`.
        prompt: the row; processors are shown its padding, too.
        rule: says where the row has ended; processors are not called behind that.
        logits, scores: lists that get the raw logits and the processed scores of every position,
            [1, V] float32 each; None keeps none.
    """

    def __init__(
        self,
        processors: Sequence[Processor],
        prompt: Prompt,
        rule: EndRule,
        logits: list[Tensor] | None = None,
        scores: list[Tensor] | None = None,
    ) -> None:
        self._processors = processors
        self._prompt = prompt
        self._rule = rule
        self._logits = logits
        self._scores = scores

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """ids int64 [1, n], scores float32 [1, V]; returns scores [1, V]."""
        output = ids[0, self._prompt.width - self._prompt.padding :].tolist()
        if not self._rule.idle and self._rule.ends(output):
            return scores  # of a position that will be trimmed
        shown, place = self._prompt.restore(ids), scores.device
        scores = scores.to(shown.device)
        if self._logits is not None:
            self._logits.append(scores.clone())
        for each in self._processors:
            scores = each(shown, scores)
        if self._scores is not None:
            self._scores.append(scores.clone())
        return scores.to(place)


def for_row(processors: Sequence[Processor], row: int, rows: int) -> list[Processor]:
    """The processors as one row of several needs them: without the other rows' data.

    Raises:
        ValueError: for a processor that keeps a state for the whole batch.
    """
    if rows == 1:
        return list(processors)
    return [_SPLIT.get(type(each), _same)(each, row, rows) for each in processors]


def _same(processor: Any, _row: int, _rows: int) -> Processor:
    whole: Processor = processor
    return whole


def _refuse(processor: Any, _row: int, rows: int) -> Processor:
    raise ValueError(
        f"{type(processor).__name__} keeps one state for {rows} rows, which Graft decodes at "
        "paces of their own; call generate with one row at a time"
    )


def _penalty(processor: Any, row: int, _rows: int) -> Processor:
    ignored = getattr(processor, "prompt_ignore_length", None)
    if not isinstance(ignored, Tensor):
        return _same(processor, row, _rows)
    return _changed(processor, prompt_ignore_length=ignored[row : row + 1])


def _encoder_penalty(processor: Any, row: int, rows: int) -> Processor:
    ids = processor.encoder_input_ids  # [prompts, n], before rows were repeated
    prompt = row // (rows // len(ids))
    return _changed(processor, encoder_input_ids=ids[prompt : prompt + 1])


def _encoder_ngrams(processor: Any, row: int, rows: int) -> Processor:
    prompt = row // (rows // processor.batch_size)
    ngrams = processor.generated_ngrams[prompt]
    return _changed(processor, batch_size=1, generated_ngrams=[ngrams])


def _allowed(processor: Any, row: int, _rows: int) -> Processor:
    ask, prompt = processor._prefix_allowed_tokens_fn, row // processor._num_beams
    return hf.PrefixConstrainedLogitsProcessor(lambda _, ids: ask(prompt, ids), 1)


def _changed(processor: Any, **fields: Any) -> Processor:
    twin = copy.copy(processor)
    vars(twin).update(fields)
    changed: Processor = twin
    return changed


_SPLIT: Final[dict[type, Callable[[Any, int, int], Processor]]] = {
    hf.RepetitionPenaltyLogitsProcessor: _penalty,
    hf.EncoderRepetitionPenaltyLogitsProcessor: _encoder_penalty,
    hf.EncoderNoRepeatNGramLogitsProcessor: _encoder_ngrams,
    hf.PrefixConstrainedLogitsProcessor: _allowed,
    hf.UnbatchedClassifierFreeGuidanceLogitsProcessor: _refuse,
    hf.SynthIDTextWatermarkLogitsProcessor: _refuse,
}


def as_settings(
    processors: Sequence[Processor], prompt: Prompt, ends: frozenset[int], sample: bool
) -> dict[str, Any] | None:
    """Fields of `SamplingParams` with the law of these processors; None if there are none such.

    Top-p is not among them: of tokens that tie at its edge, as they do in half precision, Graft
    keeps all and Transformers some.

    Args:
        processors: those of `for_row`.
        ends: tokens that end the row.
        sample: whether tokens are drawn; without it warpers are no settings of Graft.
    """
    found: dict[str, Any] = {}
    reached = 0
    for each in processors:
        place, read = _READ.get(type(each), (-1, None))
        fields = None if read is None else read(each, prompt, ends)
        if fields is None or place < reached or (place >= _WARPERS and not sample):
            return None
        if "min_new_tokens" in fields and "min_new_tokens" in found:  # both kinds of minimum
            fields = {key: max(value, found.pop(key)) for key, value in fields.items()}
        if fields.keys() & found.keys():
            return None
        found |= fields
        reached = place
    return found


_Read = Callable[[Any, Prompt, frozenset[int]], dict[str, Any] | None]


def _read_penalty(each: Any, prompt: Prompt, _: frozenset[int]) -> dict[str, Any] | None:
    ignored = getattr(each, "prompt_ignore_length", None)
    skipped = 0 if ignored is None else int(ignored)
    return {"repetition_penalty": each.penalty} if skipped == prompt.padding else None


def _read_ngram(each: Any, prompt: Prompt, _: frozenset[int]) -> dict[str, Any] | None:
    return None if prompt.padding else {"no_repeat_ngram_size": each.ngram_size}


def _read_length(each: Any, prompt: Prompt, ends: frozenset[int]) -> dict[str, Any] | None:
    if frozenset(each.eos_token_id.tolist()) != ends:
        return None
    return {"min_new_tokens": max(0, each.min_length - prompt.width)}


def _read_new_tokens(each: Any, prompt: Prompt, ends: frozenset[int]) -> dict[str, Any] | None:
    if frozenset(each.eos_token_id.tolist()) != ends:
        return None
    first = each.prompt_length_to_skip + each.min_new_tokens
    return {"min_new_tokens": max(0, first - prompt.width)}


def _read_temperature(each: Any, *_: Any) -> dict[str, Any] | None:
    return {"temperature": each.temperature}


def _read_top_k(each: Any, *_: Any) -> dict[str, Any] | None:
    return {"top_k": each.top_k} if each.filter_value == -float("inf") else None


_WARPERS: Final = 2
# Place in the order of steps; bans change nothing for each other, so they share one.
_READ: Final[dict[type, tuple[int, _Read]]] = {
    hf.RepetitionPenaltyLogitsProcessor: (0, _read_penalty),
    hf.NoRepeatNGramLogitsProcessor: (1, _read_ngram),
    hf.MinLengthLogitsProcessor: (1, _read_length),
    hf.MinNewTokensLengthLogitsProcessor: (1, _read_new_tokens),
    hf.TemperatureLogitsWarper: (2, _read_temperature),
    hf.TopKLogitsWarper: (3, _read_top_k),
}
