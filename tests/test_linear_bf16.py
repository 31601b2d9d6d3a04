"""Packed bf16 linears: torch's linear up to rounding, whatever is done with them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from graft import linear_bf16
from graft.linear_bf16 import Bf16Linear, missing_kernel, pack_bf16
from tests.tiny_models import tiny_model

needs_kernel = pytest.mark.skipif(missing_kernel() is not None, reason=str(missing_kernel()))


def made(bias: bool = False) -> tuple[nn.Linear, Bf16Linear]:
    torch.manual_seed(0)
    source = nn.Linear(48, 32, bias=bias, dtype=torch.bfloat16).requires_grad_(False)
    return source, Bf16Linear(source)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.02, atol=0.02)


@needs_kernel
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 48), (7, 48), (2, 3, 48), (1, 1, 48), (0, 48), (70, 48)])
def test_it_is_the_linear(bias: bool, shape: tuple[int, ...]) -> None:
    source, packed = made(bias)
    x = torch.randn(shape).bfloat16()
    close(packed(x), source(x))


@needs_kernel
def test_slices_and_single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    source, packed = made()
    wide = torch.randn(2, 9, 96).bfloat16()
    for x in (wide[:, -1:, :48], wide[:, ::2, 48:], wide[0, 0, :48]):
        close(packed(x), source(x))
    # The comparison can fail: another weight gives another result.
    assert not torch.allclose(packed(wide[..., :48]), source(wide[..., 48:]), atol=0.1)


@needs_kernel
def test_rows_are_independent_bit_for_bit() -> None:
    _, packed = made()
    x = torch.randn(16, 48).bfloat16()
    before = packed(x)
    x[3] = 1000
    after = packed(x)
    assert torch.equal(before[:3], after[:3])
    assert torch.equal(before[4:], after[4:])


def test_changes_of_the_weight_are_followed() -> None:
    source, packed = made()
    x = torch.randn(4, 48).bfloat16()
    with torch.no_grad():
        packed.weight.mul_(2)
    close(packed(x), 2 * made()[0](x))
    assert packed.weight is source.weight
    for value in (0, 1):  # also one that has been written to as often
        packed.weight = nn.Parameter(torch.full_like(packed.weight, value), requires_grad=False)
        close(packed(x), x.sum(1, keepdim=True).expand(-1, 32) * value)


def test_gradients_and_other_dtypes_take_torchs_way() -> None:
    source, packed = made()
    x = torch.randn(4, 48).bfloat16().requires_grad_()
    packed(x).sum().backward()
    assert x.grad is not None
    moved = packed.float()
    y = torch.randn(4, 48)
    torch.testing.assert_close(moved(y), source.float()(y))
    close(moved.bfloat16()(y.bfloat16()), source.float()(y))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_work(way: Any) -> None:
    source, packed = made(bias=True)
    twin = way(packed)
    x = torch.randn(4, 48).bfloat16()
    close(twin(x), source(x))


@needs_kernel
def test_a_model_is_packed_and_says_the_same() -> None:
    model = tiny_model("llama").bfloat16()
    tokens = torch.arange(20)[None]
    before = model(tokens).logits
    report = pack_bf16(model)
    assert (report.kept, report.kind) == ((), "bf16")
    assert report.packed == 7 * 3 + 1
    assert all(type(m) is not nn.Linear for m in model.modules())
    after = model(tokens).logits
    assert (after - before).abs().max() < 0.05 * before.abs().max()
    assert pack_bf16(model).packed == 0


def test_what_is_not_bf16_stays() -> None:
    report = pack_bf16(tiny_model("llama"))
    if missing_kernel() is None:
        assert (report.packed, len(report.kept)) == (0, 22)


def test_without_the_kernel_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_bf16, "missing_kernel", lambda: "there is none")
    model = tiny_model("llama").bfloat16()
    assert pack_bf16(model).kept == ("every linear: there is none",)
    _, packed = made()
    assert packed(torch.randn(2, 48).bfloat16()).shape == (2, 32)
