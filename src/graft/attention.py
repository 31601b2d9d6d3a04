"""Attention over committed rows and a token tree, registered with Transformers by name.

The models stay unmodified: they write keys and values through the cache they are given
(`graft.cache`) and call the attention function named in their config. Ours reads what the rows of
a forward are from a `Step`, which the forward passes down as a keyword.

Why not the built-in ones: a mask handed to a model crashes those families that want one mask per
layer type, a bare 4D mask silently becomes the mask of the sliding layers too, and repeating the
grouped keys and values to full width copies the whole cache in every layer. Here the query heads
of one group are folded into the rows instead, so nothing of the cache is copied.

This module does not know models, tokens or trees: only which row sees which key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from graft.upload import upload

NAME = "graft_tree"


class Step:
    """The rows of one forward: which sequence they belong to and what each of them may see.

    Sequence b has `starts[b]` committed keys. U uncommitted rows stand right behind them, of which
    the last N are new and the others those of earlier steps over the same committed keys:

        [0 .. start)            committed, all visible (within the layer's window)
        [start .. start + U)    uncommitted rows, visible along the row's own path
        [start + U .. T)        rows of a longer sequence in the batch, never visible

    Args:
        first: cache slot of the first sequence; the batch uses slots first .. first + B.
        starts: committed length of each sequence (host integers).
        visible: bool [B, N, U], true where uncommitted row j is on the path of new row i.
        depths: int64 [B, U], distance of each uncommitted row from the first key behind start.
    """

    def __init__(self, first: int, starts: Sequence[int], visible: Tensor, depths: Tensor) -> None:
        self.first = first
        self.starts = tuple(starts)
        self.batch = visible.shape[0]  # B
        self.width = visible.shape[1]  # N
        self.room = visible.shape[2]  # U
        self._visible = visible
        self._depths = depths
        self._biases: dict[tuple[int | None, int, torch.dtype], Tensor] = {}

    @classmethod
    def chain(cls, first: int, starts: Sequence[int], width: int, device: torch.device) -> Step:
        """`width` new rows per sequence, one behind the other: each sees those before it."""
        return cls(first, starts, *causal(len(starts), width, device))

    @property
    def depths(self) -> Tensor:
        """int64 [B, N]: of the new rows."""
        return self._depths[:, self.offset :]

    @property
    def end(self) -> int:
        """T: keys that a row of this step can reach at most."""
        return max(self.starts) + self.room

    @property
    def offset(self) -> int:
        """Uncommitted rows of earlier steps, in front of the new ones."""
        return self.room - self.width

    def first_seen(self, window: int | None) -> int:
        """The first key that any row can see."""
        return 0 if window is None else max(min(self.starts) - window + 1, 0)

    def starts_on(self, device: torch.device) -> Tensor:
        """int64 [B]: committed length of each sequence."""
        return upload(self.starts, device)

    def bias(self, window: int | None, groups: int, like: Tensor) -> Tensor:
        """Additive mask [B, 1, groups * N, T] in the dtype and on the device of `like`.

        Built once per window and shared by all layers that have it.
        """
        key = (window, groups, like.dtype)
        found = self._biases.get(key)
        if found is None or found.device != like.device:
            hidden = ~self._seen(window).to(like.device)
            rows = like.new_zeros(self.batch, groups, self.width, self.end)
            rows.masked_fill_(hidden.unsqueeze(1), float("-inf"))
            found = self._biases[key] = rows.flatten(1, 2).unsqueeze(1)
        return found

    def _seen(self, window: int | None) -> Tensor:
        """bool [B, N, T]: the three regions above, cut by the window."""
        if self.batch == 1 and (window is None or self.end <= window):
            past = self._visible.new_ones(1, self.width, self.starts[0])
            return torch.cat([past, self._visible], dim=2)
        return self._seen_anywhere(window)

    def _seen_anywhere(self, window: int | None) -> Tensor:
        """The same for any number of sequences and any window."""
        device = self._visible.device
        start = self.starts_on(device)[:, None, None]
        keys = torch.arange(self.end, device=device).expand(self.batch, 1, -1)
        node = (keys - start).clamp(0, self.room - 1)  # [B, 1, T]: row behind each key
        in_tree = (keys >= start) & (keys < start + self.room)
        path = self._visible.gather(2, node.expand(-1, self.width, -1))
        seen = (keys < start) | (in_tree & path)
        if window is not None:
            depth = self._depths.gather(1, node.squeeze(1)).unsqueeze(1)
            key_position = torch.where(in_tree, start + depth, keys)
            seen &= start + self.depths.unsqueeze(2) - key_position < window
        return seen


class FixedStep(Step):
    """A step whose shapes say nothing of the sequences' lengths: these are on the device, and T is
    a bound. A forward under it does the same on the host whatever the lengths are, so that it can
    be recorded once and replayed (`graft.recordings`).

    Args:
        starts: int64 [B], on the device.
        end: T, keys that rows can see at most: start + U and more. What stands behind a
            sequence's own rows is hidden.
        visible, depths: as in `Step`; the first cache slot is 0.
    """

    def __init__(self, starts: Tensor, end: int, visible: Tensor, depths: Tensor) -> None:
        super().__init__(0, (), visible, depths)
        self._starts, self._end = starts, end

    @property
    def end(self) -> int:
        """T."""
        return self._end

    def first_seen(self, window: int | None) -> int:
        """Nothing is known of it on the host."""
        return 0

    def starts_on(self, device: torch.device) -> Tensor:
        """int64 [B]: committed length of each sequence."""
        return self._starts.to(device)

    def places(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where the new rows go: int64 slots [B, 1] and rows [B, N] of the cache."""
        own = torch.arange(self.width, device=device) + self.offset
        slots = torch.arange(self.batch, device=device).unsqueeze(1)
        return slots, self.starts_on(device).unsqueeze(1) + own

    def _seen(self, window: int | None) -> Tensor:
        return self._seen_anywhere(window)


def causal(batch: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows one behind the other, each of which sees those before it: visible bool [B, N, N] and
    depths int64 [B, N]."""
    visible = torch.ones(batch, width, width, dtype=torch.bool, device=device).tril()
    return visible, torch.arange(width, device=device).expand(batch, -1)


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    graft_step: Step | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attention function in Transformers' convention.

    Args:
        query: [B, Hq, N, D]. key, value: [B, Hkv, T, D], views of the cache.
        sliding_window: keys farther back than this are hidden (the layer's own window).
        softcap: scores are squashed to c * tanh(score / c) (Gemma 2).

    Returns:
        [B, N, Hq, D] and no weights.
    """
    if graft_step is None or s_aux is not None:
        fault = "has attention sinks" if s_aux is not None else "does not pass on its keywords"
        raise NotImplementedError(f"{type(module).__name__} {fault}")
    batch, heads, width, dim = query.shape
    groups = heads // key.shape[1]
    rows = query.reshape(batch, key.shape[1], groups * width, dim)
    bias = graft_step.bias(sliding_window, groups, query)
    if first := graft_step.first_seen(sliding_window):  # what no row sees is not read either
        key, value, bias = key[:, :, first:], value[:, :, first:], bias[..., first:]
    if softcap is None:
        out = F.scaled_dot_product_attention(rows, key, value, attn_mask=bias, scale=scaling)
    else:
        scores = rows @ key.transpose(2, 3) * (dim**-0.5 if scaling is None else scaling)
        scores = torch.tanh(scores / softcap) * softcap + bias
        out = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype) @ value
    return out.reshape(batch, heads, width, -1).transpose(1, 2), None


# Without an entry of this name among the mask functions, Transformers builds no mask at all.
ALL_ATTENTION_FUNCTIONS.register(NAME, tree_attention)
