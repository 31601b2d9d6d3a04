"""Mixed precision by hand: weights are learnt in fp32, and used in the dtype that is fast.

The models run on a working copy of the head; its gradients are added up in fp32, the optimisers
move the fp32 weights, and the copy is made anew. In fp32 the copy is equal. Invariant: two runs
with equal state that see equal gradients stay equal bit for bit (on one device, with as many
threads).

It knows parameters and steps; not what the loss is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

BETAS = (0.9, 0.95)
# Who moves the matrices inside: AdamW, or Muon (orthogonalised momentum), which is scaled so that
# it takes AdamW's rates. Vectors and tables of tokens are AdamW's either way.
Method = Literal["adamw", "muon"]
# Matrices with one row per token.
_TABLES = ("lm_head.weight", "embed_tokens.weight")


class MixedPrecision:
    """Optimisers over fp32 copies of a module's parameters.

    Attributes:
        weights: the fp32 copies, by name. sums: their gradients of this step so far.

    Args:
        module: in the dtype that it runs in; its parameters are overwritten after each step.
        weights: the fp32 start, by the module's names of parameters.
        clip: largest norm of the gradient of all parameters.
    """

    def __init__(
        self,
        module: nn.Module,
        weights: Mapping[str, Tensor],
        *,
        method: Method,
        weight_decay: float,
        clip: float,
    ) -> None:
        self._running = dict(module.named_parameters())
        self.weights = {
            name: weights[name].detach().to(torch.float32).clone() for name in self._running
        }
        self.sums = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        self.clip = clip
        self._optimizers = list(_optimizers(self.weights, method, weight_decay))
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
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        self._use()
        for total in self.sums.values():
            total.zero_()
        return float(norm)

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on."""
        out = {f"weight/{name}": weight.detach() for name, weight in self.weights.items()}
        for name, weight in self.weights.items():
            for optimizer in self._optimizers:
                moments = optimizer.state.get(weight, {})
                out |= {f"{kind}/{name}": tensor for kind, tensor in moments.items()}
        return out

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned."""
        for name, weight in self.weights.items():
            weight.copy_(state[f"weight/{name}"])
        for key, tensor in state.items():
            kind, _, name = key.partition("/")
            if kind != "weight":
                weight = self.weights[name]
                place = "cpu" if kind == "step" else weight.device
                self._owner(weight).state[weight][kind] = tensor.to(place)
        self._use()

    def _owner(self, weight: Tensor) -> Optimizer:
        """The optimiser that moves a weight."""
        return next(
            optimizer
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            if any(weight is each for each in group["params"])
        )

    @torch.no_grad()
    def _use(self) -> None:
        for name, parameter in self._running.items():
            parameter.copy_(self.weights[name])


def _optimizers(
    weights: Mapping[str, Tensor], method: Method, weight_decay: float
) -> Iterable[Optimizer]:
    """One for all weights, or one more for the matrices inside."""
    inside = [
        weight
        for name, weight in weights.items()
        if method == "muon" and weight.dim() == 2 and name not in _TABLES
    ]
    taken = set(map(id, inside))
    rest = [weight for weight in weights.values() if id(weight) not in taken]
    groups = [
        {"params": [w for w in rest if w.dim() > 1], "weight_decay": weight_decay},
        {"params": [w for w in rest if w.dim() <= 1], "weight_decay": 0.0},
    ]
    yield AdamW([group for group in groups if group["params"]], lr=0.0, betas=BETAS)
    if inside:
        yield Muon(inside, lr=0.0, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")


def rate_at(step: int, total: int, *, rate: float, warm_up: float, cool_down: float) -> float:
    """Learning rate of a step (from 0): up, level, down to near 0 in a straight line."""
    rise, fall = warm_up * total, cool_down * total
    return rate * min(1.0, (step + 1) / max(rise, 1.0), (total - step) / max(fall, 1.0))
