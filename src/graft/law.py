"""The law test: are the frequencies of tree decoding's answers those of the target's own law?

Equality with plain decoding shows that trees change nothing; this shows, without running the
plain decoder, that what both say is a sample of the target. Many short answers are drawn with
trees, and Pearson's chi-square compares how often each came with its exact probability, the
product of the target's processed distributions along it. Answers that are too rare to count are
pooled by the prefix they share. [ours]

Invariant: expected counts add up to the number of samples, and every one is at least
`LEAST_EXPECTED`, where the statistic's law is close to chi-square.
It does not know how trees are made or verified: engines alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from graft.engine import Engine
from graft.exactness import sampler_of
from graft.noise import gumbel_noise, wrap_seed
from graft.prompts import Prompt, encode
from graft.request import Result
from graft.sampling_params import SamplingParams
from graft.tree import Source

__all__ = ["LAW_LEVEL", "LawTest", "chi_square", "exact_cells", "law_test"]

LEAST_EXPECTED: Final = 5.0  # the usual rule for Pearson's statistic
LAW_LEVEL: Final = 1e-4  # chance to reject a right law; a wrong one is rejected far below it

Path = tuple[int, ...]


@dataclass(frozen=True)
class LawTest:
    """Outcome of a law test."""

    samples: int
    temperature: float  # at which they were drawn
    cells: int  # answers, or groups of them, that were counted
    statistic: float  # Pearson's, with cells - 1 degrees of freedom
    p_value: float
    accepted_share: float  # of the samples, those in which a node of a tree was accepted

    @property
    def passed(self) -> bool:
        """The law is not rejected."""
        return self.p_value >= LAW_LEVEL


def law_test(
    engine: Engine,
    prompt: Prompt,
    params: SamplingParams,
    samples: int,
    *,
    length: int = 3,
    policy: str | None = None,
    budget: int | None = None,
    raw: bool = False,
    warm: int = 16,
) -> LawTest:
    """Draw `samples` answers of `length` tokens to one prompt and test their frequencies.

    Args:
        params: settings of the draw; those that end an answer are ignored. A seed of None
            counts as 0; sample i has the noise of row i.
        warm: answers drawn first and thrown away, so that the matrix knows what follows.

    Raises:
        ValueError: for greedy settings, which have no law, and what an engine refuses.
    """
    if params.greedy:
        raise ValueError("a law test needs sampling: give a temperature above 0")
    if samples < 2 * LEAST_EXPECTED:
        raise ValueError(f"samples={samples}: a law test needs {int(2 * LEAST_EXPECTED)} or more")
    seed = params.seed or 0
    params = replace(
        params,
        seed=seed,
        max_new_tokens=length,
        min_new_tokens=0,
        ignore_eos=True,
        stop=(),
        stop_token_ids=(),
        logprobs=None,
    )
    ids = encode(prompt, engine.tokenizer, raw=raw)
    if warm:
        other = replace(params, seed=seed + 1)
        engine.generate([ids] * warm, other, policy=policy, budget=budget)
    drawn: list[Result] = engine.generate([ids] * samples, params, policy=policy, budget=budget)
    answers = [tuple(r.token_ids) for r in drawn]
    expected = exact_cells(engine, ids, params, samples, length)
    statistic, p_value = chi_square(answers, expected)
    grown = sum(any(s is not Source.TARGET for s in r.sources) for r in drawn)
    return LawTest(samples, params.temperature, len(expected), statistic, p_value, grown / samples)


def exact_cells(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, samples: int, length: int
) -> dict[Path, float]:
    """Expected counts of answers, or of all answers that begin with a path and have no own cell.

    An answer belongs to the longest of its beginnings that is a key.
    """
    cells: dict[Path, float] = {(): 0.0}
    open_paths: list[tuple[Path, float]] = [((), float(samples))]
    while open_paths:
        path, count = open_paths.pop()
        if len(path) == length:
            cells[path] = count
            continue
        expected = count * distribution(engine, prompt, path, params)
        large = expected >= LEAST_EXPECTED
        ids, counts = large.nonzero().squeeze(1).tolist(), expected[large].tolist()
        open_paths += [((*path, t), c) for t, c in zip(ids, counts, strict=True)]
        cells[path] = float(expected[~large].sum())
    return _pooled(cells)


def _pooled(cells: dict[Path, float]) -> dict[Path, float]:
    """Join cells that are too small to the pool above them, the deepest first."""
    for path in sorted(cells, key=len, reverse=True):
        if path and cells[path] < LEAST_EXPECTED:
            rest = cells.pop(path)
            cells[path[:-1]] = cells.get(path[:-1], 0.0) + rest
    if cells[()] == 0.0:
        del cells[()]  # so that an answer which cannot be has no cell
    elif cells[()] < LEAST_EXPECTED and len(cells) > 1:
        # Those whose next pool is this one: no other beginning of theirs is a key.
        tops = [p for p in cells if p and not any(p[:end] in cells for end in range(1, len(p)))]
        least = min(tops, key=lambda path: cells[path])
        cells[()] += cells.pop(least)
    return cells


def distribution(
    engine: Engine, prompt: Sequence[int], path: Path, params: SamplingParams
) -> Tensor:
    """The target's processed distribution after prompt and path: float64 [V], on the host."""
    text = [*prompt, *path]
    logits = engine.logits_of(text)
    device = logits.device
    length = torch.tensor([len(text)], device=device)
    alive = torch.ones(1, dtype=torch.bool, device=device)
    history = torch.tensor([text], device=device)
    scores = sampler_of(engine, params, len(prompt), 0).scores(logits, history, length, alive)
    # Scores hold noise on what the cuts leave, so without it they are log-probabilities.
    seed = torch.tensor([wrap_seed(params.seed or 0)], device=device)
    noise = gumbel_noise(seed, torch.zeros_like(seed), length, scores.shape[1])
    return (scores.double() - noise.double())[0].cpu().softmax(0)


def chi_square(answers: Sequence[Path], expected: dict[Path, float]) -> tuple[float, float]:
    """Pearson's statistic of answers in their cells, and its p-value (1 if there is one cell)."""
    seen = Counter(_cell(answer, expected) for answer in answers)
    if () not in expected and seen[()]:
        return float("inf"), 0.0  # an answer that the law does not know
    statistic = sum((seen[cell] - e) ** 2 / e for cell, e in expected.items())
    freedom = len(expected) - 1
    if freedom < 1:
        return statistic, 1.0
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return statistic, float(torch.special.gammaincc(half[0], half[1]))


def _cell(answer: Path, expected: dict[Path, float]) -> Path:
    """The longest beginning of an answer that has a cell."""
    for end in range(len(answer), 0, -1):
        if answer[:end] in expected:
            return answer[:end]
    return ()
