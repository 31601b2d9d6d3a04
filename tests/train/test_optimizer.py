"""AdamW over fp32 copies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from graft.train.optimizer import BETAS, MixedPrecision, rate_at


def linear(dtype: torch.dtype = torch.float32) -> nn.Linear:
    module = nn.Linear(4, 3)
    with torch.no_grad():
        module.weight.copy_(torch.linspace(-1, 1, 12).view(3, 4))
        module.bias.zero_()
    return module.to(dtype)


def learn(module: nn.Linear, optimizer: MixedPrecision, steps: int) -> None:
    made = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randn(5, 4, generator=made).to(module.weight.dtype)
        module(rows).square().mean().backward()
        optimizer.collect()
        optimizer.step(0.01)


def start(module: nn.Linear, clip: float = 1e6) -> MixedPrecision:
    weights = {n: p.detach().float() for n, p in module.named_parameters()}
    return MixedPrecision(module, weights, weight_decay=0.1, clip=clip)


def test_in_fp32_it_is_adamw() -> None:
    module, twin = linear(), linear()
    learn(module, start(module), 5)
    adam = torch.optim.AdamW(
        [{"params": [twin.weight], "weight_decay": 0.1}, {"params": [twin.bias]}],
        lr=0.01,
        betas=BETAS,
        weight_decay=0.0,
    )
    made = torch.Generator().manual_seed(0)
    for _ in range(5):
        adam.zero_grad()
        twin(torch.randn(5, 4, generator=made)).square().mean().backward()
        adam.step()
    torch.testing.assert_close(module.weight, twin.weight)
    torch.testing.assert_close(module.bias, twin.bias)


def test_small_steps_are_not_lost_in_half_precision() -> None:
    module = linear(torch.bfloat16)
    optimizer = start(module)
    before = optimizer.weights["weight"].clone()
    module(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    optimizer.collect()
    optimizer.step(1e-5)
    assert not torch.equal(optimizer.weights["weight"], before)
    assert torch.equal(module.weight, optimizer.weights["weight"].bfloat16())


def test_gradients_add_up_until_the_step() -> None:
    module = linear()
    optimizer = start(module)
    for _ in range(3):
        module(torch.ones(1, 4)).sum().backward()
        optimizer.collect()
    assert torch.equal(optimizer.sums["weight"], torch.full((3, 4), 3.0))
    norm = optimizer.step(0.0)
    assert norm == pytest.approx((12 * 9 + 3 * 9) ** 0.5)
    assert optimizer.sums["weight"].abs().sum() == 0


def test_the_norm_is_clipped() -> None:
    for clip, expected in ((1e6, False), (1e-4, True)):
        module = linear()
        optimizer = start(module, clip)
        module(torch.ones(1, 4)).sum().backward()
        optimizer.collect()
        optimizer.step(0.01)
        moment = optimizer.state()["exp_avg/weight"]
        assert bool(moment.norm() < 1e-3) == expected


def test_it_goes_on_from_its_state_bit_for_bit() -> None:
    one, other = linear(), linear()
    first = start(one)
    learn(one, first, 3)
    saved = {name: tensor.clone() for name, tensor in first.state().items()}
    learn(one, first, 3)
    second = start(other)
    second.restore(saved)
    learn(other, second, 3)
    assert torch.equal(one.weight, other.weight)
    states = first.state(), second.state()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_rate_rises_stays_and_falls() -> None:
    rates = [rate_at(i, 100, rate=2.0, warm_up=0.1, cool_down=0.2) for i in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9:81] == [2.0] * 72
    assert rates[90] == pytest.approx(1.0)
    assert rates[99] == pytest.approx(0.1)
    assert [rate_at(i, 3, rate=1.0, warm_up=0, cool_down=0) for i in range(3)] == [1.0] * 3
