"""The training-time test: a head learns on what it will read when it drafts [EAGLE-3].

At step 0 a row reads the target's feature. At step s it reads, in its place, the head's own output
of step s - 1 one row before, as a node at depth s + 1 of a draft does; and it sees

    keys of the prompt, and of step 0 at rows <= r - s       (what was committed)
    keys of steps 1 .. s on its own path: step i at row r - s + i

which is what that node sees. The embeddings are those of the text: it is trained on the path that
the target took. Rows r < s have no path of s steps and learn nothing at step s.

It knows the head and lessons; not optimisers, not data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graft.attention import Step
from graft.drafters.eagle3.head import Eagle3Head
from graft.rows import rows_at
from graft.train.groups import Group
from graft.train.soft_loss import Labels, soft_loss
from graft.train.teacher import Lesson


class Outcome(NamedTuple):
    """Of one group.

    loss: fp32 scalar, summed over rows and, weighted, over steps. right: int64 [steps], rows whose
    first choice is the target's. rows: int64 [steps], rows that could have it: a target's choice
    outside the draft vocabulary counts as wrong.
    """

    loss: Tensor
    right: Tensor
    rows: Tensor


class PathKeys:
    """Keys and values of prompt and steps so far, one behind the other, with gradients."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def begin(self, step: Step) -> None:
        """Nothing to make room for."""

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """All keys and values [B, Hkv, T, D], the new ones at the end."""
        if layer in self._held:
            old_keys, old_values = self._held[layer]
            keys, values = torch.cat([old_keys, keys], 2), torch.cat([old_values, values], 2)
        self._held[layer] = keys, values
        return keys, values


def training_test(
    head: Eagle3Head,
    embed: Callable[[Tensor], Tensor],
    group: Group,
    lesson: Lesson,
    *,
    steps: int,
    decay: float,
) -> Outcome:
    """Loss of a head over a group.

    Args:
        head: with gradients, or without for an evaluation.
        embed: embeddings of token ids.
        steps, decay: the loss of step s counts decay ** s.
    """
    keys: Any = PathKeys()
    fused = head.fuse(lesson.features)
    words = embed(group.tokens).to(fused.dtype)
    prompt, answer = _sight(group)
    _read_prompts(head, fused, words, group, prompt, keys)
    count = answer.shape[1]  # R
    hidden, joined = rows_at(fused, answer), rows_at(words, answer + 1)
    place = torch.arange(count, device=answer.device).repeat(len(answer))[lesson.rows]  # [n]
    outs, taught, rows = [], [], []
    for s in range(steps):
        if s:
            # Row 0 reads the last one: it has no path and learns nothing.
            hidden = head.feedback(hidden.roll(1, 1))
        hidden = head(hidden, joined, answer, _step(prompt, answer, group.prompts, s), keys)
        learning = place >= s
        taught.append((learning & lesson.named).nonzero().squeeze(1))
        outs.append(head.norm(hidden).flatten(0, 1)[lesson.rows[taught[s]]])
        rows.append(learning.sum())
    weight = torch.cat(
        [torch.full_like(n, decay**s, dtype=torch.float) for s, n in enumerate(taught)]
    )
    labels = Labels(lesson.wanted, lesson.choice, torch.cat(taught), weight)
    loss, right = soft_loss(torch.cat(outs), head.lm_head.weight, labels)
    hits = [part.sum() for part in right.split([len(n) for n in taught])]
    return Outcome(loss, torch.stack(hits), torch.stack(rows))


def _sight(group: Group) -> tuple[Tensor, Tensor]:
    """Positions of the prompts' rows [1, P], and of the answers' [B, R].

    A row joins the feature of its position with the token behind it. An answer's first row stands
    at the prompt's last token; shorter prompts are padded behind, and so are answers.
    """
    device = group.tokens.device
    prompt = torch.arange(int(group.prompts.max()) - 1, device=device).unsqueeze(0)
    place = torch.arange(int(group.answers.max()) - 1, device=device)
    answer = group.prompts.unsqueeze(1) - 1 + place
    return prompt, answer.clamp(max=group.tokens.shape[1] - 2)


def _read_prompts(
    head: Eagle3Head, fused: Tensor, words: Tensor, group: Group, prompt: Tensor, keys: Any
) -> None:
    """Leave the keys of all prompts' rows but the last."""
    width = prompt.shape[1]
    if width:
        batch = len(fused)
        step = Step.chain(0, [0] * batch, width, fused.device)
        positions = prompt.expand(batch, -1)
        head.remember(fused[:, :width], words[:, 1 : width + 1], positions, step, keys)


def _step(prompt: Tensor, answer: Tensor, prompts: Tensor, s: int) -> Step:
    """Who sees whom at step s: keys of P prompt rows, then of steps 0 to s, R rows each."""
    batch, count = answer.shape
    square = torch.ones(count, count, dtype=torch.bool, device=answer.device)
    own = [square.triu(i - s).tril(i - s) for i in range(1, s + 1)]
    steps = torch.cat([square.tril(-s), *own], 1).expand(batch, -1, -1)
    known = (prompt < prompts.unsqueeze(1) - 1).unsqueeze(1).expand(-1, count, -1)
    depths = torch.cat([prompt.expand(batch, -1), *[answer] * (s + 1)], 1)
    return Step(0, [0] * batch, torch.cat([known, steps], 2), depths)
