"""Small numbers from the host to the device, without waiting for the device.

A plain copy from pageable memory waits until the stream has done all that was asked of it before;
from pinned memory it takes its turn behind it. It knows devices alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def upload(values: Sequence[Any], device: torch.device) -> Tensor:
    """int64 tensor of (nested) integers, of equal lengths in each nesting, on `device`."""
    here = torch.tensor(values, dtype=torch.int64)
    if device.type != "cuda":
        return here.to(device)
    return here.pin_memory().to(device, non_blocking=True)
