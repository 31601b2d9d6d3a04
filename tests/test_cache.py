"""The cache: written in place, committed by moving a path's own rows, for uneven sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from graft.attention import Step
from graft.cache import BLOCK, KVCache, LayerShape, RowShape

CPU = torch.device("cpu")
WIDE = RowShape(2, 4, torch.float32, CPU)
THIN = RowShape(1, 3, torch.bfloat16, CPU)
# The second layer has values of another shape than its keys, the third shares the first's.
LAYERS = [LayerShape(WIDE, WIDE), LayerShape(WIDE, THIN), LayerShape(WIDE, WIDE)]


def step_of(first: int, starts: list[int], width: int) -> Step:
    visible = torch.ones(len(starts), width, width, dtype=torch.bool).tril()
    return Step(first, starts, visible, torch.arange(width).expand(len(starts), width))


def write(cache: KVCache, first: int, batch: int, width: int) -> list[tuple[Tensor, Tensor]]:
    """One step of random rows in every layer; returns the rows as they were handed over."""
    cache.begin(step_of(first, cache.lengths[first : first + batch], width))
    rows = []
    for layer, shapes in enumerate(LAYERS):
        pair = [torch.randn(batch, s.heads, width, s.dim).to(s.dtype) for s in shapes]
        cache.update(pair[0], pair[1], layer)
        rows.append((pair[0], pair[1]))
    return rows


def fill(cache: KVCache, slot: int, length: int) -> None:
    """Commit `length` rows to a slot."""
    write(cache, slot, 1, length)
    cache.commit(slot, [range(1, length)])


def rows_of(cache: KVCache, slot: int, length: int | None = None) -> list[Tensor]:
    """Copies of a slot's first rows [heads, length, dim]: keys and values of each layer."""
    out = []
    for i in range(2 * len(LAYERS)):
        storage = cache._storage[cache._group[i]][cache._place[i]]
        out.append(storage[slot, :, : cache.lengths[slot] if length is None else length].clone())
    return out


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_update_gives_back_committed_and_new_rows() -> None:
    cache = KVCache(LAYERS, 1, 10)
    fill(cache, 0, 3)
    cache.begin(step_of(0, [3], 2))
    new = torch.randn(1, 2, 2, 4)
    keys, values = cache.update(new, new + 1, 0)
    assert keys.shape == values.shape == (1, 2, 5, 4)
    assert torch.equal(keys[:, :, 3:], new)
    assert torch.equal(values[:, :, 3:], new + 1)
    assert torch.equal(keys[0, :, :3], rows_of(cache, 0)[0])
    assert keys.data_ptr() == cache._storage[0][0].data_ptr()  # a view, no copy


def test_layers_do_not_share_rows() -> None:
    cache = KVCache(LAYERS, 1, 10)
    rows = write(cache, 0, 1, 3)
    cache.commit(0, [[1, 2]])
    held = rows_of(cache, 0)
    for layer, (keys, values) in enumerate(rows):
        assert torch.equal(held[2 * layer], keys[0])
        assert torch.equal(held[2 * layer + 1], values[0])


def test_equal_row_shapes_share_one_tensor() -> None:
    assert [t.shape[0] for t in KVCache(LAYERS, 2, 10)._storage] == [5, 1]


def test_commit_keeps_root_and_path_in_order() -> None:
    cache = KVCache(LAYERS, 2, 20)
    fill(cache, 0, 4)
    fill(cache, 1, 7)
    before = [rows_of(cache, slot) for slot in (0, 1)]
    rows = write(cache, 0, 2, 6)
    cache.commit(0, [[2, 5], []])
    assert cache.lengths == [7, 8]
    for slot, path in ((0, [0, 2, 5]), (1, [0])):
        length = len(before[slot][0][0])
        held = rows_of(cache, slot)
        assert same([t[:, :length] for t in held], before[slot])
        new = [t for pair in rows for t in pair]
        assert same([t[:, length:] for t in held], [t[slot][:, path] for t in new])


def test_commit_touches_no_other_row() -> None:
    cache = KVCache(LAYERS, 3, 20)
    for slot, length in enumerate((2, 5, 3)):
        fill(cache, slot, length)
    write(cache, 1, 1, 5)
    before = [t.clone() for t in cache._storage]
    cache.commit(1, [[3, 4]])
    moved = torch.zeros(3, cache.capacity, dtype=torch.bool)
    moved[1, [6, 7]] = True  # the path's places behind the root at 5
    for old, new in zip(before, cache._storage, strict=True):
        changed = (old != new).any(4).any(2).any(0)  # [slots, capacity]
        assert torch.equal(changed, moved)


