"""Shared set-up of all tests."""

from __future__ import annotations

import os

# Idle worker threads sleep instead of spinning, so that tests share cores with other work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

# Tiny models gain nothing from more threads.
torch.set_num_threads(1)
