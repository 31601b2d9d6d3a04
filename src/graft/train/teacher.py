"""Teacher: what the target says of a group, computed when it is needed.

Two things: the features that the head reads, and, for each row that learns, the target's
distribution over the draft vocabulary. Logits over the whole vocabulary are never held: the rest
of it is looked at for its maximum alone, some rows at a time.

What the target's layers say of a group can be kept in memory for the epochs to come: features and
last hidden states, a product away from the distributions, which are never kept. Invariant: a
lesson is the same bit for bit whether it was kept or not.

It knows the target; not the head, not the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graft.attention import NAME, Step
from graft.target import TransformersTarget
from graft.train.groups import Group

CHUNK = 512  # rows of logits at a time
# Largest difference of logits, relative to the largest logit, that a dtype's rounding explains.
_TOLERANCE = 0.02


class Lesson(NamedTuple):
    """What there is to learn from a group, with R = the longest answer less 1.

    Row r of an answer reads the feature at its prompt's last token + r and is to name what the
    target says two tokens on; an answer of n tokens has n - 1 rows.

    features: [B, L, F] of all tokens. rows: int64 [n], flat indices into [B, R] of the rows that
    there are. wanted: [n, draft vocabulary] the target's probabilities, fp32. choice: int64 [n],
    the most likely of them. named: bool [n], no token outside is more likely.
    """

    features: Tensor
    rows: Tensor
    wanted: Tensor
    choice: Tensor
    named: Tensor


class _Heard(NamedTuple):
    """What is kept of a group, on the CPU: see Lesson; hidden [n, H]: what says `wanted`."""

    features: Tensor
    rows: Tensor
    hidden: Tensor
    named: Tensor

    def to(self, device: torch.device | str) -> _Heard:
        return _Heard(*(tensor.to(device) for tensor in self))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self)


class Teacher:
    """A target that teaches.

    Args:
        target: with the features that the head reads.
        target_ids: int64 [n], the draft vocabulary.
        token_count: ids that the tokenizer knows; the others are never said.
        memory: bytes that may be kept of groups. The first to come stay: every epoch sees all of
            them, so that what came last is what is needed last.

    Raises:
        ValueError: for a model that changes its logits after its output layer.
    """

    def __init__(
        self, target: TransformersTarget, target_ids: Tensor, token_count: int, memory: int = 0
    ) -> None:
        self.target = target
        self._kept: dict[int, _Heard] = {}
        self._free = memory
        device = target.device
        model = target.model
        weight = model.get_output_embeddings().weight.detach()
        bias = getattr(model.get_output_embeddings(), "bias", None)
        inside = torch.zeros(len(weight), dtype=torch.bool, device=device)
        inside[target_ids] = True
        outside = ~inside
        outside[token_count:] = False
        # Copies, so that a product needs no gathering of rows.
        self._named = weight[target_ids], None if bias is None else bias[target_ids]
        self._others = weight[outside], None if bias is None else bias[outside]
        self._check(weight, bias)

    @torch.no_grad()
    def teach(self, group: Group, key: int | None = None) -> Lesson:
        """Run the target over a group on its device.

        Args:
            key: stands for the group in this teacher's memory; None neither keeps nor looks.
        """
        heard = self._kept.get(key) if key is not None else None
        if heard is not None:
            heard = heard.to(self.target.device)
        else:
            heard = self._hear(group)
            if key is not None and heard.nbytes <= self._free:
                self._free -= heard.nbytes
                self._kept[key] = heard.to("cpu")
        wanted = heard.hidden.new_empty(len(heard.rows), len(self._named[0]), dtype=torch.float32)
        for start in range(0, len(wanted), CHUNK):
            part = slice(start, start + CHUNK)
            torch.softmax(self._logits(heard.hidden[part]), dim=1, out=wanted[part])
        return Lesson(heard.features, heard.rows, wanted, wanted.argmax(1), heard.named)

    def _hear(self, group: Group) -> _Heard:
        hidden = self._run(group.tokens)
        features = self.target.features()
        answers = group.answers - 1  # [B] rows of each answer
        place = torch.arange(int(answers.max()), device=answers.device)
        rows = (place < answers.unsqueeze(1)).flatten().nonzero().squeeze(1)
        # The distribution behind token p + r of an answer that begins at p.
        index = (group.prompts.unsqueeze(1) + place).clamp(max=hidden.shape[1] - 1)
        flat = index + hidden.shape[1] * torch.arange(len(index), device=index.device).unsqueeze(1)
        said = hidden.flatten(0, 1)[flat.flatten()[rows]]
        named = [
            self._logits(part).amax(1) >= self._highest_other(part) for part in said.split(CHUNK)
        ]
        return _Heard(features, rows, said, torch.cat(named))

    def _logits(self, hidden: Tensor) -> Tensor:
        """Logits of the draft vocabulary [n, draft vocabulary], fp32."""
        return torch.nn.functional.linear(hidden, *self._named).float()

    def _highest_other(self, hidden: Tensor) -> Tensor:
        """Largest logit outside the draft vocabulary [n], fp32."""
        if not len(self._others[0]):
            return hidden.new_full((len(hidden),), -torch.inf, dtype=torch.float32)
        logits: Tensor = torch.nn.functional.linear(hidden, *self._others)
        return logits.amax(1).float()

    def _run(self, tokens: Tensor) -> Tensor:
        """Hidden states [B, L, H] as the output layer reads them."""
        hidden: Tensor = self._forward(self.target.model.base_model, tokens).last_hidden_state
        return hidden

    def _forward(self, module: Callable[..., Any], tokens: Tensor) -> Any:
        """The model, or its body, over texts [B, L] that begin with their first tokens."""
        batch, length = tokens.shape
        step = Step.chain(0, [0] * batch, length, tokens.device)
        with self.target.attention(NAME):
            return module(
                input_ids=tokens, position_ids=step.depths, use_cache=False, graft_step=step
            )

    @torch.no_grad()
    def _check(self, weight: Tensor, bias: Tensor | None) -> None:
        """Refuse a model that caps or scales its logits: its distribution would be another."""
        tokens = torch.arange(4, device=weight.device).unsqueeze(0)
        expected = torch.nn.functional.linear(self._run(tokens), weight, bias)
        found = self._forward(self.target.model, tokens).logits
        gap = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
        if not gap < _TOLERANCE:
            raise ValueError(
                f"{type(self.target.model).__name__} changes its logits after the output layer "
                "(it caps or scales them): training a head for it is not supported"
            )
