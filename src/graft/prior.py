"""What candidates are worth before anything was learnt of them: counts that ship. [ours]

The counts of a cell were taken while decoding (`tools/derive_prior.py`). Cells that were seldom
met lean on those that share their row (what retrieval says) or their column (what the drafter
says): a logistic model of one number per row and one per column says what a cell would be, and
its own counts move it from there.

This module knows cells alone.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import resources

import torch
from safetensors.torch import load
from torch import Tensor

from graft.evidence import Cells

LEAN = 30.0  # trials that the model of rows and columns counts for
_STEPS, _RATE, _SHRINK = 400, 0.1, 2.0  # of the fit


def default_prior(cells: Cells) -> Tensor:
    """The prior that ships, float32 [cells] on their device."""
    return _shipped().to(cells.voice.device)


def prior_of(trials: Tensor, hits: Tensor, cells: Cells) -> Tensor:
    """Rates float32 [cells] from counts float32 [cells]."""
    row, column = cells.parts()
    start = math.log((float(hits.sum()) + 1) / (float(trials.sum() - hits.sum()) + 1))
    rows = torch.full((int(row.max()) + 1,), start / 2, requires_grad=True)
    columns = torch.full((int(column.max()) + 1,), start / 2, requires_grad=True)
    adam = torch.optim.Adam([rows, columns], lr=_RATE)
    for _ in range(_STEPS):
        logits = rows[row] + columns[column]
        loss = trials * torch.nn.functional.softplus(logits) - hits * logits
        spread = (rows - start / 2).square().sum() + (columns - start / 2).square().sum()
        adam.zero_grad()
        (loss.sum() + _SHRINK * spread).backward()
        adam.step()
    with torch.no_grad():
        model = torch.sigmoid(rows[row] + columns[column])
        return (hits + LEAN * model) / (trials + LEAN)


@cache
def _shipped() -> Tensor:
    data = resources.files("graft").joinpath("data/prior.safetensors").read_bytes()
    return load(data)["rates"].float()
