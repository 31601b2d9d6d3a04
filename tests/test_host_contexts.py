"""A table read and written on the host is the table that tensors see."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graft.contexts import ContextTable
from graft.host_contexts import HostContexts
from graft.matrix import EMPTY

CPU = torch.device("cpu")
texts = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=40), max_size=4)


def table(rows: int = 1 << 14, count: int = 1) -> ContextTable:
    return ContextTable(6, CPU, orders=(1, 2, 4), rows=rows, ring=3, count=count)


def _shared_rows(host: HostContexts, given: list[list[int]]) -> bool:
    """Whether two contexts want one row."""
    rows: dict[int, int] = {}
    for text in given:
        for end in range(1, len(text)):
            hashes = host.hashes(text[:end])
            for length in (n for n in (1, 2, 4) if n <= end):
                key, row = host._place(hashes[length], 0)
                if rows.setdefault(row, key) != key:
                    return True
    return False


@settings(deadline=None, max_examples=60)
@given(texts, st.integers(1, 9))
def test_it_learns_what_tensors_learn(given: list[list[int]], step: int) -> None:
    ours, theirs = table(), table()
    host = HostContexts(ours)
    assume(not _shared_rows(host, given))  # else the last one has the row, and it may be another
    for text in given:
        theirs.learn_text(torch.tensor(text))
        for start in range(1, len(text), step):
            first = max(start - host.longest, 0)
            host.learn(text[first : start + step], start - first)
        ours.check_integrity()
        for name, tensor in theirs.tensors().items():
            assert torch.equal(ours.tensors()[name][:-1], tensor[:-1]), name


@settings(deadline=None, max_examples=60)
@given(texts, st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_it_finds_what_tensors_find(given: list[list[int]], text: list[int]) -> None:
    held = table()
    for each in given:
        held.learn_text(torch.tensor(each))
    host = HostContexts(held)
    window = torch.tensor(([0] * host.longest + text)[-host.longest :])
    hashes, followed = held.hashes(window, torch.tensor(len(text))), host.hashes(text)
    for token in (2, 5, 0, 1):
        out = held.lookup(hashes)
        found = {one.order: one.followers for one in host.lookup(followed)}
        assert sorted(found) == [i for i, there in enumerate(out.found.tolist()) if there]
        for order, followers in found.items():
            wanted = zip(out.tokens[order].tolist(), out.classes[order].tolist(), strict=True)
            assert followers == [(t, kind) for t, kind in wanted if t != EMPTY]
        hashes, followed = held.follow(hashes, torch.tensor(token)), host.follow(followed, token)


def test_rows_that_change_hands_are_counted() -> None:
    held = table(rows=2)
    host = HostContexts(held)
    for text in ([1, 2], [3, 4], [5, 1], [2, 3], [4, 5]):
        host.learn(text, 1)
        held.check_integrity()
    assert int(held.replaced) > 0


@pytest.mark.parametrize("which", [0, 2])
def test_tables_side_by_side(which: int) -> None:
    held = table(count=3)
    HostContexts(held).learn([1, 2, 3], 1, which)
    for other in range(3):
        found = HostContexts(held).lookup(HostContexts(held).hashes([1, 2]), other)
        assert bool(found) == (other == which)
