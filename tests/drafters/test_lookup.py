"""Prompt lookup against a slow search in plain Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.drafters import lookup
from graft.drafters.base import Draft
from graft.drafters.lookup import MAX_NGRAM, LookupDrafter
from graft.drafters.none import NoDrafter
from graft.pruning import DraftPlan, dense
from graft.tree import Source

POISON = 999


def naive_chain(text: list[int], budget: int) -> list[int]:
    """What followed the latest earlier occurrence of the longest ending that occurred before."""
    for n in range(min(MAX_NGRAM, len(text) - 1), 0, -1):
        for end in range(len(text) - 2, n - 2, -1):
            if text[end - n + 1 : end + 1] == text[-n:]:
                return text[end + 1 : end + 1 + budget]
    return []


def draft(texts: list[list[int]], plan: DraftPlan, poison: list[int] | None = None) -> Draft:
    """Draft for a batch; what stands behind each text is poison."""
    room = max(len(text) for text in texts) + 3
    history = torch.full((len(texts), room), POISON)
    for row, text in enumerate(texts):
        history[row, : len(text)] = torch.tensor(text)
        # The worst that could stand there: what would repeat the ending.
        behind = (poison or text[-3:] + [POISON] * room)[: room - len(text)]
        history[row, len(text) : len(text) + len(behind)] = torch.tensor(behind)
    before = history.clone()
    out = LookupDrafter().draft(history, torch.tensor([len(text) for text in texts]), plan)
    assert torch.equal(history, before)
    return out


def check(texts: list[list[int]], budget: int) -> None:
    out = draft(texts, dense(budget, 1, 1))
    tree = out.tree
    tree.check_integrity()
    assert tree.width == budget + 1
    assert tree.max_depth == budget
    assert out.anchor is None
    for row, text in enumerate(texts):
        chain = naive_chain(text, budget)
        size = 1 + len(chain)
        assert tree.tokens[row].tolist() == [text[-1], *chain] + [0] * (budget + 1 - size)
        assert tree.used[row].tolist() == [True] * size + [False] * (budget + 1 - size)
        assert tree.parents[row, 1:size].tolist() == list(range(size - 1))
        assert tree.depths[row, :size].tolist() == list(range(size))
        assert tree.sources[row, :size].tolist() == [0] + [Source.RETRIEVED] * len(chain)
        assert int(out.kept[row]) == len(chain)
        assert out.scores[row, 0] == 0
        assert out.scores[row, 1:].isnan().all()


texts = st.lists(st.integers(0, 3), min_size=1, max_size=25)


@settings(deadline=None, max_examples=250)
@given(st.lists(texts, min_size=1, max_size=3), st.integers(1, 8))
def test_a_chain_is_what_followed_the_longest_ending(batch: list[list[int]], budget: int) -> None:
    check(batch, budget)


@settings(deadline=None, max_examples=60)
@given(st.lists(texts, min_size=1, max_size=3), st.lists(st.integers(0, 3), max_size=4))
def test_what_stands_behind_a_text_is_never_read(batch: list[list[int]], behind: list[int]) -> None:
    clean, poisoned = draft(batch, dense(5, 1, 1), [POISON]), draft(batch, dense(5, 1, 1), behind)
    assert torch.equal(clean.tree.tokens, poisoned.tree.tokens)
    assert torch.equal(clean.tree.used, poisoned.tree.used)


def test_longer_endings_win_and_then_later_ones() -> None:
    # The ending 1 2 3 occurred first, 2 3 later, 3 last.
    assert naive_chain([1, 2, 3, 7, 2, 3, 8, 3, 9, 1, 2, 3], 1) == [7]
    check([[1, 2, 3, 7, 2, 3, 8, 3, 9, 1, 2, 3]], 4)
    check([[1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3]], 4)


def test_an_ending_may_overlap_its_earlier_occurrence() -> None:
    assert naive_chain([5, 5, 5, 5], 4) == [5]
    check([[5, 5, 5, 5]], 4)
    check([[1, 2, 1, 2, 1]], 4)


@pytest.mark.parametrize("text", [[7], [7, 8], [1, 2, 3, 4, 5]])
def test_where_nothing_repeats_nothing_is_drafted(text: list[int]) -> None:
    out = draft([text], dense(4, 1, 1))
    assert out.tree.used.tolist() == [[True] + [False] * 4]
    assert out.kept.tolist() == [0]
    assert out.tree.tokens[0, 0] == text[-1]


def test_sequences_of_a_batch_are_found_each_in_its_own_past() -> None:
    check([[1, 2, 1], [1], [4, 4, 4, 4, 4, 4, 4], [9, 1, 2, 3, 9]], 3)


def test_the_first_tokens_do_not_wrap_around() -> None:
    # Read in a circle, 3 1 would be an ending that occurred before.
    check([[1, 0, 3, 1]], 4)
    check([[1, 3, 1]], 4)


def test_a_lookup_never_stops_early() -> None:
    plan = DraftPlan(4, 1, 3, (0, 1), (2.0, 2.0), (1, 2, 4))
    out = draft([[1, 2, 1, 2]], plan)
    assert out.stage.tolist() == [2]
    assert out.confidence.tolist() == [[-1.0, -1.0]]
    assert out.steps == 0


def test_a_shorter_ending_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MAX_NGRAM", 2)
    with pytest.raises(AssertionError):
        check([[0, 1, 2, 7, 3, 1, 2, 8, 0, 1, 2]], 2)


def test_no_drafter_gives_the_root_alone_and_keeps_nothing() -> None:
    nothing = NoDrafter()
    plan = DraftPlan(4, 2, 3, (0, 1), (0.5, 0.5), (1, 2, 4))
    history = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])
    out = nothing.draft(history, torch.tensor([3, 2]), plan)
    out.tree.check_integrity()
    assert out.tree.tokens.tolist() == [[7], [9]]
    assert (out.kept.tolist(), out.stage.tolist(), out.steps) == ([0, 0], [2, 2], 0)
    assert out.scores.tolist() == [[0.0], [0.0]]
    assert out.confidence.tolist() == [[-1.0, -1.0]] * 2
    assert nothing.reusable(0, 12) == 12
    assert nothing.feature_layers == ()
