"""Beam drafting against a slow search over paths, ties and broken numbers included."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graft import beam as beam_module
from graft import frontier as frontier_module
from graft import host_beam
from graft.frontier import Children
from graft.pruning import DraftPlan, dense
from tests.beam_reference import BROKEN, CERTAIN, INF, RICH, Path, check, law_of, search_logits


@pytest.fixture(autouse=True, scope="module", params=["host", "device"])
def either_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test here is one of both ways to search."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam_module, "SEQUENCES", 99 if request.param == "host" else 0)
        yield request.param


@st.composite
def plans(draw: st.DrawFn) -> DraftPlan:
    """Random shapes; thresholds among the values that confidences take."""
    depth, budget = draw(st.sampled_from([1, 2, 3, 4, 5])), draw(st.integers(0, 40))
    marks = tuple(sorted(draw(st.sets(st.integers(0, depth - 1), max_size=3))))
    value = st.sampled_from([0.0, 0.11, 0.3, 0.51, 0.6, 1.0, 2.0])
    thresholds = tuple(draw(value) for _ in marks)
    return DraftPlan(
        budget, draw(st.integers(1, 5)), depth, marks, thresholds, (budget,) * (len(marks) + 1)
    )


@settings(deadline=None, max_examples=300)
@given(plans(), st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 3))
def test_a_search_is_a_beam_search_over_paths(
    plan: DraftPlan, seed: int, vocab: int, batch: int
) -> None:
    check(law_of(seed, vocab, RICH), plan, batch)


@settings(deadline=None, max_examples=150)
@given(plans(), st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 3))
def test_broken_numbers_are_worth_nothing(
    plan: DraftPlan, seed: int, vocab: int, batch: int
) -> None:
    check(law_of(seed, vocab, BROKEN), plan, batch)


@settings(deadline=None, max_examples=100)
@given(plans(), st.integers(0, 10**6), st.integers(1, 5))
def test_certain_paths_score_zero_and_stand_by_depth(
    plan: DraftPlan, seed: int, vocab: int
) -> None:
    result = check(law_of(seed, vocab, CERTAIN, certain=True), plan, 2)
    used = result.tree.used
    assert (result.scores[used] == 0).all()
    assert result.tree.depths[0][used[0]].tolist() == list(range(int(used[0].sum())))


@pytest.mark.parametrize("seed", range(6))
def test_a_smooth_law_gives_the_reference_s_tree(seed: int) -> None:
    def law(row: int, path: Path) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, row, path)) % 2**31)
        return torch.randn(700, generator=generator)  # long enough for blocked ranking

    plan = DraftPlan(30, 6, 5, (0, 1, 3), (0.001, 1e-5, 1e-8), (8, 8, 20, 30))
    check(law, plan, 3)


def reverse_ties(scores: Tensor) -> Tensor:
    last = scores.shape[1] - 1
    return last - scores.flip(1).sort(dim=1, descending=True, stable=True).indices


@pytest.mark.parametrize("certain", [False, True])
def test_another_order_of_equals_would_be_seen(
    certain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = law_of(5, 4, RICH, certain=certain)
    check(law, dense(12, 3, 4), 2)
    monkeypatch.setattr(beam_module, "_order", reverse_ties)
    monkeypatch.setattr(host_beam, "_order", lambda s: reverse_ties(torch.tensor([s]))[0].tolist())
    with pytest.raises(AssertionError):
        check(law, dense(12, 3, 4), 2)


def test_a_score_above_its_parent_s_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    children = frontier_module.children_of
    law = law_of(5, 4, RICH)

    def rising(logits: Tensor, beam: int) -> Children:
        scores, ids = children(logits, beam)
        return Children(scores + 1, ids)

    monkeypatch.setattr(frontier_module, "children_of", rising)
    with pytest.raises(AssertionError, match="a parent stands before its children"):
        check(law, dense(12, 3, 4), 2)


def test_improbable_tokens_are_not_drafted() -> None:
    first = torch.tensor([[1.0, -INF, 0.0, -INF]])
    result = search_logits(
        torch.tensor([9]), first, lambda _: first, dense(4, 4, 1), lambda ids: ids
    )
    assert result.tree.used.tolist() == [[True, True, True, False, False]]
    assert result.tree.tokens.tolist() == [[9, 0, 2, 0, 0]]
    assert result.scores[0, 3:].tolist() == [-INF, -INF]


def test_sequences_stop_at_different_checkpoints() -> None:
    sure = torch.tensor([0.0, -INF, -INF, -INF])
    unsure = torch.zeros(4)

    def law(row: int, path: Path) -> Tensor:
        return unsure if len(path) >= row else sure

    plan = DraftPlan(20, 2, 4, (0, 1, 2), (0.5, 0.5, 0.5), (1, 2, 3, 20))
    result = check(law, plan, 4)
    assert result.stage.tolist() == [0, 1, 2, 3]
    quarter = 0.25
    assert result.confidence.tolist() == [
        [quarter, -1, -1],
        [1, quarter, -1],
        [1, 1, quarter],
        [1, 1, 1],
    ]
    assert result.tree.depths.where(result.tree.used, 0).amax(1).tolist() == [1, 2, 3, 4]
    assert result.steps == 3


def test_drafting_ends_when_everybody_has_stopped() -> None:
    plan = DraftPlan(20, 2, 5, (0, 1, 3), (0.2, 0.2, 0.2), (4, 8, 12, 20))
    result = check(law_of(1, 4, [0.0]), plan, 3)
    assert result.stage.tolist() == [1, 1, 1]
    assert result.steps == 1
    assert result.tree.max_depth == 2


def test_confidence_at_the_threshold_goes_on() -> None:
    plan = DraftPlan(9, 2, 3, (0, 1), (1.0, 1.0), (9, 9, 9))
    assert check(law_of(0, 2, CERTAIN, certain=True), plan, 1).stage.tolist() == [2]
    always = DraftPlan(9, 2, 3, (0, 1), (1.5, 1.0), (9, 9, 9))
    assert check(law_of(0, 2, CERTAIN, certain=True), always, 1).stage.tolist() == [0]
    never = DraftPlan(9, 2, 3, (0, 1), (0.0, 0.0), (9, 9, 9))
    dead = law_of(0, 2, [-INF])
    assert check(dead, never, 1).stage.tolist() == [2]


def test_tokens_are_the_target_s() -> None:
    law, plan = law_of(3, 5, RICH), dense(15, 3, 4)
    result = check(law, plan, 2, torch.tensor([40, 7, 90, 2, 11]))
    assert set(result.tree.tokens[:, 1:].flatten().tolist()) <= {40, 7, 90, 2, 11, 0}
    assert 40 in result.tree.tokens or 90 in result.tree.tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_summed_in_single_precision(dtype: torch.dtype) -> None:
    first, more = torch.randn(2, 90).to(dtype), torch.randn(2, 4, 90).to(dtype)
    roots, plan = torch.tensor([1, 2]), dense(30, 4, 4)
    half = search_logits(roots, first, lambda _: more, plan, lambda ids: ids)
    single = search_logits(roots, first.float(), lambda _: more.float(), plan, lambda ids: ids)
    assert half.scores.dtype == torch.float32
    assert torch.equal(half.scores, single.scores)


READS = {"__bool__", "item", "tolist", "numpy", "nonzero", "__int__", "__float__", "__index__"}


class CountReads(TorchFunctionMode):
    """Counts what makes the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += getattr(func, "__name__", "") in READS
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("marks", [(), (0,), (0, 1, 3)])
def test_the_host_reads_once_per_checkpoint(
    marks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam_module, "SEQUENCES", 0)
    plan = DraftPlan(20, 3, 5, marks, (0.0,) * len(marks), (20,) * (len(marks) + 1))
    first, more = torch.randn(2, 50), torch.randn(2, 3, 50)
    with CountReads() as reads:
        search_logits(torch.tensor([1, 2]), first, lambda _: more, plan, lambda ids: ids)
    assert reads.count == len(marks)


def test_reads_are_counted() -> None:
    number = torch.ones(())
    with CountReads() as reads:
        assert bool(number)
        assert number.item() == 1
        assert number.tolist()
        assert int(number) == 1
    assert reads.count >= 4
