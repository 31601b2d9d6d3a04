"""The optimisers over fp32 copies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from graft.train.optimizer import BETAS, Method, MixedPrecision, rate_at


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


def start(module: nn.Module, clip: float = 1e6, method: Method = "adamw") -> MixedPrecision:
    weights = {n: p.detach().float() for n, p in module.named_parameters()}
    return MixedPrecision(module, weights, method=method, weight_decay=0.1, clip=clip)


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


class Tiny(nn.Module):
    """A matrix inside, a table of tokens, and a vector."""

    def __init__(self) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(1)
        self.fc = nn.Linear(6, 4)
        self.lm_head = nn.Linear(4, 9, bias=False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=made))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lm_head(self.fc(rows))
        return out


def once(module: Tiny, optimizer: MixedPrecision, seed: int) -> None:
    made = torch.Generator().manual_seed(seed)
    module(torch.randn(5, 6, generator=made)).square().mean().backward()
    optimizer.collect()
    optimizer.step(0.02)


def test_muon_moves_the_matrices_inside_alone() -> None:
    """All directions of such a matrix by about as much; the others go as with AdamW."""
    found, other = Tiny(), Tiny()
    before = found.fc.weight.detach().clone()
    once(found, start(found, method="muon"), 0)
    once(other, start(other), 0)
    assert torch.equal(found.lm_head.weight, other.lm_head.weight)
    assert torch.equal(found.fc.bias, other.fc.bias)
    moved = torch.linalg.svdvals((found.fc.weight.detach() - (1 - 0.02 * 0.1) * before).float())
    assert moved.max() / moved.min() < 3
    kept = torch.linalg.svdvals((other.fc.weight.detach() - (1 - 0.02 * 0.1) * before).float())
    assert kept.max() / kept.min() > 3


@pytest.mark.parametrize("method", ["adamw", "muon"])
def test_what_is_restored_goes_on_as_if_never_left(method: Method) -> None:
    whole, part, again = Tiny(), Tiny(), Tiny()
    first, second, third = (start(m, method=method) for m in (whole, part, again))
    for seed in range(3):
        once(whole, first, seed)
        once(part, second, seed)
    third.restore({name: tensor.clone() for name, tensor in second.state().items()})
    for seed in range(3, 6):
        once(whole, first, seed)
        once(again, third, seed)
    for name, weight in first.weights.items():
        assert torch.equal(third.weights[name], weight), name
    assert set(first.state()) == set(third.state())
