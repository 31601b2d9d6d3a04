"""Cross-entropy of an output layer to soft labels, without ever holding all its logits.

Loss and gradients are computed together, some rows at a time: for rows of logits z = W h and
labels p, with q = softmax(z),

    loss = -sum(p * log q)      d loss / d z = q - p

so what is kept for the backward pass is the gradient of h and of W, not [rows, vocabulary].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 512  # rows of logits at a time


class _SoftLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, wanted: Tensor, choice: Tensor
    ) -> tuple[Tensor, Tensor]:
        loss = hidden.new_zeros((), dtype=torch.float32)
        right = torch.empty(len(hidden), dtype=torch.bool, device=hidden.device)
        # A working copy in half precision would lose small sums; one buffer adds in fp32.
        to_hidden, to_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float)
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            logs = torch.log_softmax((hidden[part] @ weight.T).float(), dim=1)
            loss -= torch.dot(wanted[part].flatten(), logs.flatten())
            right[part] = logs.argmax(1) == choice[part]
            slope = logs.exp_().sub_(wanted[part]).to(hidden.dtype)
            to_hidden[part] = slope @ weight
            to_weight += slope.T @ hidden[part]
        ctx.save_for_backward(to_hidden, to_weight)
        ctx.dtype = weight.dtype
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None, None]:
        to_hidden, to_weight = ctx.saved_tensors
        return to_hidden * slopes[0], (to_weight * slopes[0]).to(ctx.dtype), None, None


def soft_loss(
    hidden: Tensor, weight: Tensor, wanted: Tensor, choice: Tensor
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of softmax(hidden @ weight.T) to `wanted`.

    Args:
        hidden: [n, H]. weight: [V, H]. wanted: fp32 [n, V], rows that sum to 1. choice: int64 [n],
            the largest of each. The last two get no gradient.

    Returns:
        loss, fp32 scalar; and bool [n], whether the most likely entry is the wanted one.
    """
    loss, right = _SoftLoss.apply(hidden, weight, wanted, choice)  # type: ignore[no-untyped-call]
    return loss, right
