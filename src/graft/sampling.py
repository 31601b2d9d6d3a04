"""Choosing tokens: one draw per batch row from the target's processed distribution.

Purpose: given logits and each row's own path, return the token for the next position. The walk
over a tree calls it depth by depth, plain decoding once per position; both get the same token,
because the noise is keyed by (seed, request row, position) and by nothing else.

    token = argmax( cut( processed / T ) + gumbel )     rows that sample (the Gumbel-max draw)
    token = argmax( processed )                         greedy rows

Invariant: a row's token depends on that row's logits, path and settings alone, and equal scores
go to the lowest id. Where a row's settings forbid every token, its choice is ``NO_TOKEN``: no
device has to be read in the hot path, and :meth:`Sampler.check` explains it on the host.

What it does not know: trees, caches, when a request ends, text. Everything here is ours, but for
the meaning of the settings (see ``processors`` and ``warpers``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from graft.near_tie import edges, least_gap
from graft.noise import GumbelNoise, wrap_seed
from graft.processors import Processors
from graft.ranking import first_argmax
from graft.sampling_params import LogitsProcessor, SampleRequest, SamplingParams
from graft.warpers import Warpers

__all__ = [
    "NO_TOKEN",
    "LogitsProcessor",
    "SampleRequest",
    "Sampler",
    "SamplingParams",
    "token_logprobs",
]

NO_TOKEN: Final = -1
_NEVER = float("-inf")


class Sampler:
    """The draws of a batch of requests.

    Args:
        requests: one per batch row, in the order of the rows.
        vocab_size: V, the width of the logits.
        token_count: how many ids exist, at most V; the others are padding, never chosen.
        device: where the logits will be.

    Raises:
        ValueError: a token id outside the vocabulary, or settings that forbid every token.
    """

    def __init__(
        self,
        requests: Sequence[SampleRequest],
        vocab_size: int,
        token_count: int,
        device: torch.device | str,
    ) -> None:
        fits = 1 <= token_count <= vocab_size
        _require("token_count", token_count, fits, f"1 to the width of the logits, {vocab_size}")
        for request in requests:
            _validate(request, token_count)
        self._vocab_size = vocab_size
        self._token_count = token_count
        self._device = torch.device(device)
        self._build(tuple(requests))

    def _build(self, requests: tuple[SampleRequest, ...]) -> None:
        self._requests = requests
        self._processors = Processors(requests, self._vocab_size, self._token_count, self._device)
        self._warpers = Warpers(requests, self._vocab_size, self._device)
        seeds = [wrap_seed(request.seed) for request in requests]
        rows = [request.row for request in requests]
        self._noise = GumbelNoise(self._int64(seeds), self._int64(rows), self._vocab_size)
        self.host_bound: bool = self._processors.host_bound
        self._only_argmax = self._processors.idle and self._warpers.idle

    def _int64(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def choose(self, logits: Tensor, history: Tensor, length: Tensor, alive: Tensor) -> Tensor:
        """The token of every row for its position ``length``, counted over prompt and output.

        Args:
            logits: [B, V], any float dtype.
            history: [B, T] int64, prompt and output; from ``length`` on arbitrary. T may be 0 if
                no setting reads it.
            length: [B] int64, how many tokens of the history are known.
            alive: [B] bool; other rows get an arbitrary token, and none of their own processors
                is called.

        Returns:
            [B] int64, ``NO_TOKEN`` where a living row has none left, or logits that are nan (a
            batch of greedy rows without any processor takes their plain argmax, unlooked at).
        """
        if self._only_argmax:
            return first_argmax(logits[:, : self._token_count])
        scores = self._warped(logits, history, length, alive)
        if self._warpers.idle:
            return self._possible(scores, first_argmax(scores), alive)
        kept = self._warpers.keep(scores, alive)
        if kept.few is None:
            scores = self._drawn(scores, kept.cut, length)
            return self._possible(scores, first_argmax(scores), alive)
        return self._draw_of_few(*kept.few, kept.cut, length, alive)

    def scores(self, logits: Tensor, history: Tensor, length: Tensor, alive: Tensor) -> Tensor:
        """What ``choose`` takes the argmax of: [B, V] float32, -inf where a token is forbidden.

        Greedy rows: processed logits. Others: processed logit / T + noise of what the cut leaves.
        """
        scores = self._warped(logits, history, length, alive)
        if self._warpers.idle:
            return scores
        return self._drawn(scores, self._warpers.keep(scores, alive).cut, length)

    def _warped(self, logits: Tensor, history: Tensor, length: Tensor, alive: Tensor) -> Tensor:
        """[B, V] float32: processed logits / T."""
        return self._warpers.scaled(self._processors(logits, history, length, alive))

    def _noised(self, scores: Tensor, length: Tensor, tokens: Tensor | None = None) -> Tensor:
        """[B, W]: scores plus the noise of their tokens; without ``tokens``, of all of V."""
        noise = self._noise(length, tokens)
        if self._warpers.sampled is not None:
            noise.mul_(self._warpers.sampled)
        return noise.add_(scores)

    def _drawn(self, scores: Tensor, cut: Tensor | None, length: Tensor) -> Tensor:
        noised = self._noised(scores, length)
        return noised if cut is None else noised.masked_fill_(scores < cut, _NEVER)

    def _draw_of_few(
        self, scores: Tensor, tokens: Tensor, cut: Tensor | None, length: Tensor, alive: Tensor
    ) -> Tensor:
        """The choice among [B, W] scores that hold all that the cut leaves."""
        noised = self._noised(scores, length, tokens)
        if cut is not None:
            noised.masked_fill_(scores < cut, _NEVER)
        best = noised.amax(dim=1, keepdim=True)
        token = tokens.where(noised == best, self._token_count - 1).amin(dim=1)
        return token.where((best.squeeze(1) > _NEVER) | ~alive, NO_TOKEN)

    @staticmethod
    def _possible(scores: Tensor, token: Tensor, alive: Tensor) -> Tensor:
        possible = scores.gather(1, token[:, None]).squeeze(1) > _NEVER
        return token.where(possible | ~alive, NO_TOKEN)

    def margin(self, logits: Tensor, history: Tensor, length: Tensor, alive: Tensor) -> Tensor:
        """How near each choice was to another one: [B] float32, arguments as for ``choose``.

        The least gap that would have to close for another token to be chosen, in units of
        logit / T (of logits in greedy rows), see ``near_tie``; 0 where nothing can be chosen.
        It sorts, so it is not for the hot path. It runs the users' own processors again.
        """
        scores = self._warped(logits, history, length, alive)
        cut = None if self._warpers.idle else self._warpers.keep(scores, alive).cut
        noised = scores if self._warpers.idle else self._noised(scores, length)
        left = noised if cut is None else noised.masked_fill(scores < cut, _NEVER)
        winner = first_argmax(left)[:, None]
        if cut is None:
            gap = least_gap(noised, winner, None)
        else:
            need, slack = edges(self._warpers, scores, winner)
            gap = least_gap(noised, winner, need).minimum(slack.squeeze(1))
        return gap.nan_to_num(nan=0.0, posinf=float("inf"))

    def check(self, tokens: Sequence[int]) -> None:
        """Look at the choices of all batch rows, once they have been read to the host.

        Raises:
            ValueError: naming the settings of the first row that has ``NO_TOKEN``.
        """
        for row, (token, request) in enumerate(zip(tokens, self._requests, strict=True)):
            if token == NO_TOKEN:
                raise ValueError(
                    f"batch row {row}: no token can be chosen, every score is -inf or nan; "
                    f"settings that can forbid tokens: {_bars(request.params)}; loosen these"
                )


def _bars(params: SamplingParams) -> str:
    """The settings in use that can forbid tokens, for an error message."""
    names = ("banned_tokens", "no_repeat_ngram_size", "min_new_tokens", "logits_processors")
    used = [f"{name}={getattr(params, name)!r}" for name in names if getattr(params, name)]
    return ", ".join(used) or "none, so the logits themselves are at fault"


def _validate(request: SampleRequest, token_count: int) -> None:
    """Refuse what only the vocabulary shows to be wrong."""
    params = request.params
    named = {
        "logit_bias": params.logit_bias,
        "banned_tokens": params.banned_tokens,
        "stop_token_ids": params.stop_token_ids,
    }
    for name, ids in named.items():
        for token in ids:
            _require(name, token, token < token_count, f"ids 0 to {token_count - 1}")
    _require("prompt_length", request.prompt_length, request.prompt_length >= 0, "0 or more")
    barred = set(params.banned_tokens)
    if params.min_new_tokens > 0:
        barred.update(token for token in request.stop_ids if 0 <= token < token_count)
    if len(barred) == token_count:
        raise ValueError(
            f"banned_tokens, with the end ids if min_new_tokens is set, forbid all {token_count} "
            "tokens of the vocabulary; leave at least one"
        )


def _require(name: str, found: int, valid: bool, supported: str) -> None:
    if not valid:
        raise ValueError(f"{name}: {found} is not supported; supported: {supported}")


def token_logprobs(
    logits: Tensor, tokens: Tensor, top: int, token_count: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities under the raw logits, whatever the settings of sampling.

    Args:
        logits: [N, V], any float dtype.
        tokens: [N] int64, the chosen ones.
        top: how many of the best alternatives to return, 0 or more.
        token_count: how many ids exist, if V is padded beyond.

    Returns:
        chosen [N] float32; ids [N, top] int64 and logprobs [N, top] float32, best first.
    """
    logits = logits[:, :token_count].float()
    total = logits.logsumexp(dim=1, keepdim=True)
    best = logits.topk(min(top, logits.shape[1]), dim=1)
    return (logits.gather(1, tokens[:, None]) - total).squeeze(1), best.indices, best.values - total
