"""Work beside the main stream: on CUDA on a stream of its own, elsewhere at once.

It knows devices alone, not what the work is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class Aside(Generic[T]):
    """Work that was started and whose result is wanted later.

    Args:
        work: returns tensors made on the device, and nothing that the main stream changes before
            `result` is called may be read by it.
        stream: of the device, or None where there are none.
    """

    def __init__(self, work: Callable[[], T], stream: Any | None) -> None:
        self._stream = stream
        if stream is None:
            start = time.perf_counter()
            self._value = work()
            self._seconds = time.perf_counter() - start
            return
        self._marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            self._marks[0].record(stream)
            self._value = work()
            self._marks[1].record(stream)

    def result(self) -> T:
        """The result; the main stream waits for it, the host does not."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        return self._value

    def seconds(self) -> float:
        """How long it took. On CUDA the main stream must have passed `result` on the device."""
        if self._stream is None:
            return self._seconds
        self._marks[1].synchronize()
        return float(self._marks[0].elapsed_time(self._marks[1])) / 1e3


def side_stream(device: torch.device) -> Any | None:
    """A stream for `Aside`, where the device has streams."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None
