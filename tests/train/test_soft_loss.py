"""The loss in parts equals the loss in one, with its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graft.train import soft_loss as module
from graft.train.soft_loss import Labels, soft_loss


def case(rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, 8, generator=made).requires_grad_()
    weight = torch.randn(20, 8, generator=made).requires_grad_()
    wanted = torch.randn(rows, 20, generator=made).mul(2).softmax(1)
    return hidden, weight, wanted


def labels_of(wanted: Tensor) -> Labels:
    count = len(wanted)
    return Labels(wanted, wanted.argmax(1), torch.arange(count), torch.ones(count))


def plain_loss(hidden: Tensor, weight: Tensor, wanted: Tensor) -> Tensor:
    return -(wanted * (hidden @ weight.T).log_softmax(1)).sum()


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 11])
def test_loss_and_gradients_are_those_of_the_whole(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 4)
    hidden, weight, wanted = case(rows)
    loss, right = soft_loss(hidden, weight, labels_of(wanted))
    (3 * loss).backward()
    twins = hidden.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()
    expected = plain_loss(*twins, wanted)
    (3 * expected).backward()
    torch.testing.assert_close(loss, expected)
    for found, twin in zip((hidden, weight), twins, strict=True):
        torch.testing.assert_close(found.grad, twin.grad)
    assert torch.equal(right, (hidden @ weight.T).argmax(1) == wanted.argmax(1))


def test_hard_labels_are_cross_entropy() -> None:
    hidden, weight, wanted = case(6)
    names = wanted.argmax(1)
    hard = torch.nn.functional.one_hot(names, 20).float()
    loss, _ = soft_loss(hidden, weight, labels_of(hard))
    expected = torch.nn.functional.cross_entropy(hidden @ weight.T, names, reduction="sum")
    torch.testing.assert_close(loss, expected)


def test_half_precision_keeps_its_dtype() -> None:
    hidden, weight, wanted = case(6)
    halves = [t.detach().bfloat16().requires_grad_() for t in (hidden, weight)]
    loss, _ = soft_loss(*halves, labels_of(wanted))
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(t.grad is not None and t.grad.dtype == torch.bfloat16 for t in halves)
    torch.testing.assert_close(loss, plain_loss(hidden, weight, wanted), rtol=0.03, atol=0.1)


def test_rows_share_labels_and_have_weights() -> None:
    hidden, weight, wanted = case(6)
    index, scale = torch.tensor([0, 2, 2, 1, 5, 0]), torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0, 3.0])
    loss, right = soft_loss(hidden, weight, Labels(wanted, wanted.argmax(1), index, scale))
    logs = (hidden @ weight.T).log_softmax(1)
    expected = -((wanted[index] * logs).sum(1) * scale).sum()
    torch.testing.assert_close(loss, expected)
    for found, own in zip(
        torch.autograd.grad(loss, (hidden, weight)),
        torch.autograd.grad(expected, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(found, own)
    assert torch.equal(right, logs.argmax(1) == wanted[index].argmax(1))
