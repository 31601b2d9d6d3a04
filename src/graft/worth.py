"""Worth: what draft steps have brought, and how fast an engine has been. [ours]

Four things are learnt from rounds, each with a window so that it follows a change of text:

    pace         tokens per second, the seconds by given costs
    per size of batches: tokens and seconds of rounds with trees
    per class of promise, how likely the best node is that retrieval has: tokens that drafting
                 brought, and the steps it took
    per checkpoint and class of confidence: tokens that going on brought, and the steps it took

This module knows numbers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Confidences and promises are told apart at these.
BOUNDS = (0.0, 0.01, 0.03, 0.06, 0.1, 0.16, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9)
MARKS = 32  # checkpoints at most
SIZES = 10  # of batches: 1, 2-3, 4-7, ...
# Share of the confidence (of the frontier's best node being accepted) that one more step is taken
# to bring in tokens, before anything is known, and how many rounds that guess counts for.
GUESS, GUESS_ROUNDS = 0.4, 8.0
GUESS_DRAFT = 1.2  # tokens that a draft brings where retrieval has nothing
# Rounds of single sequences after which batches of a size are judged, and that are remembered.
BATCH_ROUNDS, BATCH_WINDOW = 32, 128
WINDOW = 400.0  # rounds that a class remembers
PACE_WINDOW = 300.0  # rounds that the pace remembers
ALWAYS_STOP = 2.0  # above every confidence


class Drafted(NamedTuple):
    """What a draft comes to, on average."""

    tokens: float  # that would not have been accepted without it
    steps: float


class Worth:
    """What was learnt of drafts, steps and pace."""

    def __init__(self) -> None:
        # Per checkpoint and class: rounds that went on, tokens that it brought, steps it took.
        self._steps = torch.zeros(3, MARKS, len(BOUNDS), dtype=torch.float64)
        # Per class of promise: rounds that drafted, tokens that it brought, steps it took.
        self._drafts = torch.zeros(3, len(BOUNDS), dtype=torch.float64)
        # Per size of a batch, by powers of two: rounds with trees, their tokens and seconds.
        self._batches = torch.zeros(3, SIZES, dtype=torch.float64)
        # Rounds, tokens, seconds; and all rounds there ever were.
        self._pace = torch.zeros(4, dtype=torch.float64)

    @property
    def rounds(self) -> int:
        """Rounds so far."""
        return int(self._pace[3])

    def pace(self, plain: float) -> float:
        """Tokens per second; `plain` counts for as many rounds as there is no word of."""
        rounds, tokens, seconds, _ = self._pace.tolist()
        missing = max(GUESS_ROUNDS - rounds, 0.0)
        return float((tokens + missing) / (seconds + missing / plain))

    def of_draft(self, promise: float) -> Drafted:
        """What drafting brings where retrieval's best node has the chance `promise`."""
        rounds, tokens, steps = self._drafts[:, _class(promise)].tolist()
        known = rounds + GUESS_ROUNDS
        guess = GUESS_DRAFT * (1 - promise)
        return Drafted((tokens + GUESS_ROUNDS * guess) / known, steps / max(rounds, 1.0))

    def of_batch(self, batch: int) -> float | None:
        """Tokens per second of rounds with trees in batches of about this size; None before there
        were enough of them."""
        rounds, tokens, seconds = self._batches[:, _size(batch)].tolist()
        return tokens / seconds if rounds * batch >= BATCH_ROUNDS else None

    def threshold(self, mark: int, price: float) -> float:
        """The confidence at checkpoint `mark` below which going on does not pay, where a step
        costs the time of `price` tokens."""
        _, tokens, steps = self._steps[:, mark].tolist()
        found = ALWAYS_STOP
        ends = (*BOUNDS[1:], 1.0)
        for i in reversed(range(len(BOUNDS))):
            guess = GUESS * (BOUNDS[i] + ends[i]) / 2
            brought = tokens[i] + GUESS_ROUNDS * guess
            taken = steps[i] + GUESS_ROUNDS
            if brought <= price * taken:
                break
            found = BOUNDS[i]
        return found

    def learn_steps(self, confidence: Sequence[float], gained: Sequence[int]) -> None:
        """Take in a round of a sequence.

        Args:
            confidence: at the checkpoints that were reached.
            gained: at each at which it went on, the tokens that the steps behind it brought.
        """
        stage = len(gained)
        for mark, (sure, gain) in enumerate(zip(confidence, gained, strict=False)):
            _count(self._steps[:, mark, _class(sure)], gain, stage - mark)

    def learn_draft(self, promise: float, gained: int, steps: int) -> None:
        """Take in a round of a sequence that drafted: the tokens that are owed to it."""
        _count(self._drafts[:, _class(promise)], gained, steps)

    def learn_batch(self, batch: int, tokens: int, seconds: float) -> None:
        """Take in a round of several sequences with trees."""
        window = max(BATCH_WINDOW / batch, 4)
        _count(self._batches[:, _size(batch)], tokens, seconds, window)

    def learn_pace(self, tokens: int, seconds: float) -> None:
        """Take in a round of all running sequences."""
        _count(self._pace[:3], tokens, seconds, PACE_WINDOW)
        self._pace[3] += 1

    def tensors(self) -> dict[str, Tensor]:
        """Everything that was learnt, by name."""
        return {
            "worth.steps": self._steps,
            "worth.drafts": self._drafts,
            "worth.batches": self._batches,
            "worth.pace": self._pace,
        }


def _count(cell: Tensor, gained: float, spent: float, window: float = WINDOW) -> None:
    """Add a round to a cell: rounds, what they gained and what they spent, within the window."""
    cell += torch.tensor([1.0, gained, spent], dtype=torch.float64)
    cell /= max(float(cell[0]) / window, 1.0)


def _size(batch: int) -> int:
    return min(batch.bit_length() - 1, SIZES - 1)


def _class(chance: float) -> int:
    return max(sum(chance >= bound for bound in BOUNDS) - 1, 0)
