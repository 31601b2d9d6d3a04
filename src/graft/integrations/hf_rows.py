"""The rows of a `generate` call as requests: padding, end rules, what comes back.

Each row of the batch is one request without its left padding. Stopping criteria and processors
see the row as `generate` shows it, padding included, as a batch of one. Invariant: criteria are
called once per output position, in order, on committed tokens only.

This module does not know models or engines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from graft.request import Drawn, Request, StreamToken

# (ids [1, n], scores: one [1, V] per position, or None) -> bool [1], or a bool
Criteria = Callable[[Tensor, tuple[Tensor, ...] | None], Tensor | bool]


class Prompt(NamedTuple):
    """A row of the input."""

    number: int  # among the rows of the call
    padded: Tensor  # [1, n] int64
    padding: int  # tokens at the left that are none

    @property
    def width(self) -> int:
        return self.padded.shape[1]

    @property
    def ids(self) -> list[int]:
        ids: list[int] = self.padded[0, self.padding :].tolist()
        return ids

    def restore(self, ids: Tensor) -> Tensor:
        """Ids [1, m] of prompt and output as `generate` shows them, [1, padding + m]."""
        ids = ids.to(self.padded.device)
        return torch.cat([self.padded[:, : self.padding], ids], dim=1) if self.padding else ids


class Crowd:
    """Rows that only end together: what `generate` does where no end token could fill the rest."""

    def __init__(self, rows: int) -> None:
        self.open = set(range(rows))
        self.last = 0  # output tokens of the row that ended last

    def leave(self, row: int, count: int) -> None:
        if row in self.open:
            self.open.remove(row)
            self.last = max(self.last, count)

    def over(self, count: int) -> bool:
        """True if a row with so many output tokens has them all."""
        return not self.open and count >= self.last


class EndRule:
    """The stopping criteria of one row, but for end tokens and length.

    Args:
        criteria: called once per position.
        prompt: the row.
        scores: processed scores so far, where they are kept.
        crowd: where rows end together, with whom.
    """

    def __init__(
        self,
        criteria: Sequence[Criteria],
        prompt: Prompt,
        scores: list[Tensor] | None = None,
        crowd: Crowd | None = None,
    ) -> None:
        self.crowd = crowd
        self._criteria = criteria
        self._prompt = prompt
        self._scores = scores
        self._ids = prompt.padded
        self._asked = 0  # output tokens that criteria have seen
        self._end: int | None = None  # the output's length, once it is known

    @property
    def idle(self) -> bool:
        """True if there is nothing to ask."""
        return not self._criteria

    def ends(self, output: Sequence[int]) -> bool:
        """Whether the row ends at or before the last of these output tokens.

        Criteria are asked about tokens that are new. None are asked about behind the end. A row
        with a crowd never ends alone.
        """
        for token in output[self._asked :]:
            if self._end is not None:
                break
            self._asked += 1
            self._ids = torch.cat([self._ids, self._ids.new_tensor([[token]])], dim=1)
            if self._ask() and self.crowd is None:
                self._end = self._asked
        return self._end is not None and len(output) >= self._end

    def _ask(self) -> bool:
        scores = None if self._scores is None else tuple(self._scores[: self._asked])
        met = [bool(torch.as_tensor(each(self._ids, scores)).all()) for each in self._criteria]
        if any(met) and self.crowd is not None:
            self.crowd.leave(self._prompt.number, self._asked)
        return any(met)


@dataclass
class Row(Request):
    """A request that stopping criteria can end, too."""

    rule: EndRule = field(kw_only=True)

    @property
    def output(self) -> list[int]:
        return [drawn.token for drawn in self.drawn]

    def take(self, block: Sequence[Drawn]) -> list[StreamToken]:
        """Commit a block of tokens up to the end of the request."""
        out = []
        for i, drawn in enumerate(block):
            out += super().take([drawn])
            self._apply_rule()
            if self.finished:
                out[-1] = replace(out[-1], finish_reason=self.finish_reason)
                self.trimmed += len(block) - i - 1
                break
        return out

    def cut(self, count: int) -> None:
        """End with so many output tokens."""
        self.trimmed += len(self.drawn) - count
        del self.drawn[count:]
        self.finish_reason = self.finish_reason or "stop"

    def _apply_rule(self) -> None:
        if self.rule.idle:
            return
        ended, crowd = self.rule.ends(self.output), self.rule.crowd
        if crowd is not None:
            if self.finished:
                crowd.leave(self.row, len(self.drawn))
            ended = crowd.over(len(self.drawn))
        if ended and not self.finished:
            self.finish_reason = "stop"


def pad_right(outputs: Sequence[Sequence[int]], pad: int, like: Tensor) -> Tensor:
    """Outputs of all rows as [B, longest], as `generate` fills them."""
    longest = max(len(output) for output in outputs)
    filled = [[*output, *[pad] * (longest - len(output))] for output in outputs]
    return torch.tensor(filled, dtype=torch.int64, device=like.device)
