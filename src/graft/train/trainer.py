"""Trainer: optimiser steps over groups, from a start or from a checkpoint.

A run is a list of steps that settings, data and seed decide; a checkpoint holds everything that
the next one depends on, so a resumed run repeats an uninterrupted one bit for bit on a CPU with as
many threads. What the steps say is handed out as it comes; files other than checkpoints are not
known here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graft.drafters.eagle3.head import Eagle3Head
from graft.train.answers import Answer
from graft.train.checkpoint import load_checkpoint, save_checkpoint
from graft.train.groups import collate, steps_of, total_steps
from graft.train.optimizer import MixedPrecision, rate_at
from graft.train.settings import TrainSettings
from graft.train.teacher import Teacher
from graft.train.test_time import training_test
from graft.train.world import World


@dataclass(frozen=True)
class StepRecord:
    """One optimiser step.

    Attributes:
        step: from 1. tokens: answer tokens learnt from since the start of the run.
        loss: per row, weighted over the steps of the test. norm: of the gradient.
        accuracy: per step of the test, share of rows whose first choice is the target's.
        seconds: that it took.
    """

    step: int
    tokens: int
    loss: float
    rate: float
    norm: float
    accuracy: tuple[float, ...]
    seconds: float


class Trainer:
    """Trains a head.

    Args:
        head: the working copy, in the dtype that it runs in, on the target's device.
        weights: its fp32 start.
        groups: answers that go through the models together.
        facts: what the run is; a checkpoint of another run is refused.
        folder: of checkpoints.

    Attributes:
        done, total: optimiser steps. tokens: answer tokens learnt from.
        sound: the weights are those after `done` steps; not so where one was broken off halfway.
    """

    def __init__(
        self,
        head: Eagle3Head,
        weights: Mapping[str, Tensor],
        teacher: Teacher,
        embed: Callable[[Tensor], Tensor],
        groups: Sequence[Sequence[Answer]],
        settings: TrainSettings,
        *,
        facts: Mapping[str, Any],
        folder: Path,
        world: World | None = None,
    ) -> None:
        self.head = head.train().requires_grad_(True)
        self.settings = settings
        self.total = total_steps(len(groups), settings.groups_per_step, settings.epochs)
        self.done = self.tokens = 0
        self.sound = True
        self._teacher, self._embed, self._groups = teacher, embed, groups
        self._facts, self._folder = dict(facts), folder
        self._world = world or World()
        self._optimizer = MixedPrecision(
            head,
            weights,
            method=settings.optimizer,
            weight_decay=settings.weight_decay,
            clip=settings.clip,
        )
        self._resume()

    @property
    def weights(self) -> dict[str, Tensor]:
        """The fp32 weights, by the head's names."""
        return self._optimizer.weights

    def run(self) -> Iterator[StepRecord]:
        """The steps that are left."""
        settings = self.settings
        plan = steps_of(len(self._groups), settings.groups_per_step, settings.epochs, settings.seed)
        for indices in islice(plan, self.done, None):
            yield self._step(indices)

    def save(self) -> None:
        """Write a checkpoint of what has been done; none of a step that was broken off halfway."""
        if self._world.leads and self.sound:
            facts = {**self._facts, "tokens": self.tokens}
            save_checkpoint(self._folder, self.done, facts, self._optimizer.state())
        self._world.wait()

    def _step(self, indices: Sequence[int]) -> StepRecord:
        began = time.perf_counter()
        settings, device = self.settings, self._teacher.target.device
        taken = [self._groups[i] for i in indices]
        rows = sum(len(a.answer_ids) - 1 for group in taken for a in group)
        sums = torch.zeros(1 + 2 * settings.test_steps, device=device)
        for index in self._world.share(list(indices)):
            group = collate(self._groups[index]).to(device)
            lesson = self._teacher.teach(group, index)
            outcome = training_test(
                self.head,
                self._embed,
                group,
                lesson,
                steps=settings.test_steps,
                decay=settings.decay,
            )
            (outcome.loss / rows).backward()
            self._optimizer.collect()
            sums += torch.cat([outcome.loss.detach()[None], outcome.right, outcome.rows])
        self._world.add_up([sums, *self._optimizer.sums.values()])
        rate = rate_at(
            self.done,
            self.total,
            rate=settings.rate,
            warm_up=settings.warm_up,
            cool_down=settings.cool_down,
        )
        self.sound = False
        norm = self._optimizer.step(rate)
        self.done += 1
        self.tokens += rows
        self.sound = True
        loss, *counts = sums.tolist()
        right, seen = counts[: settings.test_steps], counts[settings.test_steps :]
        return StepRecord(
            step=self.done,
            tokens=self.tokens,
            loss=loss / rows,
            rate=rate,
            norm=norm,
            accuracy=tuple(r / max(n, 1) for r, n in zip(right, seen, strict=True)),
            seconds=time.perf_counter() - began,
        )

    def _resume(self) -> None:
        found = load_checkpoint(self._folder)
        if found is None:
            return
        facts = dict(found.facts)
        self.tokens = int(facts.pop("tokens"))
        for name in sorted({*facts, *self._facts}):
            was, now = facts.get(name), self._facts.get(name)
            if was != now:
                raise ValueError(
                    f"{self._folder} holds a run with {name}={was!r}, now it is {now!r}: run as "
                    "then to go on, or give another folder (--work) to begin anew"
                )
        self.done = found.step
        self._optimizer.restore(found.state)
