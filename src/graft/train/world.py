"""Processes that train together: which one this is, and sums over all of them.

Started by `torchrun` or `accelerate launch`, each process takes its share of the groups of a step,
and gradients are added up, so every process takes the same step. Alone, all of it does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class World:
    """rank: of this process, from 0. size: processes."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def share(self, groups: list[int]) -> list[int]:
        """Those of a step's groups that this process runs."""
        return groups[self.rank :: self.size]

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their sums over all processes."""
        if self.size > 1:
            for tensor in tensors:
                torch.distributed.all_reduce(tensor)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            torch.distributed.barrier()


@contextmanager
def join_world() -> Iterator[World]:
    """Join the processes that the environment names."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.distributed.init_process_group("nccl" if cuda else "gloo")
    try:
        yield World(torch.distributed.get_rank(), size)
    finally:
        torch.distributed.destroy_process_group()