class Work(TorchDispatchMode):
    """Counts the elements of all tensors that operators make anew, and the operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        if isinstance(out, Tensor) and func._schema.returns[0].alias_info is None:
            self.elements += out.numel()
        return out


def work_of_commit(length: int, path: list[int], capacity: int = 20) -> Work:
    cache = KVCache(LAYERS, 1, capacity)
    fill(cache, 0, length)
    write(cache, 0, 1, 8)
    with Work() as work:
        cache.commit(0, [path])
    return work


def test_the_cost_of_a_commit_does_not_depend_on_the_context() -> None:
    short, long = work_of_commit(3, [2, 5]), work_of_commit(700, [2, 5])
    assert 0 < short.elements == long.elements
    assert short.calls == long.calls
    assert work_of_commit(3, [2, 5, 7]).elements > short.elements  # the count sees what moves


def test_a_path_that_stands_where_it_belongs_moves_nothing() -> None:
    assert work_of_commit(3, [1, 2, 3]).calls == 0
    assert work_of_commit(3, []).calls == 0
    assert work_of_commit(3, [1, 2, 4]).elements == work_of_commit(3, [2]).elements


def test_growth_keeps_the_content() -> None:
    cache = KVCache(LAYERS, 2, 10)
    fill(cache, 0, BLOCK - 2)
    fill(cache, 1, 5)
    before = rows_of(cache, 0), rows_of(cache, 1)
    write(cache, 0, 2, 4)  # reaches BLOCK + 2
    assert cache.capacity == 2 * BLOCK
    assert same(rows_of(cache, 0), before[0])
    assert same(rows_of(cache, 1), before[1])
    cache.commit(0, [[1], [1]])
    assert cache.lengths == [BLOCK, 7]


def test_growth_goes_on_until_there_is_room() -> None:
    cache = KVCache(LAYERS, 1, 10)
    fill(cache, 0, 5 * BLOCK)
    assert cache.capacity == 8 * BLOCK
    assert cache.bytes == sum(t.numel() * t.element_size() for t in cache._storage)


@pytest.mark.parametrize(("asked", "given"), [(1, BLOCK), (BLOCK, BLOCK), (BLOCK + 1, 2 * BLOCK)])
def test_capacities_are_whole_blocks(asked: int, given: int) -> None:
    assert KVCache(LAYERS, 1, asked).capacity == given


def test_truncate_forgets_the_end_alone() -> None:
    cache = KVCache(LAYERS, 2, 10)
    fill(cache, 0, 6)
    fill(cache, 1, 6)
    start, other = rows_of(cache, 0, 2), rows_of(cache, 1)
    cache.truncate(0, 2)
    fill(cache, 0, 3)
    assert cache.lengths == [5, 6]
    assert same(rows_of(cache, 0, 2), start)
    assert same(rows_of(cache, 1), other)


def test_truncate_beyond_the_end_changes_nothing() -> None:
    cache = KVCache(LAYERS, 1, 10)
    fill(cache, 0, 6)
    cache.truncate(0, 9)
    assert cache.lengths == [6]


def test_move_copies_a_sequence_into_another_slot() -> None:
    cache = KVCache(LAYERS, 3, 10)
    fill(cache, 0, 2)
    fill(cache, 1, 4)
    fill(cache, 2, 7)
    moved, other = rows_of(cache, 2), rows_of(cache, 1)
    cache.move(2, 0)
    assert cache.lengths == [7, 4, 7]
    assert same(rows_of(cache, 0), moved)
    assert same(rows_of(cache, 1), other)


def test_rows_that_were_not_announced_are_refused() -> None:
    cache = KVCache(LAYERS, 1, 10)
    with pytest.raises(AssertionError, match=r"begin\(\) comes first"):
        cache.update(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4), 0)
    cache.begin(step_of(0, [0], 2))
    with pytest.raises(AssertionError, match="announced"):
        cache.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)


def test_the_length_models_ask_for_is_the_longest() -> None:
    cache = KVCache(LAYERS, 2, 10)
    fill(cache, 1, 6)
    assert cache.get_seq_length() == 6


def test_storage_made_or_grown_in_inference_mode_can_be_written_outside_it() -> None:
    row = RowShape(1, 2, torch.float32, torch.device("cpu"))
    with torch.inference_mode():
        made = KVCache([LayerShape(row, row)], slots=2, capacity=4)
    grown = KVCache([LayerShape(row, row)], slots=2, capacity=4)
    with torch.inference_mode():
        grown.reserve(1000)
    for cache in (made, grown):
        assert not any(storage.is_inference() for storage in cache._storage)


def test_a_rejected_row_that_overflowed_spoils_no_longer_sequence() -> None:
    half = RowShape(1, 4, torch.float16, CPU)
    cache = KVCache([LayerShape(half, half)], 2, 20)
    cache.lengths = [3, 9]
    cache.begin(step_of(0, [3, 9], 4))
    rows = torch.full((2, 1, 4, 4), torch.nan, dtype=torch.float16)
    keys, values = cache.update(rows, rows, 0)
    assert keys.isfinite().all()
    assert values.isfinite().all()
