"""CUDA graphs as a `Recorder`. It knows CUDA, not what is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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


def recorder_for(device: torch.device, *devices: torch.device) -> Recorder | None:
    """A recorder where all these are one CUDA device; None elsewhere."""
    if device.type != "cuda" or any(other != device for other in devices):
        return None
    return CudaGraphs(device)
