"""Rows of a batch at given places. It knows tensors alone."""

from __future__ import annotations

from torch import Tensor


def rows_at(rows: Tensor, index: Tensor) -> Tensor:
    """rows [B, L, H] at index int64 [B, R]: [B, R, H]."""
    return rows.gather(1, index.unsqueeze(2).expand(-1, -1, rows.shape[2]))
