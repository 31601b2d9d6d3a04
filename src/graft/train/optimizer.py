"""Mixed precision by hand: weights are learnt in fp32, and used in the dtype that is fast.

The models run on a working copy of the head; its gradients are added up in fp32, AdamW moves the
fp32 weights, and the copy is made anew. In fp32 the copy is equal. Invariant: two optimisers with
equal state that see equal gradients stay equal bit for bit (on one device, with as many threads).

It knows parameters and steps; not what the loss is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

BETAS = (0.9, 0.95)


class MixedPrecision:
    """AdamW over fp32 copies of a module's parameters.

    Attributes:
        weights: the fp32 copies, by name. sums: their gradients of this step so far.

    Args:
        module: in the dtype that it runs in; its parameters are overwritten after each step.
        weights: the fp32 start, by the module's names of parameters.
        clip: largest norm of the gradient of all parameters.
    """

    def __init__(
        self, module: nn.Module, weights: Mapping[str, Tensor], *, weight_decay: float, clip: float
    ) -> None:
        self._running = dict(module.named_parameters())
        self.weights = {
            name: weights[name].detach().to(torch.float32).clone() for name in self._running
        }
        self.sums = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        self.clip = clip
        matrices = [w for w in self.weights.values() if w.dim() > 1]
        others = [w for w in self.weights.values() if w.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW(groups, lr=0.0, betas=BETAS)
        self._use()

    def collect(self) -> None:
        """Add the working copy's gradients to the sum of this step, in fp32."""
        for name, parameter in self._running.items():
            if parameter.grad is not None:
                self.sums[name] += parameter.grad
                parameter.grad = None

    def step(self, rate: float) -> float:
        """Move the weights by the summed gradients; returns their norm before it was clipped."""
        for name, weight in self.weights.items():
            weight.grad = self.sums[name]
        norm = torch.nn.utils.clip_grad_norm_(list(self.weights.values()), self.clip)
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        self._use()
        for total in self.sums.values():
            total.zero_()
        return float(norm)

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on."""
        moments = {
            f"{kind}/{name}": tensor
            for name, weight in self.weights.items()
            for kind, tensor in self._adam.state.get(weight, {}).items()
        }
        return {**{f"weight/{n}": w.detach() for n, w in self.weights.items()}, **moments}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned."""
        for name, weight in self.weights.items():
            weight.copy_(state[f"weight/{name}"])
            if f"step/{name}" in state:
                self._adam.state[weight] = {
                    kind: state[f"{kind}/{name}"].to(weight.device if kind != "step" else "cpu")
                    for kind in ("step", "exp_avg", "exp_avg_sq")
                }
        self._use()

    @torch.no_grad()
    def _use(self) -> None:
        for name, parameter in self._running.items():
            parameter.copy_(self.weights[name])


def rate_at(step: int, total: int, *, rate: float, warm_up: float, cool_down: float) -> float:
    """Learning rate of a step (from 0): up, level, down to near 0 in a straight line."""
    rise, fall = warm_up * total, cool_down * total
    return rate * min(1.0, (step + 1) / max(rise, 1.0), (total - step) / max(fall, 1.0))
