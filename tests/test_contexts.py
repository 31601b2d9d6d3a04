"""The context table holds what followed each context, as lists kept by hand do."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graft.contexts import ContextTable
from graft.matrix import EMPTY

CPU = torch.device("cpu")
ORDERS = (1, 2, 4)
RING = 3
Context = tuple[int, ...]

texts = st.lists(st.integers(0, 5), max_size=40)


def table(rows: int = 1 << 14, count: int = 1, tokens: int = 6) -> ContextTable:
    return ContextTable(tokens, CPU, orders=ORDERS, rows=rows, ring=RING, count=count)


def naive(learnt: dict[Context, list[int]], text: list[int]) -> None:
    """What followed each context, newest first."""
    for at in range(1, len(text)):
        for order in ORDERS:
            if at >= order:
                learnt.setdefault(tuple(text[at - order : at]), []).insert(0, text[at])


def hashed(held: ContextTable, context: Context) -> torch.Tensor:
    """Of a context that is all there is."""
    window = torch.tensor([0] * (held.longest - len(context)) + list(context))
    return held.hashes(window, torch.tensor(len(context)))


def place(context: Context) -> int:
    """Longest orders stand first."""
    return ORDERS[::-1].index(len(context))


def found(held: ContextTable, context: Context, which: int = 0) -> tuple[list[int], int]:
    """Followers, and times seen."""
    hashes, at = hashed(held, context), place(context)
    out = held.lookup(hashes, torch.tensor(which))
    seen = held.seen[held._place(hashes, torch.tensor(which))[1][at]]
    assert bool(out.found[at]) or bool((out.tokens[at] == EMPTY).all())
    return [t for t in out.tokens[at].tolist() if t != EMPTY], int(seen) if out.found[at] else 0


def row_of(held: ContextTable, context: Context) -> int:
    return int(held._place(hashed(held, context), None)[1][place(context)])


@settings(deadline=None, max_examples=60)
@given(st.lists(texts, max_size=4))
def test_it_holds_the_last_followers_of_every_context(given: list[list[int]]) -> None:
    held, learnt = table(), dict[Context, list[int]]()
    for text in given:
        held.learn_text(torch.tensor(text, dtype=torch.int64))
        naive(learnt, text)
        held.check_integrity()
    rows = Counter(row_of(held, context) for context in learnt)
    alone = [context for context in learnt if rows[row_of(held, context)] == 1]
    for context in alone:
        followers = learnt[context]
        assert found(held, context) == (followers[:RING], len(followers))
    assert len(alone) > 0.9 * len(learnt) - 2


def apart(held: ContextTable, given: list[list[int]]) -> bool:
    """Whether each context has a row of its own; which of two has it depends on the order in which
    they come, and that is another one in pieces."""
    learnt = dict[Context, list[int]]()
    for text in given:
        naive(learnt, text)
    return len({row_of(held, context) for context in learnt}) == len(learnt)


@settings(deadline=None, max_examples=40)
@given(texts, st.lists(st.integers(0, 40), max_size=4))
def test_a_text_that_grows_is_learnt_once(text: list[int], ends: list[int]) -> None:
    whole, grown = table(), table()
    assume(apart(whole, [text]))
    tokens = torch.tensor(text, dtype=torch.int64)
    whole.learn_text(tokens)
    known = 0
    for end in sorted(min(end, len(text)) for end in [*ends, len(text)]):
        grown.learn_text(tokens[:end], known=known)
        known = end
    for name, tensor in whole.tensors().items():
        assert torch.equal(grown.tensors()[name][:-1], tensor[:-1]), name


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(texts, st.integers(1, 9)), max_size=3))
def test_text_in_pieces_is_the_text(given: list[tuple[list[int], int]]) -> None:
    """As rounds hand it over: some tokens at a time, with the window before each."""
    whole, pieces = table(), table()
    assume(apart(whole, [text for text, _ in given]))
    for text, step in given:
        tokens = torch.tensor(text, dtype=torch.int64)
        whole.learn_text(tokens)
        padded = torch.cat([torch.zeros(pieces.longest, dtype=torch.int64), tokens])
        for start in range(1, len(text), step):
            at = torch.arange(start, min(start + step, len(text)))
            windows = torch.stack([padded[i : i + pieces.longest] for i in at.tolist()])
            # What is not to be learnt stands among it.
            windows = windows.repeat_interleave(2, 0)
            followers = torch.stack([torch.full_like(at, -1), tokens[at]], 1).flatten()
            pieces.learn(windows, followers, at.repeat_interleave(2))
    for name, tensor in whole.tensors().items():
        assert torch.equal(pieces.tensors()[name][:-1], tensor[:-1]), name


@settings(deadline=None, max_examples=40)
@given(st.lists(texts, min_size=1, max_size=5), st.sampled_from([2, 8, 32]))
def test_contexts_that_want_one_row_never_see_each_other(given: list[list[int]], rows: int) -> None:
    """What is found is the end of what followed, or nothing; the newest context has the row."""
    held, learnt = table(rows), dict[Context, list[int]]()
    for text in given:
        held.learn_text(torch.tensor(text, dtype=torch.int64))
        naive(learnt, text)
        held.check_integrity()
    for context, followers in learnt.items():
        tokens, seen = found(held, context)
        assert tokens == followers[: min(seen, RING)]
        assert seen <= len(followers)
    if learnt:
        assert any(found(held, context)[1] for context in learnt)
    assert held.bytes == table(rows).bytes


def test_rows_that_change_hands_are_counted() -> None:
    held = table(rows=2)
    held.learn_text(torch.tensor([1, 2]))
    assert int(held.replaced) == 0
    for text in ([3, 4], [5, 1], [2, 3], [4, 5]):
        held.learn_text(torch.tensor(text))
    assert int(held.replaced) > 0


def test_tables_side_by_side_share_nothing() -> None:
    held = table(count=3)
    held.learn_text(torch.tensor([1, 2, 3]), 1)
    held.learn_text(torch.tensor([1, 5, 3]), 2)
    assert [found(held, (1,), which)[0] for which in range(3)] == [[], [2], [5]]
    held.clear(1)
    assert [found(held, (1,), which)[0] for which in range(3)] == [[], [], [5]]
    held.clear()
    assert found(held, (1,), 2) == ([], 0)


def test_a_context_needs_as_many_tokens_as_it_is_long() -> None:
    """The room before the first token is no token 0."""
    held = table()
    held.learn_text(torch.tensor([0, 0, 0, 0, 0, 1]))
    out = held.lookup(held.hashes(torch.tensor([0, 0, 0, 0]), torch.tensor(2)))
    assert out.found.tolist() == [False, True, True]
    grown = held.follow(held.hashes(torch.tensor([0, 0, 0, 0]), torch.tensor(2)), torch.tensor(0))
    assert held.lookup(grown).found.tolist() == [False, True, True]
    assert held.lookup(held.follow(grown, torch.tensor(0))).found.tolist() == [True] * 3


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_hashes_follow_the_text(text: list[int]) -> None:
    held = table()
    padded = torch.tensor([0] * held.longest + text)
    grown = held.hashes(padded[1 : held.longest + 1], torch.tensor(1))
    for length in range(2, len(text) + 1):
        grown = held.follow(grown, padded[held.longest + length - 1])
        wanted = held.hashes(padded[length : held.longest + length], torch.tensor(length))
        known = min(length, held.longest) + 1
        assert torch.equal(grown[:known], wanted[:known])
        assert not set(grown[known:].tolist()) & set(wanted[:known].tolist())


@pytest.mark.slow
def test_memory_is_bounded_over_a_million_tokens() -> None:
    held = ContextTable(50_000, CPU, rows=1 << 12)
    before = held.bytes
    made = torch.Generator().manual_seed(0)
    newest = torch.randint(50_000, (50,), generator=made)
    for _ in range(250):
        held.learn_text(torch.randint(50_000, (4000,), generator=made))
    held.learn_text(newest)
    assert held.bytes == before
    held.check_integrity()
    hits = 0
    for one, two, three in zip(newest, newest[1:], newest[2:], strict=False):
        out = held.lookup(hashed(held, (int(one), int(two))))
        hits += int(out.tokens[-1, 0]) == int(three)
    assert hits > 40  # the newest stand, but for those that a newer one had to give way to


def test_keys_differ() -> None:
    """Of all pairs and of many longer contexts."""
    held = ContextTable(300, CPU, orders=(2, 8), rows=1 << 4)
    pairs = torch.cartesian_prod(torch.arange(300), torch.arange(300))
    windows = torch.cat([torch.zeros(len(pairs), 6, dtype=torch.int64), pairs], 1)
    keys, rows = held._place(held.hashes(windows, torch.tensor(8)), None)
    for order in range(2):
        assert len(keys[:, order].unique()) == len(pairs)
    counts = rows[:, 1].bincount(minlength=16).tolist()
    assert min(counts) > 0.9 * len(pairs) / 16


def test_learning_twice_is_no_surprise() -> None:
    """The same context several times in one call, more often than the ring holds."""
    held = table()
    text = [1, 2, 1, 3, 1, 4, 1, 5, 1, 2]
    held.learn_text(torch.tensor(text))
    assert found(held, (1,)) == ([2, 5, 4], 5)
    assert [(a, b) for a, b in pairwise(text) if a == 1][-1] == (1, 2)
