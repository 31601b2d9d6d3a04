"""Packed CPU linears: fp16 weights, fp32 arithmetic, the same result up to rounding order.

At the 1 to 16 rows of a tree forward, FBGEMM's packed half-precision kernel reads half the bytes
of torch's fp32 linear. A weight that fp16 holds bit for bit loses nothing by it.

Invariants: unless rounding is asked for, the packed weight is bit-equal to the stored one, read
back from the kernel's own format; row i of a result depends on row i of the input alone, bitwise.

The call [ours, measured]: a packed weight passed from Python costs 12 to 16 us of argument checks,
a Python operator around it 4 to 9 us more; a TorchScript method that owns it 1 to 5 us. Eager
calls use the method; traced ones (compile, export, fake tensors) the opaque graft::packed_linear,
which finds its module by a handle: a trace runs only while the module lives, in its process.
Knows nothing of expert weights held as raw parameters: they stay as they are.
"""

from __future__ import annotations

import functools
import itertools
import platform
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Self, get_args
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree
from transformers.pytorch_utils import Conv1D

from graft.pack_report import PackReport, obstacle

__all__ = ["CpuWeights", "PackReport", "PackedLinear", "pack_linears"]

CpuWeights = Literal["auto", "fp32", "fp16"]


@functools.cache
def _missing_kernel(engine: str) -> str | None:
    """Why the kernel cannot be used with this quantized engine; None when it can."""
    if platform.machine().lower() not in ("x86_64", "amd64") or engine not in ("x86", "fbgemm"):
        return f"the CPU is {platform.machine()}, torch.backends.quantized.engine is {engine}"
    # Every finite fp16 value must come back bit for bit; then no weight needs reading back.
    values = torch.arange(-(2**15), 2**15, dtype=torch.int16, device="cpu").view(torch.float16)
    values = values[values.isfinite()].float().view(-1, 64)
    try:
        packed = torch.ops.quantized.linear_prepack_fp16(values.clone(), None)
        exact = torch.equal(_unpack(packed, False).view(torch.int32), values.view(torch.int32))
        one = torch.tensor([[1.0, -0.5]], dtype=torch.float32, device="cpu")
        packed = torch.ops.quantized.linear_prepack_fp16(one.clone(), None)
        exact &= torch.ops.quantized.linear_dynamic_fp16(one, packed).item() == 1.25
    except (AttributeError, RuntimeError) as error:
        return f"the fp16 kernel does not run ({str(error).splitlines()[0]})"
    return None if exact else "the fp16 kernel gives wrong results"


def _prepack(weight: Tensor, transposed: bool, rounding: bool) -> torch.ScriptObject | None:
    """Packs a weight; None where it is not fp32 on the CPU, or fp16 cannot hold it."""
    engine = torch.backends.quantized.engine
    if not weight.is_cpu or weight.dtype != torch.float32 or _missing_kernel(engine):
        return None
    matrix = weight.detach().t() if transposed else weight.detach()
    half = matrix.half().contiguous()
    held = half.float()  # a copy: prepacking clamps NaN and what is beyond 65504 in its input
    if not bool(half.isfinite().all()) or not (rounding or torch.equal(held, matrix)):
        return None
    packed: torch.ScriptObject = torch.ops.quantized.linear_prepack_fp16(held, None)
    return packed


def _unpack(packed: torch.ScriptObject | None, transposed: bool) -> Tensor:
    weight: Tensor = torch.ops.quantized.linear_unpack_fp16(packed)[0]
    return (weight.t() if transposed else weight).contiguous()


class _Kernel(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)  # type: ignore[no-any-return]


def _kernel(packed: torch.ScriptObject) -> Callable[[Tensor], Tensor]:
    direct = _Kernel()
    direct.packed = packed  # type: ignore[assignment]
    try:
        with warnings.catch_warnings(action="ignore"):  # TorchScript is deprecated
            return torch.jit.script(direct)._c._get_method("forward")  # type: ignore[no-any-return]
    except Exception:  # a torch without TorchScript: slower, equal
        return direct.forward


# Weak: a handle lives as long as its module. Read by traced calls alone.
_MODULES: WeakValueDictionary[int, PackedLinear] = WeakValueDictionary()
_HANDLES = itertools.count()
torch.library.define("graft::packed_linear", "(Tensor x, Tensor handle, int out) -> Tensor")
_TRACED = torch.ops.graft.packed_linear.default
torch.library.impl(_TRACED.name(), "CPU", lambda x, handle, _: _MODULES[int(handle)]._product(x))
torch.library.register_fake(_TRACED, lambda x, _, out: x.new_empty((*x.shape[:-1], out)))


