"""Packed CPU linears in bf16, for processors with matrix units.

oneDNN multiplies bf16 weights fastest from a layout of its own. torch's linear puts a weight into
it anew in every call, which at the few rows of a decoding step costs more than the product, and
takes a slow path for a slice of hidden states. Here the weight is put there once.

Invariant: a result differs from that of torch's linear by rounding alone; what the kernel cannot
take goes to torch's linear. The weight stays a Parameter, so memory for linears doubles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from graft.pack_report import PackReport, obstacle

ROWS = 64  # that the layout is chosen for


class Bf16Linear(nn.Linear):
    """Stands for an nn.Linear with a bf16 weight on the CPU: x [..., in] -> [..., out], bf16."""

    def __init__(self, source: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = source.in_features, source.out_features
        self.training = source.training
        self.weight, self.bias = source.weight, source.bias
        self._pack()

    def forward(self, x: Tensor) -> Tensor:
        """The product; gradients, other dtypes and changed weights take torch's way."""
        packed = self._packed
        fits = x.dtype == torch.bfloat16 and x.is_cpu and x.dim() > 1 and x.numel() > 0
        gradient = torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad)
        same = self._seen[0] is self.weight and self._seen[1] == _version(self.weight)
        if packed is None or not (fits and same) or gradient:
            return functional.linear(x, self.weight, self.bias)
        rows = x.reshape(-1, self.in_features).contiguous()
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, self.bias, "none", [], "")
        return out.view(*x.shape[:-1], self.out_features)

    def _pack(self) -> None:
        weight = self.weight
        fits = weight.is_cpu and weight.dtype == torch.bfloat16
        self._seen = weight, _version(weight)  # what is packed
        self._packed: Tensor | None = None
        if fits and missing_kernel() is None:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._pack()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Nothing of the kernel's."""
        return {**self.__dict__, "_packed": None, "_seen": (None, None)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._pack()


def pack_bf16(model: nn.Module) -> PackReport:
    """Replace each nn.Linear (no subclass) below `model` whose weight is bf16 on the CPU."""
    problem = missing_kernel()
    if problem is not None:
        return PackReport(0, (f"every linear: {problem}",), 0)
    made: dict[nn.Module, Bf16Linear] = {}
    kept, size = [], 0
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if not path or type(module) is not nn.Linear:
            continue
        if (reason := obstacle(module, torch.bfloat16, "bf16")) is not None:
            kept.append(f"{path}: {reason}")
            continue
        if module not in made:
            made[module] = Bf16Linear(module)
            size += 2 * module.weight.numel()
        model.set_submodule(path, made[module])
    return PackReport(len(made), tuple(kept), -size, "bf16")


@functools.cache
def missing_kernel() -> str | None:
    """Why the kernel cannot be used; None when it can: it is tried."""
    made = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(n, 48, generator=made).bfloat16() for n in (32, 3))
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        found = torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")
    except (AttributeError, RuntimeError) as error:
        return f"the bf16 kernel does not run ({str(error).splitlines()[0]})"
    expected = rows.float() @ weight.float().T
    fine = torch.allclose(found.float(), expected, rtol=0.02, atol=0.1)
    return None if fine else "the bf16 kernel gives wrong results"


def _version(weight: Tensor) -> int | None:
    return None if weight.is_inference() else weight._version
