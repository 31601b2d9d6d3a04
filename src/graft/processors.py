"""Logits processors: from a batch of raw logits to the processed logits, before temperature.

Purpose: penalties, bans, bias and the users' own processors, each row with its own settings and
its own path as history, in the order of Transformers. A step that no row uses costs nothing.

Invariant: a row's result depends on that row alone; what stands in ``history`` at or beyond
``length`` does not matter; ids at or beyond ``token_count`` end at -inf.

What it does not know: temperature, noise, trees. The definitions are Transformers' where it has
the setting, and the OpenAI interface's for the presence and frequency penalties.

Shapes: logits and scores [B, V]; history [B, T] int64; length [B] int64; settings [B, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graft.sampling_params import LogitsProcessor, SampleRequest

__all__ = ["Processors", "column"]

_NEVER = float("-inf")


def column(values: Sequence[float], off: float, device: torch.device) -> Tensor | None:
    """A setting of all rows as [B, 1], float32 or int64; None if it is off in every row."""
    if all(value == off for value in values):
        return None
    whole = isinstance(off, int)
    dtype = torch.int64 if whole else torch.float32
    return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)


def _rewrite(
    scores: Tensor, history: Tensor, counted: Tensor, change: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Change the scores of the tokens at the ``counted`` [B, T] positions, in place.

    ``change`` maps (token ids, their scores), [B, T] each, to new scores. It works on the
    history's T places, which are cheaper than the vocabulary.
    """
    # A token to stand in at the other places; what stands there may be no token at all.
    other = history.where(counted, -1).amax(dim=1, keepdim=True)  # [B, 1], -1 if none counts
    tokens = history.where(counted, other.clamp(min=0))
    old = scores.gather(1, tokens)
    # Equal ids get equal scores, so the order of the writes does not matter.
    scores.scatter_(1, tokens, change(tokens, old).where(other >= 0, old))


def repeated_ngrams(history: Tensor, length: Tensor, size: Tensor, largest: int) -> Tensor:
    """[B, T] bool: the positions whose token would complete an n-gram that occurred there.

    ``size`` [B, 1] is each row's n, 0 for none; ``largest`` is the greatest of them.
    """
    width = history.shape[1]
    end = length[:, None]
    position = torch.arange(width, device=history.device)
    # Position e is banned if the n-1 tokens before e are the last n-1 of the known ones.
    banned = (size > 0) & (position < end) & (position >= size - 1)
    for back in range(1, min(largest, width)):
        last = history.gather(1, (end - back).clamp(min=0))
        same = history[:, : width - back] == last
        banned[:, back:] &= same | (size <= back)
    return banned


def _penalise_seen(scores: Tensor, history: Tensor, counted: Tensor, penalty: Tensor) -> None:
    """Divide the positive scores of seen tokens by the penalty, multiply the negative ones."""
    _rewrite(
        scores,
        history,
        counted,
        lambda _, old: torch.where(old < 0, old * penalty, old / penalty),
    )


def _penalise_counts(
    scores: Tensor, history: Tensor, counted: Tensor, frequency: Tensor, presence: Tensor
) -> None:
    """Subtract from a token with count c > 0: c * frequency + presence."""
    counts = torch.zeros_like(scores)
    counts.scatter_add_(1, history.where(counted, 0), counted.to(scores.dtype))
    _rewrite(
        scores,
        history,
        counted,
        lambda tokens, old: old - frequency * counts.gather(1, tokens) - presence,
    )


class _Bans:
    """What depends on no token: bias, banned ids, and the end ids before the minimum length."""

    def __init__(self, requests: Sequence[SampleRequest], vocab_size: int, device: torch.device):
        params = [request.params for request in requests]
        self._bias = _dense([dict(each.logit_bias) for each in params], vocab_size, device)
        banned = _dense(
            [dict.fromkeys(each.banned_tokens, 1.0) for each in params], vocab_size, device
        )
        self._banned = None if banned is None else banned > 0
        least = [
            each.min_new_tokens and each.min_new_tokens + request.prompt_length
            for each, request in zip(params, requests, strict=True)
        ]
        self._least = column(least, 0, device)  # [B, 1] the first length at which an end may come
        ends = _dense(
            [
                {token: 1.0 for token in request.stop_ids if first and 0 <= token < vocab_size}
                for first, request in zip(least, requests, strict=True)
            ],
            vocab_size,
            device,
        )
        self._ends = None if ends is None else ends > 0

    @property
    def idle(self) -> bool:
        return self._bias is None and self._banned is None and self._ends is None

    def __call__(self, scores: Tensor, length: Tensor) -> None:
        """Apply in place to scores [B, V]."""
        if self._bias is not None:
            scores.add_(self._bias)
        if self._banned is not None:
            scores.masked_fill_(self._banned, _NEVER)
        if self._ends is not None and self._least is not None:
            scores.masked_fill_(self._ends & (length[:, None] < self._least), _NEVER)