class _LazyWeight(torch.Tensor):
    """A packed weight seen from outside: shape, dtype and device are free, other uses unpack."""

    _read: Callable[[], Tensor]
    _is_param = True  # isinstance(weight, nn.Parameter) holds: code that ties weights asks
    _writes = re.compile(r"__set__|__setitem__|__i(add|sub|mul|truediv|div)__|.*[^_]_")
    _free = frozenset(getattr(Tensor, n).__get__ for n in ("dtype", "device", "shape", "is_cpu"))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in cls._free:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        if cls._writes.fullmatch(func.__name__) and isinstance(args[0], cls):
            raise RuntimeError("a packed weight is read-only; assign a Parameter to module.weight")
        args, kwargs = _pytree.tree_map_only(cls, lambda lazy: lazy._read(), (args, kwargs or {}))
        return func(*args, **kwargs)

    __torch_dispatch__ = __torch_function__  # type: ignore[assignment]


class PackedLinear(nn.Module):
    """Stands for an nn.Linear or Conv1D: x [..., in] fp32 -> [..., out] fp32.

    `weight` keeps its orientation ([out, in]; Conv1D: [in, out]). Reading its shape, dtype or
    device costs microseconds, any other use unpacks it (some 5 ns a value) for that use alone. It
    is frozen and not in `parameters()`. State dicts, copies and pickles hold an ordinary weight and
    bias. A tied weight stays a Parameter beside its packed copy, which follows changes of the
    Parameter in place, but not those made through `.data`.

    Off the CPU, in another dtype, or where fp16 cannot hold a value, this is plain storage with
    F.linear (`packed` is False); it packs again when it can. An input in one dimension, of another
    dtype or needing a gradient gets F.linear with the unpacked weight: right, but slow. Autocast
    does not reach packed calls. `tied`: others use the weight too. `rounding`: loss is wanted.
    `ready`: the weight, if it has been packed before.
    """

    def __init__(
        self,
        source: nn.Module,
        *,
        tied: bool = False,
        rounding: bool = False,
        ready: torch.ScriptObject | None = None,
    ) -> None:
        super().__init__()
        self.training = source.training
        self._transposed, self._tied, self._rounding = isinstance(source, Conv1D), tied, rounding
        self._parameters["weight"] = source._parameters["weight"]
        self.register_parameter("bias", source._parameters["bias"])
        self._pack(ready)

    @property
    def weight(self) -> Tensor:
        """The weight in its original orientation."""
        if (stored := self._parameters["weight"]) is not None:
            return stored
        shape = (self.out_features, self.in_features)[:: -1 if self._transposed else 1]
        lazy = Tensor._make_wrapper_subclass(_LazyWeight, shape, dtype=torch.float32)
        lazy._read = functools.partial(self._read, self._transposed)
        return lazy

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and isinstance(value, nn.Parameter):
            # The caller may hold it elsewhere too (tie_weights does): it stays a Parameter here.
            self._parameters["weight"], self._tied = value, True
            self._pack()
        else:
            super().__setattr__(name, value)

    def _pack(self, ready: torch.ScriptObject | None = None) -> None:
        """Packs the stored weight if it can; an untied fp32 weight is then let go."""
        weight, packed = self._unpacked(), ready
        self.out_features, self.in_features = weight.shape[:: -1 if self._transposed else 1]
        self._seen = None if weight.is_inference() else weight._version
        if ready is None:
            packed = _prepack(weight, self._transposed, self._rounding)
        self.packed = packed is not None
        self._read = functools.partial(_unpack, packed)  # export refuses a bare ScriptObject
        self._kernel = None if packed is None else _kernel(packed)
        if self.packed:
            self._handle = torch.tensor(number := next(_HANDLES), device="cpu")
            _MODULES[number] = self
            if not self._tied:
                self._parameters["weight"] = None

    def _unpacked(self) -> nn.Parameter:
        """The stored weight, or the packed one made a frozen Parameter."""
        stored = self._parameters["weight"]
        return nn.Parameter(self._read(self._transposed), False) if stored is None else stored

    def _plain(self, x: Tensor, bias: Tensor | None) -> Tensor:
        weight: Tensor = self._unpacked()
        if self.packed and x.is_floating_point():
            weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
        return functional.linear(x, weight.t() if self._transposed else weight, bias)

    def _product(self, x: Tensor) -> Tensor:
        weight = self._parameters["weight"]
        if weight is not None and self._seen is not None and weight._version != self._seen:
            self._pack()
        return self._plain(x, None) if self._kernel is None else self._kernel(x)

    def bare(self) -> Callable[[Tensor], Tensor]:
        """The module as it is now, without what a call of it checks, where that is possible: for
        rows that are fp32 on the CPU and need no gradient."""
        alone = self._kernel is not None and not self._tied
        return self._kernel if alone and self._parameters["bias"] is None else self  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], for any leading shape and strides, or no rows."""
        bias = self._parameters["bias"]
        fits = x.is_cpu and x.dtype == torch.float32 and x.dim() > 1
        if not self.packed or not fits or (x.requires_grad and torch.is_grad_enabled()):
            return self._plain(x, bias)
        traced = torch.compiler.is_compiling() or type(x) is not Tensor
        out = _TRACED(x, self._handle, self.out_features) if traced else self._product(x)
        return out if bias is None else out.add_(bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._parameters["weight"] = self._unpacked()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._pack()
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self._unpacked().data
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        tied = self._tied
        self._parameters["weight"] = self._unpacked()
        super()._load_from_state_dict(*args, **kwargs)
        self._tied = tied  # assign=True has come through __setattr__
        self._pack()

    def __getstate__(self) -> dict[str, Any]:
        """Nothing of the kernel's, so that a pickle loads where the kernel is missing."""
        weights = {**self._parameters, "weight": self._unpacked()}
        return {**self.__dict__, "_parameters": weights, "_read": None, "_kernel": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._pack()


def _obstacle(module: nn.Module) -> str | None:
    return obstacle(module, torch.float32, "fp32")


def _require_range(linears: dict[nn.Module, list[str]]) -> None:
    for module, (path, *_) in linears.items():
        if not _obstacle(module) and not module.get_parameter("weight").half().isfinite().all():
            raise ValueError(
                f"{path}.weight has values that are not finite or beyond 65504, where fp16 ends; "
                "use mode 'auto' (it leaves such a tensor fp32) or 'fp32'"
            )


def pack_linears(
    model: nn.Module,
    mode: CpuWeights = "auto",
    stored_dtype: Mapping[str, torch.dtype] | None = None,
) -> PackReport:
    """Replaces each nn.Linear (no subclass) and Conv1D below `model` that is fp32 on the CPU.

    Args:
        mode: "auto" packs weights that fp16 holds exactly, where the kernel exists; "fp32" packs
            nothing; "fp16" packs all and rounds (results differ from those of the stored weights).
        stored_dtype: the checkpoint's dtypes by parameter name, told in `kept`, never trusted.

    Raises:
        ValueError, before any change: unknown mode; "fp16" without the kernel or out of range.
    """
    if mode not in get_args(CpuWeights):
        raise ValueError(f"mode is {mode!r}; use one of {', '.join(get_args(CpuWeights))}")
    problem = None if mode == "fp32" else _missing_kernel(torch.backends.quantized.engine)
    if mode == "fp16" and problem:
        raise ValueError(
            "mode 'fp16' needs an x86 CPU, torch with FBGEMM and its quantized engine at x86 or "
            f"fbgemm, but {problem}; use 'auto' or 'fp32'"
        )
    if mode == "fp32" or problem:
        return PackReport(0, (f"every linear: {problem}",) if problem else (), 0)
    linears: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if path and type(module) in (nn.Linear, Conv1D):
            linears.setdefault(module, []).append(path)
    if mode == "fp16":
        _require_range(linears)
    held = [p.data_ptr() for m in model.modules() for p in m._parameters.values() if p is not None]
    kept, packed, saved = [], 0, 0
    for module, ready in _prepack_all(list(linears), mode == "fp16"):
        paths = linears.pop(module)  # with the last reference its fp32 weight goes too
        if ready is None:
            stored = (stored_dtype or {}).get(f"{paths[0]}.weight")
            inexact = "fp16 does not hold every value" + (f" (stored: {stored})" if stored else "")
            kept.append(f"{paths[0]}: {_obstacle(module) or inexact}")
            continue
        tied = held.count(module.get_parameter("weight").data_ptr()) > 1
        made = PackedLinear(module, tied=tied, rounding=mode == "fp16", ready=ready)
        for path in paths:
            model.set_submodule(path, made)
        packed += 1
        saved += (-2 if tied else 2) * made.in_features * made.out_features
    return PackReport(packed, tuple(kept), saved)


def _prepack_all(
    modules: list[nn.Module], rounding: bool
) -> Iterator[tuple[nn.Module, torch.ScriptObject | None]]:
    """The packed weight of each module, None where there is none. The kernel's own packing runs
    on one thread (about 20 ns a value), so several weights are packed at once."""

    def one(module: nn.Module) -> torch.ScriptObject | None:
        if _obstacle(module):
            return None
        return _prepack(module.get_parameter("weight"), isinstance(module, Conv1D), rounding)

    with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
        waiting = deque((module, pool.submit(one, module)) for module in modules)
        modules.clear()
        while waiting:
            module, job = waiting.popleft()
            yield module, job.result()
