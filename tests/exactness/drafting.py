"""Engines that draft over tiny targets, and the check that their answers are plain decoding's.

`agree` decodes with trees and holds the answers against plain ones, each of which is decoded once
in the whole session. Where they differ, `compare` judges whether rounding explains it.
It knows no heads but by `heads`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from graft.costs import Costs
from graft.drafters.base import Drafter
from graft.drafters.eagle3.drafter import Eagle3Drafter
from graft.drafters.eagle3.head import Eagle3Head
from graft.drafters.independent import ModelDrafter
from graft.engine import Engine
from graft.exactness import compare
from graft.request import Result
from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings
from graft.target import TransformersTarget
from tests.cost_tables import FREE
from tests.engines import check_arithmetic
from tests.exactness.cases import SETTINGS
from tests.exactness.heads import target, trained_head
from tests.exactness.helpers import PROMPTS, assert_same, family_engine, teach
from tests.fakes import byte_tokenizer
from tests.tiny_models import EOS_ID, VOCAB_SIZE, tiny_model


def engine(
    drafter: Drafter | None = None,
    family: str = "llama",
    costs: Costs | None = FREE,
    costs_of_one: Costs | None = None,
    of: TransformersTarget | None = None,
    **settings: Any,
) -> Engine:
    """A fresh engine with an empty matrix, by the paper's policy unless told; over the family's
    target, or over one `of` its model."""
    policy = "retrieval" if drafter is None else "graft"
    return Engine(
        of or target(family),
        byte_tokenizer(),
        name=family,
        token_count=VOCAB_SIZE,
        eos_token_ids=(EOS_ID,),
        settings=EngineSettings(**{"policy": policy, **settings}),
        drafter=drafter,
        costs=costs,
        costs_of_one=costs_of_one,
    )


def embed(family: str = "llama") -> Callable[[Tensor], Tensor]:
    """The target's embeddings."""
    found: Callable[[Tensor], Tensor] = target(family).model.get_input_embeddings()
    return found


def eagle3(
    family: str = "llama", head: Eagle3Head | None = None, window: int | None = None
) -> Eagle3Drafter:
    """A drafter with the family's trained head."""
    return Eagle3Drafter(head or trained_head(family), embed(family), VOCAB_SIZE, window)


def model(family: str = "llama") -> ModelDrafter:
    """A drafter with a model that is nearly the target: right more often than not."""
    return ModelDrafter(_draft_model(family), VOCAB_SIZE)


@cache
def _draft_model(family: str) -> TransformersTarget:
    made = tiny_model(family)
    random = torch.Generator().manual_seed(5)
    for weight in made.parameters():
        weight.mul_(1 + 0.01 * torch.randn(weight.shape, generator=random))
    return TransformersTarget(made, max_context=4096)


# From a family, llama if none is given, to a drafter for its target. The proof of a new drafter
# begins with its line here.
DRAFTERS: dict[str, Callable[..., Drafter]] = {"eagle3": eagle3, "model": model}


def plain(
    prompts: Sequence[list[int]], setting: str, batch: int, family: str = "llama"
) -> list[list[int]]:
    """Plain answers with the noise of a call for `batch` prompts."""
    return [
        _plain(tuple(prompt), setting, row % batch, family) for row, prompt in enumerate(prompts)
    ]


@cache
def _plain(prompt: tuple[int, ...], setting: str, row: int, family: str) -> list[int]:
    return plainly(prompt, SETTINGS[setting](), row, family)


def plainly(
    prompt: Sequence[int], params: SamplingParams, row: int = 0, family: str = "llama"
) -> list[int]:
    """A plain answer. It has a target of its own: what others hold in their cache stays."""
    made = family_engine(family)
    return made.continue_ids(prompt, params, row=row, policy="plain").token_ids


def agree(
    made: Engine,
    setting: str,
    *,
    policy: str | None = None,
    budget: int = 16,
    prompts: Sequence[list[int]] = PROMPTS,
    batch: int = 3,
) -> list[Result]:
    """Answer with trees and require plain decoding's tokens and sound counters."""
    found: list[Result] = []
    for start in range(0, len(prompts), batch):
        group = list(prompts[start : start + batch])
        found += made.generate(group, SETTINGS[setting](), policy=policy, budget=budget)
    for result in found:
        check_arithmetic(result, budget)
    if [r.token_ids for r in found] != plain(prompts, setting, batch, made.name):
        options: dict[str, Any] = {"policy": policy, "budget": budget, "batch": batch}
        assert_same(compare(made, prompts, SETTINGS[setting], **options))
    return found


def taught(made: Engine, setting: str, batch: int = 3) -> Engine:
    """Let the matrix know the plain answers, so that retrieved nodes are accepted too."""
    answers = plain(PROMPTS, setting, batch, made.name)
    teach(made, *([p[-1], *a] for p, a in zip(PROMPTS, answers, strict=True)))
    return made


def tau(results: Sequence[Result]) -> float:
    """Mean tokens per round of all answers."""
    rounds = sum(r.stats.rounds for r in results)
    accepted = sum(r.stats.accepted_draft + r.stats.accepted_retrieved for r in results)
    return 1 + accepted / rounds


def stages(results: Sequence[Result]) -> set[str]:
    """Stages that rounds ended in."""
    return {stage for r in results for stage in r.stats.stage_histogram}