def _dense(
    rows: Sequence[dict[int, float]], vocab_size: int, device: torch.device
) -> Tensor | None:
    """[B, V] float32 with each row's {token: value}, zero elsewhere; None if all are empty."""
    if not any(rows):
        return None
    table = torch.zeros(len(rows), vocab_size)
    for row, values in enumerate(rows):
        table[row, list(values)] = torch.tensor(list(values.values()))
    return table.to(device)


class _Penalties:
    """What depends on the tokens so far: the penalties and the n-gram ban."""

    def __init__(self, requests: Sequence[SampleRequest], device: torch.device) -> None:
        params = [request.params for request in requests]
        self._repetition = column([each.repetition_penalty for each in params], 1.0, device)
        # [B, 2] frequency and presence penalty
        counted = [(each.frequency_penalty, each.presence_penalty) for each in params]
        self._counted = torch.tensor(counted, device=device) if any(map(any, counted)) else None
        self._size = column([each.no_repeat_ngram_size for each in params], 0, device)
        self._largest = max((each.no_repeat_ngram_size for each in params), default=0)
        starts = [request.prompt_length for request in requests]
        self._start = torch.tensor(starts, dtype=torch.int64, device=device)[:, None]

    @property
    def idle(self) -> bool:
        steps = (self._repetition, self._counted, self._size)
        return all(step is None for step in steps)

    def __call__(self, scores: Tensor, history: Tensor, length: Tensor) -> None:
        """Apply in place to scores [B, V]."""
        position = torch.arange(history.shape[1], device=history.device)
        known = position < length[:, None]  # [B, T]
        if self._repetition is not None:
            _penalise_seen(scores, history, known, self._repetition)
        if self._counted is not None:
            frequency, presence = self._counted[:, :1], self._counted[:, 1:]
            output = known & (position >= self._start)
            _penalise_counts(scores, history, output, frequency, presence)
        if self._size is not None:
            repeated = repeated_ngrams(history, length, self._size, self._largest)
            _rewrite(scores, history, repeated, lambda _, old: torch.full_like(old, _NEVER))


class Processors:
    """The processors of a batch of requests.

    Args:
        requests: one per batch row.
        vocab_size: V, the width of the logits.
        token_count: the ids that exist; the rest of V is padding and is never chosen.
        device: where the logits will be.
    """

    def __init__(
        self,
        requests: Sequence[SampleRequest],
        vocab_size: int,
        token_count: int,
        device: torch.device,
    ) -> None:
        self._penalties = _Penalties(requests, device)
        self._bans = _Bans(requests, vocab_size, device)
        self._users = [request.params.logits_processors for request in requests]
        self._token_count = token_count

    @property
    def host_bound(self) -> bool:
        """True if any row has processors of its own, which run on the host."""
        return any(self._users)

    @property
    def idle(self) -> bool:
        """True if no row has any step, so that the processed logits are the raw ones."""
        return self._penalties.idle and self._bans.idle and not self.host_bound

    def __call__(self, logits: Tensor, history: Tensor, length: Tensor, alive: Tensor) -> Tensor:
        """Processed logits [B, V] float32, a new tensor; rows that are not alive are arbitrary."""
        scores = logits.to(torch.float32, copy=True)
        self._forbid_padding(scores)
        if not self._penalties.idle and history.shape[1] > 0:
            # What stands in the history of a row that is not alive may be no token at all.
            self._penalties(scores, history, length.where(alive, 0))
        if not self._bans.idle:
            self._bans(scores, length)
        if self.host_bound:
            self._run_users(scores, history, length, alive)
        return scores

    def _forbid_padding(self, scores: Tensor) -> None:
        if self._token_count < scores.shape[1]:
            scores[:, self._token_count :] = _NEVER

    def _run_users(self, scores: Tensor, history: Tensor, length: Tensor, alive: Tensor) -> None:
        """Run each living row's own processors, on the host, in place."""
        lengths, living = length.tolist(), alive.tolist()
        for row, callables in enumerate(self._users):
            if callables and living[row]:
                scores[row] = _run(
                    callables, history[row : row + 1, : lengths[row]], scores[row : row + 1]
                )
        self._forbid_padding(scores)


def _run(callables: Sequence[LogitsProcessor], ids: Tensor, scores: Tensor) -> Tensor:
    """[V]: the scores [1, V] after the processors, which may write to what they get."""
    ids, scores, shape = ids.clone(), scores.clone(), scores.shape
    for each in callables:
        scores = each(ids, scores)
        if not isinstance(scores, Tensor) or scores.shape != shape:
            found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"logits_processors: {each!r} returned {found}; supported: a tensor {tuple(shape)}"
            )
    return scores[0]
