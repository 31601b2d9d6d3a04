"""Recordings: forwards of fixed shapes, recorded once and then replayed. [CUDA graphs; ours]

On a GPU a forward over the few rows of a tree is hundreds of short kernels, and launching them one
by one takes longer than running them. What a forward does under a `FixedStep` depends on shapes
alone, so it is recorded for each shape and replayed for any lengths and tokens.

Rules for what is recorded (a `Work`):

    - it reads its arguments, and besides them only what stays where it is: weights, caches;
    - what it does on the host depends on its key alone, and it reads nothing back;
    - doing it twice is as good as doing it once.

Results stand in memory of the recording, and are overwritten by the next run of any of them. This
module knows neither models nor devices: a `Recorder` (`graft.cuda_graphs`) does the recording.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

log = logging.getLogger("graft")

# Recordings of a model that are kept, and the memory of their results: logits of 256 rows over a
# large vocabulary are some 60 MB.
MOST, BYTES = 128, 1 << 30
ROWS = 256  # rows of a batch at most: above, kernels are long enough to hide their launches

Results = tuple[Tensor, ...]
Work = Callable[..., Results]


class Recorder(Protocol):
    """Records what a device is asked to do."""

    def record(self, work: Callable[[], Results]) -> tuple[Results, Callable[[], None]]:
        """Record work; returns the tensors that hold its results after each call of the function
        that is returned too.

        Raises:
            RuntimeError: if it cannot be recorded.
        """


class _Recording(NamedTuple):
    inputs: Results  # what the work reads
    results: Results
    replay: Callable[[], None]


class Recordings:
    """The recordings of one model.

    Args:
        recorder: of the model's device. Where it fails once, all work is done without.
        name: of the model, for messages.
    """

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder: Recorder | None = recorder
        self._name = name
        self._kept: OrderedDict[Hashable, _Recording] = OrderedDict()
        self._held: Hashable = None

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        """Memory of all results."""
        return sum(part.nbytes for kept in self._kept.values() for part in kept.results)

    def hold(self, held: Hashable) -> None:
        """Say where what all work reads besides its arguments is now; where that has changed,
        everything is recorded anew."""
        if held != self._held:
            self._kept.clear()
            self._held = held

    def run(self, key: Hashable, work: Work, arguments: Sequence[Tensor]) -> Results:
        """The results of `work(*arguments)`.

        Args:
            key: all that the work on the host depends on: which work it is, shapes and numbers.
        """
        if self._recorder is None:
            return work(*arguments)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            for place, given in zip(kept.inputs, arguments, strict=True):
                place.copy_(given)
        else:
            kept = self._record(self._recorder, work, arguments)
            if kept is None:
                return work(*arguments)
            self._kept[key] = kept
            while len(self) > 1 and (len(self) > MOST or self.bytes > BYTES):
                self._kept.popitem(last=False)
        kept.replay()
        return kept.results

    def _record(
        self, recorder: Recorder, work: Work, arguments: Sequence[Tensor]
    ) -> _Recording | None:
        with torch.inference_mode(False):  # written to in and out of it
            inputs = tuple(torch.empty_like(given) for given in arguments)
        for place, given in zip(inputs, arguments, strict=True):
            place.copy_(given)
        try:
            results, replay = recorder.record(lambda: work(*inputs))
        except RuntimeError as error:
            self._recorder = None
            self._kept.clear()
            log.warning(
                "%s runs without CUDA graphs from here on, which is slower and changes no token: "
                "recording failed (%s)",
                self._name,
                str(error).partition("\n")[0][:200],
            )
            return None
        return _Recording(inputs, results, replay)
