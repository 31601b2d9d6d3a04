"""CUDA graphs as they behave, on the CPU: a tape of what a device is asked to do.

A graph knows addresses and kernels: on replay no line of Python runs, numbers of the host are those
of the recording, memory is where it was, and what is not computed anew is whatever stands there.
The tape keeps every operation of torch with its tensors and plays them again in place. Before each
replay everything that any tape of the recorder has made is poisoned, so that who reads something
old, or relies on something that Python did once, says so. What a capture forbids raises here:
reading numbers back, and tensors made of the host's.

It knows torch alone: not what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graft.recordings import Results

READS = {"tolist", "numpy", "item", "__bool__", "__int__", "__float__", "__index__", "nonzero"}
FROM_HOST = {"aten::lift_fresh", "aten::lift_fresh_copy"}
WILD = 1 << 40  # an index of nothing

Call = tuple[Any, tuple[Any, ...], dict[str, Any], Any]


class NotRecordable(RuntimeError):
    """What a capture would refuse."""


class TapeRecorder:
    """A `Recorder`.

    Attributes:
        replays: how often anything was replayed.
        read: storages that were read or written and that no tape has made.
    """

    def __init__(self) -> None:
        self.replays = 0
        self.read: set[int] = set()
        self._made: dict[int, Tensor] = {}  # a tensor per storage that a tape has made

    def record(self, work: Callable[[], Results]) -> tuple[Results, Callable[[], None]]:
        """Run work once, as CUDA's recorder does, then tape it."""
        work()
        with _Functions(), _Tape() as tape:
            results = work()
        made = tape.made()
        self.read |= {
            storage(tensor)
            for _, args, kwargs, _ in tape.calls
            for tensor in tensors((args, kwargs))
            if storage(tensor) not in made
        }
        self._made |= made
        self._poison()

        def replay() -> None:
            self.replays += 1
            self._poison()
            for call in tape.calls:
                play(call)

        return results, replay

    def _poison(self) -> None:
        for tensor in self._made.values():
            poison(tensor)


class _Tape(TorchDispatchMode):
    """Keeps calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.name().partition(".")[0]
        if name in FROM_HOST:
            raise NotRecordable(f"{name}: a number of the host would stay as it is now")
        if _counts(func, args):
            raise NotRecordable(f"{name}: counts on the device how large its result is")
        out = func(*args, **(kwargs or {}))
        if any(not isinstance(leaf, Tensor | None) for leaf in tree_leaves(out)):
            raise NotRecordable(f"{name}: reads a number back")
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def made(self) -> dict[int, Tensor]:
        """By storage, tensors that stand in memory which nobody handed in."""
        found: dict[int, Tensor] = {}
        given: set[int] = set()
        for _, args, kwargs, out in self.calls:
            given |= {storage(t) for t in tensors((args, kwargs)) if storage(t) not in found}
            found |= {storage(t): t for t in tensors(out) if storage(t) not in given}
        return found


class _Functions(TorchFunctionMode):
    """Sees what reads a tensor without an operation of torch."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS:
            raise NotRecordable(f"{name}: reads a number back")
        return func(*args, **(kwargs or {}))


def _counts(func: Any, args: Any) -> bool:
    """Whether the shape of the result depends on numbers."""
    if func.name().startswith("aten::index"):
        return any(t.dtype in (torch.bool, torch.uint8) for t in tensors(args[1:2]))
    return torch.Tag.dynamic_output_shape in func.tags


def play(call: Call) -> None:
    """Do a call again, with its results where they were."""
    func, args, kwargs, out = call
    again = func(*args, **kwargs)
    for place, value in zip(tensors(out), tensors(again), strict=True):
        if storage(place) != storage(value):
            place.copy_(value)


def poison(tensor: Tensor) -> None:
    """Spoil the whole memory that a tensor stands in."""
    whole = tensor.as_strided(
        (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0
    )
    if tensor.is_floating_point():
        whole.fill_(torch.nan)
    elif tensor.dtype == torch.bool:
        whole.logical_not_()
    else:
        whole.fill_(min(WILD, torch.iinfo(tensor.dtype).max))


def tensors(given: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def played_back(recorder: TapeRecorder) -> Iterator[None]:
    """What happens here is replayed at least once."""
    before = recorder.replays
    yield
    assert recorder.replays > before, "nothing was replayed"
