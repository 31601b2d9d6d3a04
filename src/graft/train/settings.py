"""Settings of training, validated once at the edge."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import get_args

from graft.train.optimizer import Method

LENGTH = 2048  # of texts, where none is asked for
DRAFT_VOCAB = 16384


@dataclass(frozen=True)
class TrainSettings:
    """How a head is trained.

    Attributes:
        draft_vocab: tokens that the head can name: the most frequent ones of the answers. None
            keeps those of the head that is trained on from, and gives a new one 16,384.
        test_steps: steps of the training-time test; the head is trained to draft so deep.
        decay: weight of the loss of one step relative to that of the step before [EAGLE-3: 0.8].
        epochs: times that all answers are seen; a fraction stops in the middle of one.
        optimizer: of the matrices inside the head: "muon" or "adamw".
        rate: highest learning rate. warm_up, cool_down: shares of all steps over which it rises
            from 0 and falls to 0; in between it stays.
        weight_decay, clip: of the optimisers; largest norm of a gradient.
        group_tokens: tokens of answers and prompts, padding included, that go through the models
            together; memory grows with them.
        groups_per_step: such groups per optimiser step.
        max_length: tokens of prompt and answer; longer answers are cut. None takes 2,048, or the
            target's context if that is less.
        looping: answers of which a larger share repeats (8-grams) are left out; 1 keeps all.
        window: positions back that the head sees; None sees all.
        held_out: prompts whose answers are kept for evaluation; never more than a fifth of all.
        seed: of the order, the choice of what is held out, and the initial weights.

    Raises:
        ValueError: naming the setting, what was found and what is supported.
    """

    draft_vocab: int | None = None
    test_steps: int = 5
    decay: float = 0.8
    epochs: float = 3.0
    optimizer: Method = "muon"
    rate: float = 5e-4
    warm_up: float = 0.02
    cool_down: float = 0.3
    weight_decay: float = 0.01
    clip: float = 0.5
    group_tokens: int = 2048
    groups_per_step: int = 4
    max_length: int | None = None
    looping: float = 0.3
    window: int | None = None
    held_out: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("test_steps", 1, 16),
            ("group_tokens", 16, 1 << 24),
            ("groups_per_step", 1, 1 << 16),
            ("held_out", 0, 1 << 20),
            ("seed", 0, 1 << 31),
        ):
            _whole(name, getattr(self, name), low, high)
        for name, low in (("draft_vocab", 1), ("window", 1), ("max_length", 8)):
            if (found := getattr(self, name)) is not None:
                _whole(name, found, low, 1 << 20)
        for name, limit in (
            ("decay", 1.0),
            ("epochs", 1e4),
            ("rate", 1.0),
            ("warm_up", 1.0),
            ("cool_down", 1.0),
            ("weight_decay", 1.0),
            ("clip", 1e6),
            ("looping", 1.0),
        ):
            found = getattr(self, name)
            if not math.isfinite(found) or not 0 <= found <= limit:
                raise ValueError(f"{name}={found!r}: a number from 0 to {limit:g} is supported")
        if self.optimizer not in get_args(Method):
            raise ValueError(
                f"optimizer={self.optimizer!r}: supported are {', '.join(get_args(Method))}"
            )
        if self.epochs == 0 or self.clip == 0:
            raise ValueError("epochs and clip must be above 0")
        if self.warm_up + self.cool_down > 1:
            raise ValueError(
                f"warm_up={self.warm_up} and cool_down={self.cool_down} are shares of all steps: "
                "together 1 at most"
            )

    @property
    def length(self) -> int:
        """The length that holds where nothing is known of the target."""
        return self.max_length or LENGTH

    def within(self, context: int | None) -> TrainSettings:
        """With a length that holds.

        Args:
            context: tokens that the target holds; None if it states no limit.

        Raises:
            ValueError: for a length beyond it.
        """
        if self.max_length is None:
            return replace(self, max_length=min(self.length, context or self.length))
        if context is not None and self.max_length > context:
            raise ValueError(
                f"max_length={self.max_length}, but the model holds {context} tokens: lower it"
            )
        return self


def _whole(name: str, found: object, low: int, high: int) -> None:
    if not isinstance(found, int) or isinstance(found, bool) or not low <= found <= high:
        raise ValueError(f"{name}={found!r}: an integer from {low} to {high} is supported")
