"""How near the routers of a mixture of experts came to choosing other experts.

A router keeps the experts with the k highest logits. Where the k-th and the next lie closer than
rounding, two shapes of the same forward may run different experts, and the logits that follow
differ by far more than rounding. `watch_routers` measures that gap during a forward.

Invariant: only routers whose choice is the plain order of their logits are measured; of others
(expert groups, correction biases) nothing is known, so they excuse nothing.
It does not know tokens or how they are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from graft.target import Target

__all__ = ["RouterGaps", "watch_routers"]


class RouterGaps:
    """Gaps of all routers over the rows of the forwards watched."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Tensor]] = {}  # per router, the gaps of each forward

    def add(self, router: int, logits: Tensor, chosen: int) -> None:
        """Record logits [rows, experts] of a forward."""
        best = logits.float().flatten(0, -2).topk(chosen + 1, dim=-1).values
        self._rows.setdefault(router, []).append(best[:, chosen - 1] - best[:, chosen])

    def least(self, last: int) -> float:
        """The least gap of any router at the last rows; infinite without a router."""
        ends = [torch.cat(gaps)[-last:] for gaps in self._rows.values()]
        return min((float(gaps.min()) for gaps in ends), default=float("inf"))


@contextmanager
def watch_routers(target: Target) -> Iterator[RouterGaps]:
    """Measure the routers of the target's model, if it has any, while the block runs."""
    gaps = RouterGaps()
    model = getattr(target, "model", None)
    hooks = []
    for index, router in enumerate(model.modules() if model is not None else ()):
        if _ranks_by_logits(router):
            hooks.append(router.register_forward_hook(_recorder(gaps, index)))
    try:
        yield gaps
    finally:
        for hook in hooks:
            hook.remove()


def _ranks_by_logits(module: nn.Module) -> bool:
    chosen, experts = getattr(module, "top_k", None), getattr(module, "num_experts", None)
    if not isinstance(chosen, int) or not isinstance(experts, int) or not chosen < experts:
        return False
    return "Router" in type(module).__name__ and not hasattr(module, "e_score_correction_bias")


def _recorder(gaps: RouterGaps, index: int) -> Any:
    def record(router: nn.Module, _arguments: Any, output: Any) -> None:
        logits = output[0] if isinstance(output, tuple) else output
        if logits.shape[-1] == router.num_experts:
            gaps.add(index, logits, int(router.top_k))  # type: ignore[arg-type]

    return record
