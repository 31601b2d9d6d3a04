"""Work beside the main stream: done once, its result handed on, in the order that streams need."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
import torch

from graft.aside import Aside, side_stream


def test_without_streams_the_work_is_done_at_once_and_once() -> None:
    done: list[int] = []

    def work() -> int:
        done.append(1)
        return 7

    aside = Aside(work, None)
    assert done == [1]
    assert (aside.result(), aside.result()) == (7, 7)
    assert done == [1]


def test_nothing_is_a_result() -> None:
    assert Aside(lambda: None, None).result() is None


def test_the_time_it_took_is_in_seconds_and_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    aside = Aside(lambda: None, None)
    assert (aside.seconds(), aside.seconds()) == (2.5, 2.5)


def test_a_failure_comes_out_where_the_work_starts() -> None:
    def work() -> None:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        Aside(work, None)


def test_a_device_without_streams_has_none() -> None:
    assert side_stream(torch.device("cpu")) is None
    assert side_stream(torch.device("meta")) is None


class FakeStream:
    """Writes down who waits for whom."""

    device = "cuda:1"

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class FakeEvent:
    log: list[str]

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: FakeStream) -> None:
        self.log.append(f"mark on {stream.name}")

    def synchronize(self) -> None:
        self.log.append("host waits")

    def elapsed_time(self, other: FakeEvent) -> float:
        assert other is not self
        return 1500.0  # ms


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Streams and events that only write down what happens to them."""
    log: list[str] = []
    main = FakeStream("main", log)

    @contextlib.contextmanager
    def entered(stream: FakeStream) -> Iterator[None]:
        log.append(f"enter {stream.name}")
        yield
        log.append(f"leave {stream.name}")

    def current(device: str) -> FakeStream:
        assert device == FakeStream.device, "the stream of the same device"
        return main

    monkeypatch.setattr(FakeEvent, "log", log, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    return log


def test_the_streams_wait_for_each_other_and_the_host_for_nobody(log: list[str]) -> None:
    side = FakeStream("side", log)
    aside = Aside(lambda: log.append("work"), side)
    started = [
        "side waits for main",  # what the work reads is written there
        "enter side",
        "mark on side",
        "work",
        "mark on side",
        "leave side",
    ]
    assert log == started
    aside.result()
    assert log == [*started, "main waits for side"]
    assert aside.seconds() == 1.5
    assert log[-1] == "host waits"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_the_result_is_there_when_the_main_stream_needs_it() -> None:
    device = torch.device("cuda")
    stream = side_stream(device)
    assert stream is not None
    numbers = torch.zeros(1 << 22, dtype=torch.int64, device=device)

    def work() -> torch.Tensor:
        return (numbers * 2).cumsum(0)

    for turn in range(1, 21):
        numbers.add_(1)  # on the main stream: the work must wait for it
        aside = Aside(work, stream)
        assert int(aside.result()[-1]) == 2 * turn * len(numbers)
        assert aside.seconds() > 0
