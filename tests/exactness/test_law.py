"""The law of what is sampled, against exact enumeration, on a vocabulary of five tokens."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch
from scipy import stats
from torch import Tensor

from graft.engine import Engine
from graft.law import LEAST_EXPECTED, chi_square, exact_cells, law_test
from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings
from graft.tree import Source
from tests.fakes import FakeTarget, fake_engine

VOCAB, LENGTH, SAMPLES = 5, 3, 600
PROMPT = [1, 2]
LAWS = {
    "plain law": SamplingParams(temperature=1.0, seed=3),
    "temperature": SamplingParams(temperature=0.7, seed=4),
    "top_p": SamplingParams(temperature=1.0, top_p=0.8, seed=5),
    "both": SamplingParams(temperature=0.7, top_p=0.8, seed=6),
}


def small_engine() -> Engine:
    settings = EngineSettings(k=VOCAB, max_batch=16, prompt_learning="off")
    return fake_engine(VOCAB, sharpness=0.8, padding=2, settings=settings)


def processed(logits: Tensor, params: SamplingParams) -> Tensor:
    """The processed distribution, written out: the nucleus is the fewest tokens that reach p."""
    p = (logits[:VOCAB].double() / params.temperature).softmax(0)
    order = p.argsort(descending=True)
    before = p[order].cumsum(0) - p[order]
    p[order[before >= params.top_p]] = 0.0
    return p / p.sum()


def enumerated(target: FakeTarget, params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Exact probability of every answer."""
    out = {}
    for answer in product(range(VOCAB), repeat=LENGTH):
        chance = 1.0
        for end, token in enumerate(answer):
            law = processed(target.law([*PROMPT, *answer[:end]]), params)
            chance *= float(law[token])
        out[answer] = chance
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_answers_drawn_with_trees_have_the_exact_law(name: str) -> None:
    engine, params = small_engine(), LAWS[name]
    target = engine.target
    assert isinstance(target, FakeTarget)
    engine.generate([PROMPT] * 16, params)  # the matrix learns what follows
    short = SamplingParams(
        temperature=params.temperature, top_p=params.top_p, seed=7, max_new_tokens=LENGTH
    )
    drawn = engine.generate([PROMPT] * SAMPLES, short, budget=8)
    seen = Counter(tuple(r.token_ids) for r in drawn)
    exact = enumerated(target, short)
    assert all(exact[answer] > 0.0 for answer in seen), "an answer that cannot be"
    common = [a for a, chance in exact.items() if chance * SAMPLES >= LEAST_EXPECTED]
    counts = [float(seen[a]) for a in common]
    expected = [exact[a] * SAMPLES for a in common]
    if SAMPLES - sum(expected) > 1e-6:
        counts.append(SAMPLES - sum(counts))
        expected.append(SAMPLES - sum(expected))
    assert len(counts) > 10
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    accepted = sum(any(s is not Source.TARGET for s in r.sources) for r in drawn)
    assert accepted > SAMPLES / 2, "it must be trees that are tested"


@pytest.mark.parametrize("name", LAWS)
def test_the_law_test_knows_the_exact_law(name: str) -> None:
    """Its cells are the enumerated answers, pooled, and its p-value is scipy's."""
    engine, params, samples = small_engine(), LAWS[name], 300
    target = engine.target
    assert isinstance(target, FakeTarget)
    cells = exact_cells(engine, PROMPT, params, samples, LENGTH)
    exact = enumerated(target, params)
    pooled: Counter[tuple[int, ...]] = Counter()
    for answer, chance in exact.items():
        key = next(answer[:end] for end in (3, 2, 1, 0) if answer[:end] in cells or end == 0)
        pooled[key] += samples * chance
    assert set(cells) == {cell for cell, count in pooled.items() if count > 0}
    assert all(abs(pooled[cell] - count) < 1e-3 for cell, count in cells.items())
    assert min(cells.values()) >= LEAST_EXPECTED
    assert len(cells) > 5
    answers = [a for a, chance in exact.items() for _ in range(round(samples * chance + 0.3))]
    counts = Counter(
        next(a[:end] for end in (3, 2, 1, 0) if a[:end] in cells or end == 0) for a in answers
    )
    scale = len(answers) / samples
    cells = {cell: count * scale for cell, count in cells.items()}
    statistic, p_value = chi_square(answers, cells)
    theirs = stats.chisquare([counts[c] for c in cells], list(cells.values()), sum_check=False)
    assert statistic == pytest.approx(theirs.statistic)
    assert p_value == pytest.approx(theirs.pvalue)


def test_an_answer_outside_the_law_is_rejected() -> None:
    cells = {(0,): 10.0, (1, 2): 10.0}
    assert chi_square([(0, 1)] * 10 + [(1, 2)] * 10, cells) == (0.0, 1.0)
    assert chi_square([(0, 1)] * 10 + [(1, 1)], cells) == (float("inf"), 0.0)


def test_the_law_test_passes_and_tells_what_it_saw() -> None:
    found = law_test(small_engine(), PROMPT, LAWS["plain law"], 400, budget=8)
    assert found.passed
    assert found.samples == 400
    assert found.cells > 10
    assert found.accepted_share > 0.5


def test_penalties_and_processors_belong_to_the_law() -> None:
    params = SamplingParams(
        temperature=1.0,
        seed=2,
        repetition_penalty=2.0,
        presence_penalty=1.0,
        logits_processors=[lambda ids, scores: scores + (ids[0, -1] == 3) * torch.arange(7.0)],
    )
    assert law_test(small_engine(), PROMPT, params, 300, budget=8).passed


@pytest.mark.parametrize(
    ("params", "samples", "message"),
    [(SamplingParams(), 100, "temperature"), (SamplingParams(temperature=1.0), 9, "10 or more")],
)
def test_what_has_no_law_is_refused(params: SamplingParams, samples: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        law_test(small_engine(), PROMPT, params, samples)
