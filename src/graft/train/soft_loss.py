"""Cross-entropy of an output layer to soft labels, without ever holding all its logits.

Loss and gradients are computed together, some rows at a time: for rows of logits z = W h and
labels p, with q = softmax(z),

    loss = -sum(p * log q)      d loss / d z = q - p

so what is kept for the backward pass is the gradient of h and of W, not [rows, vocabulary].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK = 1024  # rows of logits at a time


class Labels(NamedTuple):
    """What rows are to say.

    wanted: fp32 [n, V], distributions. choice: int64 [n], the likeliest entry of each. rows:
    int64 [m], the distribution that each row is to have. weight: fp32 [m], of each row's loss.
    """

    wanted: Tensor
    choice: Tensor
    rows: Tensor
    weight: Tensor


class _SoftLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, *labels: Tensor) -> tuple[Tensor, Tensor]:
        given = Labels(*labels)
        loss = hidden.new_zeros((), dtype=torch.float32)
        right = torch.empty(len(hidden), dtype=torch.bool, device=hidden.device)
        # A working copy in half precision would lose small sums; one buffer adds in fp32.
        to_hidden, to_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float)
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            scale = given.weight[part]
            wanted = given.wanted[given.rows[part]]
            logits = (hidden[part] @ weight.T).float()
            slope = torch.softmax(logits, dim=1)
            first = logits.argmax(1, keepdim=True)
            # log(sum(exp(z))), from the entry where it is exact
            total = (logits.gather(1, first) - slope.gather(1, first).log()).squeeze(1)
            loss += torch.dot(total - torch.linalg.vecdot(wanted, logits), scale)
            right[part] = first.squeeze(1) == given.choice[given.rows[part]]
            slope = slope.sub_(wanted).to(hidden.dtype)
            # Weights go to the narrow factor of each product.
            scale = scale.to(hidden.dtype).unsqueeze(1)
            to_hidden[part] = (slope @ weight) * scale
            to_weight += slope.T @ (hidden[part] * scale)
        ctx.save_for_backward(to_hidden, to_weight)
        ctx.dtype = weight.dtype
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        to_hidden, to_weight = ctx.saved_tensors
        return to_hidden * slopes[0], (to_weight * slopes[0]).to(ctx.dtype), *[None] * 4


def soft_loss(hidden: Tensor, weight: Tensor, labels: Labels) -> tuple[Tensor, Tensor]:
    """Weighted sum of the cross-entropies of softmax(hidden @ weight.T) to labels.

    Args:
        hidden: [m, H]. weight: [V, H]. Labels get no gradient.

    Returns:
        loss, fp32 scalar; and bool [m], whether the most likely entry is the wanted one.
    """
    loss, right = _SoftLoss.apply(hidden, weight, *labels)  # type: ignore[no-untyped-call]
    return loss, right
