"""Cost of committing an accepted path after 1k, 4k and 16k tokens.

`python tools/measure_commit.py`. The rows of a cache like the default model's are empty; only
the commit is timed.
"""

from __future__ import annotations

import statistics
import time

import torch

from graft.attention import Step
from graft.cache import KVCache, LayerShape, RowShape

row = RowShape(3, 64, torch.float32, torch.device("cpu"))
cache = KVCache([LayerShape(row, row)] * 30, slots=1, capacity=16_640)
path = [2, 5, 9]  # none of them where it belongs: all rows move
visible = torch.ones(1, 17, 17, dtype=torch.bool)
for context in (1_000, 4_000, 16_000):
    seconds = []
    for _ in range(200):
        cache.lengths[0] = context
        cache.begin(Step(0, [context], visible, torch.zeros(1, 17, dtype=torch.int64)))
        start = time.perf_counter()
        cache.commit(0, [path])
        seconds.append(time.perf_counter() - start)
    print(f"{context:6} tokens: median {statistics.median(seconds) * 1e6:.0f} us a commit")
