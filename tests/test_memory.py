"""A memory is copied and restored whole."""

from __future__ import annotations

import pytest
import torch

from graft.matrix import AdjacencyMatrix
from graft.memory import Memory

TOKENS = 12
TEXT = torch.tensor([1, 2, 3, 1, 2, 4, 1, 2, 3])


def learnt() -> Memory:
    """One that knows something of everything."""
    memory = Memory(AdjacencyMatrix(TOKENS, 3, torch.device("cpu")))
    memory.matrix.learn_text(TEXT)
    row = torch.tensor([5])
    memory.matrix.write(row, memory.matrix.best(torch.rand(1, TOKENS)), torch.tensor([0]))
    memory.contexts.learn_text(TEXT)
    cells = torch.tensor([[3, 40, 41]])
    yes = torch.ones_like(cells, dtype=torch.bool)
    memory.estimates.learn(cells, yes, yes)
    return memory


def same(first: Memory, second: Memory) -> bool:
    one, other = first.tensors(), second.tensors()
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_a_copy_holds_the_same_and_shares_nothing() -> None:
    memory = learnt()
    copy = memory.copy()
    assert same(memory, copy)
    assert torch.equal(memory.estimates.rates, copy.estimates.rates)
    copy.contexts.learn_text(TEXT)
    copy.matrix.learn_text(torch.tensor([7, 8]))
    assert not same(memory, copy)
    assert not (memory.matrix.ids[7] == 8).any()


def test_what_was_learnt_since_is_forgotten() -> None:
    memory = learnt()
    start = {name: tensor.clone() for name, tensor in memory.tensors().items()}
    memory.contexts.learn_text(torch.tensor([9, 8, 7, 9, 8]))
    memory.estimates.learn(torch.tensor([[3]]), torch.tensor([[True]]), torch.tensor([[False]]))
    memory.take(start)
    assert all(torch.equal(tensor, start[name]) for name, tensor in memory.tensors().items())
    assert torch.equal(memory.estimates.rates, memory.copy().estimates.rates)


def test_what_was_never_asked_for_is_not_made() -> None:
    memory = Memory(AdjacencyMatrix(TOKENS, 3, torch.device("cpu")))
    assert set(memory.tensors()) == {"ids", "chances"}
    full = learnt()
    full.take(memory.tensors())
    assert set(full.tensors()) == {"ids", "chances"}
    memory.take(learnt().tensors())
    assert set(memory.tensors()) == set(learnt().tensors())


def test_another_shape_is_refused() -> None:
    memory = learnt()
    with pytest.raises(ValueError, match="ids has shape"):
        memory.take(Memory(AdjacencyMatrix(TOKENS, 4, torch.device("cpu"))).tensors())


def test_a_memory_that_is_cleared_holds_nothing() -> None:
    """Not the matrix alone: what contexts know would be told as well."""
    memory = Memory(AdjacencyMatrix(12, 4, torch.device("cpu")))
    fresh = {name: tensor.clone() for name, tensor in memory.tensors().items()}
    memory.matrix.learn_text(torch.tensor([1, 2, 3]))
    memory.contexts.learn_text(torch.tensor([1, 2, 3, 4, 5]), 0, 0)
    memory.estimates.trials += 1
    memory.worth.learn_pace(3, 0.1)
    memory.clear()
    assert memory.tensors().keys() == fresh.keys()
    assert all(torch.equal(fresh[name], tensor) for name, tensor in memory.tensors().items())
    assert memory.worth.rounds == 0
    assert int(memory.estimates.trials.sum()) == 0
    assert all(int(t.count_nonzero()) == 0 or bool((t == t.flatten()[0]).all())
               for t in memory.contexts.tensors().values())  # fmt: skip
