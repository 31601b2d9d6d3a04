"""Gumbel noise that is a pure function of (seed, request row, position, token id).

Purpose: plain and tree decoding must add the same noise to the same token at the same position,
in whatever batch and in whatever order the positions are visited. So there is no generator state:
each value is a hash of its coordinates.

Invariant: the 32 hashed bits behind a value are the same on every device (integer arithmetic
that wraps); the float that is made of them may differ in the last place of ``log``.

What it does not know: logits, temperature, which token is chosen. The construction is ours.

    key(seed, row, position)  64 bits, chained finalisers in int64, one per row
    bits(key, token)          32 bits, a keyed permutation of a hash of the token id, in int32
    u = (n + 1/2) / 2^32,     E = -log1p(-u),     noise = -log(E)

``n`` numbers the 2^32 patterns. ``-log1p(-u)`` is precise for small u, which is where the large
noise values, those that decide, come from.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

__all__ = ["GumbelNoise", "gumbel_noise", "wrap_seed"]


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


# Odd multipliers in common use: the golden ratio's, and those of well-known finalisers.
_GOLDEN64: Final = _signed(0x9E3779B97F4A7C15, 64)
_MIX64: Final = (_signed(0xFF51AFD7ED558CCD, 64), _signed(0xC4CEB9FE1A85EC53, 64))
_GOLDEN32: Final = _signed(0x9E3779B1, 32)
_MIX32: Final = (_signed(0x85EBCA6B, 32), _signed(0xC2B2AE35, 32))

# The largest float32 below 1, so that E stays finite: the smallest noise value is about -2.81.
_BELOW_ONE: Final = 1.0 - 2.0**-24


def wrap_seed(seed: int) -> int:
    """Any Python int, reduced modulo 2^64, as the signed number that an int64 tensor holds."""
    return _signed(seed, 64)


def _fold(h: Tensor, shift: int, spare: Tensor) -> None:
    """In place: h ^= h >> shift, a logical shift; ``spare`` is scratch like h."""
    width = h.element_size() * 8
    torch.bitwise_right_shift(h, shift, out=spare)
    # The shift of a signed number copies the sign; the mask drops the copies.
    spare.bitwise_and_((1 << (width - shift)) - 1)
    h.bitwise_xor_(spare)


def _mix64(h: Tensor) -> Tensor:
    """A bijection of int64 in which every input bit reaches every output bit. In place."""
    spare = torch.empty_like(h)
    for multiplier in _MIX64:
        _fold(h, 32, spare)
        h.mul_(multiplier)
    _fold(h, 29, spare)
    return h


def _row_state(seed: Tensor, row: Tensor) -> Tensor:
    """[B] int64: what the keys of all positions of a request row share."""
    return _mix64(_mix64(seed + _GOLDEN64) ^ (row + 1) * _GOLDEN64)


def _token_hash(vocab_size: int, device: torch.device) -> Tensor:
    """[1, V] int32: the token ids, spread over 32 bits by a bijection."""
    h = torch.arange(1, vocab_size + 1, dtype=torch.int32, device=device).mul_(_GOLDEN32)
    spare = torch.empty_like(h)
    for multiplier in _MIX32:
        _fold(h, 15, spare)
        h.mul_(multiplier)
    _fold(h, 16, spare)
    return h.unsqueeze(0)


class GumbelNoise:
    """The noise of a batch of request rows; keeps what does not depend on the position.

    Args:
        seed: [B] int64, see :func:`wrap_seed`.
        row: [B] int64, the row's number within its request, not its place in the batch.
        vocab_size: V.
    """

    def __init__(self, seed: Tensor, row: Tensor, vocab_size: int) -> None:
        self._state = _row_state(seed, row)
        self._tokens = _token_hash(vocab_size, seed.device)

    def bits(self, position: Tensor, tokens: Tensor | None = None) -> Tensor:
        """[B, W] int32: 32 hashed bits for each of ``tokens`` at ``position``, see ``__call__``."""
        key = _mix64(self._state + position * _GOLDEN64)
        halves = key.unsqueeze(-1).view(torch.int32)  # [B, 2]
        hashed = self._tokens if tokens is None else self._tokens[0, tokens]
        h = hashed ^ halves[:, :1]
        spare = torch.empty_like(h)
        # The key's other half goes in between, so that two rows which share one half part here.
        h.mul_(_GOLDEN32).add_(halves[:, 1:])
        _fold(h, 16, spare)
        h.mul_(_MIX32[0])
        _fold(h, 13, spare)
        h.mul_(_MIX32[1])
        _fold(h, 16, spare)
        return h

    def __call__(self, position: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Standard Gumbel noise, always finite.

        Args:
            position: [B] int64.
            tokens: [B, W] int64 ids; all V of them if left out.

        Returns:
            [B, W] float32, a new tensor.
        """
        # |h + 3/4| / 2^31 takes each (n + 1/2) / 2^32 once, as h runs over the int32 numbers:
        # float32 then keeps every bit of a small u, and no unsigned type is needed.
        u = self.bits(position, tokens).to(torch.float32).add_(0.75).abs_()
        exponential = u.mul_(-(2.0**-31)).clamp_(min=-_BELOW_ONE).log1p_().neg_()
        return exponential.log_().neg_()


def gumbel_noise(seed: Tensor, row: Tensor, position: Tensor, vocab_size: int) -> Tensor:
    """Noise for B coordinates at once: seed, row, position [B] int64 -> [B, V] float32."""
    return GumbelNoise(seed, row, vocab_size)(position)
