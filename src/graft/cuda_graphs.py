"""CUDA graphs as a `Recorder`. It knows CUDA, not what is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from graft.recordings import Recorder, Results


class CudaGraphs:
    """Records graphs for one device; they share their memory.

    Graphs are replayed one at a time, on one stream, and nothing is read of one after another has
    been replayed, so what one needs in between may be used by the next.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def record(self, work: Callable[[], Results]) -> tuple[Results, Callable[[], None]]:
        """Run work once, for what libraries set up at their first call, then record it."""
        with torch.cuda.device(self._device):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            here = torch.cuda.current_stream()
            beside = torch.cuda.Stream()
            beside.wait_stream(here)
            with torch.cuda.stream(beside):
                work()
            here.wait_stream(beside)
            graph = torch.cuda.CUDAGraph()
            # Other threads of the process may go on with their own work.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                results = work()
        return results, graph.replay


def recorder_for(model: nn.Module) -> Recorder | None:
    """A recorder where all of a model is on one CUDA device; None elsewhere."""
    devices = {weight.device for weight in model.parameters()}
    device = next(iter(devices), None)
    if device is None or len(devices) > 1 or device.type != "cuda":
        return None
    return CudaGraphs(device)
