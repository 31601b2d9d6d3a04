"""Tiny EAGLE-3 heads that know a tiny target's answers by heart.

A head with random weights is hardly ever right, and equality without accepted nodes says little.
So a head learns a tiny target's own answers by heart, in seconds, by training-time test: at step s
the row at position t reads its own output of step s - 1 at t - 1 as its feature, and sees

    keys of step 0 at positions <= t - s, then its own path's keys of steps 1 .. s

which is what it sees in a tree at depth s + 1. The loss of step s counts 0.8^s.

Invariant: the same code gives the same head in every process on a machine. Heads that are learnt
are kept on disk under a hash of that code, so that several test processes learn each once.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from graft.attention import Step
from graft.drafters.eagle3 import config as config_module
from graft.drafters.eagle3 import head as head_module
from graft.drafters.eagle3.config import Eagle3Config
from graft.drafters.eagle3.head import Eagle3Head
from graft.target import TransformersTarget
from graft.train.test_time import PathKeys
from tests import tiny_models
from tests.exactness import cases
from tests.exactness.cases import ALONE, SETTINGS
from tests.exactness.helpers import PROMPTS, family_engine, plain_answers
from tests.tiny_models import VOCAB_SIZE, tiny_model

LAYERS = (0, 1, 3)  # inputs of the first layer, of a middle one, and of the final norm
# What the heads know by heart; each setting has answers of its own.
LEARNT = ("greedy", "all cuts", "repetition", "processor")
LEARNT_ELSEWHERE = ("greedy", "all cuts")  # by the heads of other families than llama
STEPS, EPOCHS, RATE = 5, 60, 8e-3
Text = tuple[list[int], list[int]]  # prompt and answer
_KEPT = Path(__file__).parents[2] / ".pytest_cache" / "d" / "heads"


def head_config(**changes: Any) -> Eagle3Config:
    """As wide as the tiny targets."""
    config = Eagle3Config(
        hidden_size=64,
        target_hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=VOCAB_SIZE,
        draft_vocab_size=VOCAB_SIZE,
        feature_layers=LAYERS,
    )
    return replace(config, **changes)


def random_head(seed: int = 0, **changes: Any) -> Eagle3Head:
    """A head that has learnt nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Eagle3Head(head_config(**changes)).eval().requires_grad_(False)


def trained_head(family: str = "llama") -> Eagle3Head:
    """A new head with what the family's head has learnt."""
    head = random_head()
    head.load_state_dict(_weights(family))
    return head


@cache
def target(family: str) -> TransformersTarget:
    """The target of a family with features; one for all tests, which leave its weights alone."""
    return TransformersTarget(tiny_model(family), max_context=4096, feature_layers=LAYERS)


def batch_of(setting: str) -> int:
    """Prompts that decode together in the answers learnt."""
    return 1 if setting in ALONE else 3


@cache
def _weights(family: str) -> dict[str, Tensor]:
    """Learnt in this process, or by another one before."""
    modules = (config_module, head_module, tiny_models, cases)
    code = [Path(str(module.__file__)).read_bytes() for module in modules]
    code += [Path(__file__).read_bytes(), family.encode(), torch.__version__.encode()]
    kept = _KEPT / f"{family}-{hashlib.sha256(b'|'.join(code)).hexdigest()[:24]}.safetensors"
    if kept.exists():
        return load_file(kept)
    head = random_head()
    train(head, family, texts(family))
    weights = dict(head.state_dict())
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        part, name = tempfile.mkstemp(dir=kept.parent)
        os.close(part)
        save_file(weights, name)
        os.replace(name, kept)
        for old in kept.parent.glob(f"{family}-*"):
            if old != kept:
                old.unlink(missing_ok=True)
    return weights


def texts(family: str) -> list[Text]:
    """The prompts with the target's plain answers."""
    out: list[Text] = []
    engine = family_engine(family, target(family))
    for setting in LEARNT if family == "llama" else LEARNT_ELSEWHERE:
        answers = plain_answers(engine, PROMPTS, SETTINGS[setting], batch_of(setting))
        out += zip(PROMPTS, answers, strict=True)
    return out


def train(head: Eagle3Head, family: str, known: Sequence[Text], epochs: int = EPOCHS) -> None:
    """Let `head` learn these texts by heart."""
    longest = max(len(prompt) + len(answer) for prompt, answer in known)
    tokens = torch.zeros(len(known), longest, dtype=torch.int64)
    features = torch.zeros(len(known), longest, len(LAYERS) * 64)
    for row, (prompt, answer) in enumerate(known):
        text = [*prompt, *answer]
        tokens[row, : len(text)] = torch.tensor(text)
        features[row, : len(text)] = features_of(family, text)
    starts, ends = torch.tensor([(len(p), len(p) + len(a)) for p, a in known]).T.unsqueeze(2)
    # Row t joins the feature at t with the token at t + 1 and is to name the token at t + 2.
    count = longest - 2
    words = target(family).model.get_input_embeddings()(tokens[:, 1:-1])
    place = torch.arange(count)
    answer = (place >= starts - 2) & (place < ends - 2)
    names = tokens[:, 2:].where(answer, -100)
    head.requires_grad_(True)
    optimizer = torch.optim.Adam(head.parameters(), lr=RATE, betas=(0.9, 0.95))
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, 2 * (1 - epoch / epochs))
        loss = _loss(head, features[:, :count], words, names)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    head.requires_grad_(False)


def _loss(head: Eagle3Head, features: Tensor, words: Tensor, names: Tensor) -> Tensor:
    batch, count = names.shape
    keys: Any = PathKeys()
    place = torch.arange(count)
    square = torch.ones(count, count, dtype=torch.bool)
    hidden, loss = head.fuse(features), torch.zeros(())
    for s in range(STEPS):
        if s:
            hidden = head.feedback(hidden.roll(1, 1))
        own = [square.triu(i - s).tril(i - s) for i in range(1, s + 1)]
        visible = torch.cat([square.tril(-s), *own], 1).expand(batch, -1, -1)
        depths = place.repeat(s + 1).expand(batch, -1)
        step = Step(0, [0] * batch, visible, depths)
        hidden = head(hidden, words, place.expand(batch, -1), step, keys)
        # Rows before s have no path of s steps.
        wanted = names.where(place >= s, -100)
        logits = head.logits(hidden).flatten(0, 1)
        loss = loss + 0.8**s * torch.nn.functional.cross_entropy(logits, wanted.flatten())
    return loss


@torch.inference_mode()
def features_of(family: str, text: Sequence[int]) -> Tensor:
    """The target's features [n, F] of a text."""
    found: list[Tensor] = []
    model = target(family)
    model.open(1, len(text))
    model.prefill(0, torch.tensor(list(text)), absorb=lambda part: found.append(part.clone()))
    return torch.cat(found)
