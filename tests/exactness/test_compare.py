"""The comparison itself: what it excuses, what it counts, and what it does not let pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from graft.engine import Engine
from graft.exactness import PRECISIONS, Comparison, Difference, PromptComparison, compare
from graft.routers import watch_routers
from graft.sampling_params import SamplingParams
from graft.target import TransformersTarget, Verification
from graft.tree import TokenTree
from tests.exactness.helpers import PROMPTS, family_engine, family_target, new_target, poison
from tests.fakes import FakeTarget, fake_engine

GREEDY = SamplingParams(max_new_tokens=60)


class Rounding(FakeTarget):
    """Forwards of several rows favour token 1, those of one row do not, by `error`; and after the
    tokens `ties` the tokens 0 and 1 are equally good."""

    def __init__(self, ties: set[int], error: float) -> None:
        super().__init__(12, order=1, seed=4, context=0.0)
        self.error = error
        for token in ties:
            self._base[token, :2] = 9.0
            self._base[token, 0] += 1e-5

    def verify(self, tree: TokenTree) -> Verification:
        logits = super().verify(tree).logits
        if tree.width > 1:
            logits[..., 1] += self.error
        return Verification(logits, None)


def rounding_engine(ties: set[int], error: float) -> Engine:
    engine = fake_engine(target=Rounding(ties, error))
    poison(engine, "random")  # so that every tree has several rows
    return engine


def test_a_near_tie_is_excused_and_counted_and_the_rest_is_compared() -> None:
    # The first draw, of token 3, comes from the prefill; what follows 3 is the only tie.
    engine = rounding_engine({3}, 5e-5)
    prompt = _before(engine, 3)
    found = compare(engine, prompt, SamplingParams(max_new_tokens=4), budget=4)
    assert found.mismatches == []
    (excuse,) = found.excuses
    assert (excuse.plain, excuse.other, excuse.excuse) == (0, 1, "near-tie")
    assert excuse.margin == pytest.approx(1e-5, rel=0.2)
    assert found.tokens == 4
    assert found.allowed == 1
    assert found.same


def _before(engine: Engine, token: int) -> list[int]:
    """A token after which the greedy choice is `token`, as the prompt of a round of its own."""
    best = engine.target._base[:12].argmax(1)  # type: ignore[attr-defined]
    first = next(t for t in range(12) if best[t] == token)
    return [first]


def test_a_difference_beyond_the_margin_is_a_mismatch_and_ends_the_comparison() -> None:
    engine = rounding_engine({3}, 5e-5)
    engine.target._base[3, 0] += 0.01  # type: ignore[attr-defined]
    engine.target.error = 0.05  # type: ignore[attr-defined]
    found = compare(engine, _before(engine, 3), SamplingParams(max_new_tokens=4), budget=4)
    (mismatch,) = found.mismatches
    assert mismatch.margin == pytest.approx(0.01, rel=0.02)
    assert (mismatch.prompt, mismatch.position, mismatch.excuse) == (0, 1, None)
    assert found.tokens == 2 < 4
    assert not found.same


def test_too_many_excuses_fail() -> None:
    engine = rounding_engine(set(range(12)), 5e-5)
    found = compare(engine, [[3], [4]], SamplingParams(max_new_tokens=30), budget=4)
    assert found.mismatches == []
    assert len(found.excuses) > found.allowed == 1
    assert found.tokens == 60
    assert not found.same


def test_the_margin_grows_as_the_temperature_falls() -> None:
    """Margins are measured in logit / T, so an error of a logit counts for more below 1."""
    engine = rounding_engine(set(range(12)), 9e-5)
    for temperature in (0.01, 100.0):
        params = SamplingParams(temperature=temperature, seed=1, max_new_tokens=60)
        assert compare(engine, [[3]], params, budget=4).mismatches == []


def test_an_answer_that_ends_elsewhere_is_a_mismatch() -> None:
    engine = fake_engine(12)
    whole = compare(engine, [[1]], GREEDY).tokens
    assert whole == 60
    generate = engine.generate

    def shorter(prompts: list[list[int]], params: SamplingParams, **options: object) -> object:
        return generate(prompts, SamplingParams(max_new_tokens=7), **options)  # type: ignore

    engine.generate = shorter  # type: ignore[assignment, method-assign]
    (mismatch,) = compare(engine, [[1]], GREEDY).mismatches
    assert (mismatch.position, mismatch.other) == (7, None)
    assert mismatch.plain is not None


def test_excuses_are_allowed_by_the_token() -> None:
    tie = Difference(0, 1, 2, 3, 1e-6, 1e-4, float("inf"), "near-tie")
    fp32 = PRECISIONS[torch.float32]
    for tokens, allowed in ((1, 1), (5000, 1), (5001, 2), (15000, 3)):
        for excuses in (allowed, allowed + 1):
            prompt = PromptComparison(tokens, 1, 0, (tie,) * excuses)
            found = Comparison(fp32, (prompt,))
            assert found.allowed == allowed
            assert found.same == (excuses == allowed)


def test_tau_counts_all_rounds() -> None:
    prompts = (PromptComparison(9, 2, 6, ()), PromptComparison(5, 2, 2, ()))
    assert [p.tau for p in prompts] == [4.0, 2.0]
    assert Comparison(PRECISIONS[torch.float32], prompts).tau == 3.0
    assert PromptComparison(1, 0, 0, ()).tau is None


def test_progress_comes_prompt_by_prompt() -> None:
    seen: list[PromptComparison] = []
    found = compare(fake_engine(12), [[1], [2], [3]], GREEDY, batch=2, progress=seen.append)
    assert tuple(seen) == found.prompts


def test_router_gaps_are_those_of_the_router_logits() -> None:
    engine = family_engine("qwen3_moe")
    recorded: list[Tensor] = []
    routers = _routers(family_target("qwen3_moe"))
    hooks = [r.register_forward_hook(lambda _m, _a, o: recorded.append(o[0])) for r in routers]
    try:
        with watch_routers(engine.target) as gaps:
            engine.logits_of(PROMPTS[1], 3)
    finally:
        for hook in hooks:
            hook.remove()
    assert len(routers) == 3
    rows = torch.stack([torch.cat(recorded[i::3]) for i in range(3)])[:, -2:]
    best = rows.sort(dim=-1, descending=True).values
    assert gaps.least(last=2) == pytest.approx(float((best[..., 1] - best[..., 2]).min()))


def test_a_router_at_a_tie_excuses_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is not at a tie excuses none: the fault is the same in both."""
    target = new_target("qwen3_moe")
    engine = family_engine("qwen3_moe", target)
    poison(engine, "random")
    verify = engine.target.verify

    def wrong(tree: TokenTree) -> Verification:
        logits = verify(tree).logits
        return Verification(logits.roll(1, -1) if tree.width > 1 else logits, None)

    monkeypatch.setattr(engine.target, "verify", wrong)
    params = SamplingParams(max_new_tokens=12)
    (mismatch,) = compare(engine, [PROMPTS[1]], params, budget=4).mismatches
    assert mismatch.router_margin > 1e-4
    for router in _routers(target):
        router.weight.data.zero_()
    found = compare(engine, [PROMPTS[1]], params, budget=4)
    assert found.mismatches == []
    assert {d.excuse for d in found.excuses} == {"router"}
    assert not found.same, "so many of them are no rounding"


def test_a_dense_model_has_no_routers() -> None:
    engine = family_engine("llama")
    with watch_routers(engine.target) as gaps:
        engine.logits_of(PROMPTS[1])
    assert gaps.least(last=9) == float("inf")
    with watch_routers(fake_engine(5).target) as gaps:
        pass
    assert gaps.least(last=1) == float("inf")


def _routers(target: TransformersTarget) -> list[Any]:
    return [m for m in target.model.modules() if type(m).__name__.endswith("TopKRouter")]
