"""The floor: how fast a forward could be on this machine, and how fast it is. [ours]

A forward must read every weight once and do two operations per weight and row. So

    floor = max(bytes / bandwidth, operations / matrix rate)

with the bandwidth of reading a large tensor and the rate of a large product in the weights' own
kernel, both measured here. What attention reads and does is left out: at some hundred tokens of
context it is little. Where a forward's weights fit the processor's caches the floor is too high.

It knows linears and costs; not engines, not how costs are measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from graft.bench.tables import milliseconds, number, table
from graft.costs import Costs
from graft.footprint import Part
from graft.linear import PackedLinear, pack_linears
from graft.linear_bf16 import Bf16Linear, pack_bf16

READ_BYTES = 1 << 29  # of the tensor whose reading is timed
SIZE, ROWS = 2048, 512  # of the product whose rate is
REPEATS = 5


class Machine(NamedTuple):
    """What a device does per second."""

    bandwidth: float  # bytes read
    rate: float  # operations of a product; a multiplication and an addition are two


class Work(NamedTuple):
    """What a forward over some rows must read and do."""

    bytes: int
    per_row: int  # operations

    def floor(self, rows: int, machine: Machine) -> float:
        """Seconds."""
        return max(self.bytes / machine.bandwidth, self.per_row * rows / machine.rate)


class Line(NamedTuple):
    """A line of the table."""

    what: str
    rows: int
    work: Work
    seconds: float


def work_of(*parts: nn.Module) -> Work:
    """Of all linears below these modules, a model's output layer among them.

    Weights of experts that are held as raw parameters are not seen.
    """
    size = per_row = 0
    for module in (m for part in parts for m in part.modules()):
        if isinstance(module, PackedLinear):
            weights = module.in_features * module.out_features
            size += weights * (2 if module.packed else module.weight.element_size())
        elif isinstance(module, nn.Linear | Conv1D):
            weights = module.weight.numel()
            size += weights * module.weight.element_size()
        else:
            continue
        per_row += 2 * weights
    return Work(size, per_row)


def measure_machine(model: nn.Module, device: torch.device) -> Machine:
    """Bandwidth, and the rate of the kernel that most of a model's weights run with."""
    data = torch.ones(READ_BYTES // 4, device=device)  # zeros may share one page
    reading = _fastest(lambda: data.sum(), device)
    product = nn.Linear(SIZE, SIZE, bias=False, device=device, dtype=_dtype(model))
    holder = nn.Sequential(product)
    if any(isinstance(m, PackedLinear) and m.packed for m in model.modules()):
        pack_linears(holder, "fp16")
    elif any(isinstance(m, Bf16Linear) for m in model.modules()):
        pack_bf16(holder)
    rows = torch.randn(ROWS, SIZE, device=device).to(_dtype(model))
    with torch.inference_mode():
        seconds = _fastest(lambda: holder(rows), device)
    return Machine(READ_BYTES / reading, 2 * SIZE * SIZE * ROWS / seconds)


def lines_of(costs: Costs, target: Work, head: Work | None, beam: int) -> list[Line]:
    """What was measured: verification by rows, and a head's step over `beam` rows."""
    out = [
        Line("plain step" if rows == 1 else f"verify {rows} rows", rows, target, seconds)
        for rows, seconds in zip(costs.rows, costs.verify, strict=True)
    ]
    if head is not None:
        out.append(Line("head step", beam, head, costs.step))
    return out


def floor_table(lines: Sequence[Line], machine: Machine) -> str:
    """The table, as Markdown."""
    rows = [
        [
            line.what,
            f"{line.work.bytes / 1e6:.0f}",
            number(line.work.per_row * line.rows / 1e9),
            milliseconds(line.work.floor(line.rows, machine)),
            milliseconds(line.seconds),
            number(line.seconds / line.work.floor(line.rows, machine)),
        ]
        for line in lines
    ]
    header = ["forward", "MB read", "billion operations", "floor, ms", "measured, ms", "ratio"]
    return "\n".join(
        [
            f"Reads {machine.bandwidth / 1e9:.1f} GB/s, computes {machine.rate / 1e9:.0f} billion "
            "operations/s.",
            "",
            table(header, rows),
        ]
    )


def footprint_table(parts: Sequence[Part]) -> str:
    """What an engine holds besides what plain decoding would, as Markdown."""
    rows = [
        [
            part.what,
            f"{part.bytes / 1e6:.1f}",
            f"{part.per_token / 1e3:.1f}" if part.per_token else "",
        ]
        for part in [*parts, Part("together", sum(part.bytes for part in parts))]
    ]
    return table(["memory besides plain decoding's", "MB", "KB per token"], rows)


def _fastest(run: Callable[[], Tensor], device: torch.device) -> float:
    times = []
    for _ in range(REPEATS + 1):
        _wait(device)
        start = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _dtype(model: nn.Module) -> torch.dtype:
    return next(p.dtype for p in model.parameters() if p.is_floating_point())
