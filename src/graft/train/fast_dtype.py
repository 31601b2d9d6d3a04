"""Which dtype is fast here: measured, not looked up.

Processors with matrix units for bf16 multiply several times as fast in it; on others bf16 is an
emulation and slower than fp32.
"""

from __future__ import annotations

import time

import torch

# A shape like those of training: enough work to show, milliseconds to run.
ROWS, INNER, OUTER = 512, 1024, 1024
GAIN = 1.5  # below it the exact dtype is worth more


def fast_dtype(device: torch.device) -> torch.dtype:
    """bf16 on a GPU that has it, and on a CPU where it is clearly faster than fp32; else fp32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    slow, fast = _seconds(torch.float32), _seconds(torch.bfloat16)
    return torch.bfloat16 if slow > GAIN * fast else torch.float32


def _seconds(dtype: torch.dtype) -> float:
    """Of the fastest of some products."""
    left, right = torch.ones(ROWS, INNER, dtype=dtype), torch.ones(OUTER, INNER, dtype=dtype)
    best = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        torch.nn.functional.linear(left, right)
        best = min(best, time.perf_counter() - began)
    return best
