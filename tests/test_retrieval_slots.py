"""What prompts teach, and tables that belong to one slot each: nobody reads another's."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from graft import retrieval
from graft.matrix import EMPTY
from graft.settings import PromptLearning
from graft.tree import root_tree
from tests.test_retrieval import TOKENS, K, naive_lookup, rank_paths, retriever, walk_to

TEXT = torch.tensor([1, 2, 1, 3])
COUNTS = pytest.mark.parametrize("count", [1, 3])


def table_of(ids: Tensor, table: int) -> Tensor:
    return ids[table * TOKENS : (table + 1) * TOKENS].long()


@COUNTS
def test_a_prompt_teaches_its_successions(count: int) -> None:
    source = retriever(learning="text", count=count)
    slot = count - 1
    assert source.admit(slot, TEXT) is None
    rows = table_of(source.matrix.ids, slot)
    assert rows[1].tolist() == [3, 2, EMPTY, EMPTY]
    assert int((source.matrix.ids[:-1] != EMPTY).sum()) == 3  # and nobody else learnt


@COUNTS
def test_a_prompt_teaches_its_logits_the_last_occurrence_winning(count: int) -> None:
    source = retriever(learning="logits", count=count)
    slot = count - 1
    observe = source.admit(slot, torch.tensor([1, 2, 1]))
    assert (source.matrix.ids == EMPTY).all()
    assert observe is not None
    logits = torch.rand(3, TOKENS)
    observe(torch.tensor([1, 2, 1]), logits)
    rows = table_of(source.matrix.ids, slot)
    assert torch.equal(rows[[2, 1]], source.matrix.best(logits[1:]).ids)
    assert int((source.matrix.ids[:-1] != EMPTY).sum()) == 2 * K


def test_a_later_chunk_of_a_prompt_wins() -> None:
    source = retriever(learning="logits", count=2)
    observe = source.admit(1, TEXT)
    assert observe is not None
    early, late = torch.rand(2, TOKENS), torch.rand(2, TOKENS)
    observe(TEXT[:2], early)
    observe(TEXT[2:], late)
    first, second = (source.matrix.best(logits).ids for logits in (early, late))
    wanted = torch.stack([second[0], first[1], second[1]])
    assert torch.equal(table_of(source.matrix.ids, 1)[1:4], wanted)


@COUNTS
def test_a_prompt_may_teach_nothing(count: int) -> None:
    source = retriever(learning="off", count=count)
    assert source.admit(0, TEXT) is None
    assert (source.matrix.ids == EMPTY).all()


@pytest.mark.parametrize("learning", ["text", "logits", "off"])
def test_a_sequence_enters_an_empty_table(learning: PromptLearning) -> None:
    full = torch.arange(3 * TOKENS * K).reshape(-1, K) % TOKENS
    source = retriever(full, learning=learning, count=3)
    source.admit(1, torch.tensor([5]))  # one token teaches nothing by itself
    held = source.matrix.ids[:-1].long().view(3, TOKENS, K)
    assert (held[1] == EMPTY).all()
    assert torch.equal(held[[0, 2]], full.view(3, TOKENS, K)[[0, 2]])


def test_a_shared_table_is_never_cleared_and_never_moved() -> None:
    source = retriever(learning="text")
    source.admit(0, TEXT)
    source.admit(1, torch.tensor([7, 8]))
    source.move(1, 0)
    found = source.look_up(torch.tensor([1, 7]))
    assert found.tokens[:, 1].tolist() == [3, 8]


def test_slots_do_not_see_each_other_s_rows() -> None:
    source = retriever(learning="text", count=2)
    source.admit(0, torch.tensor([1, 2]))
    source.admit(1, torch.tensor([1, 3]))
    found = source.look_up(torch.tensor([1, 1]))
    assert found.tokens[:, 1].tolist() == [2, 3]
    tree = root_tree(torch.tensor([4]))
    source.update(tree, torch.rand(1, 1, TOKENS), walk_to(tree, [0], 1))
    assert source.look_up(torch.tensor([4, 4])).found[:, 1].tolist() == [True, False]


def test_a_moved_sequence_keeps_its_table_and_the_next_one_starts_empty() -> None:
    source = retriever(learning="text", count=3)
    for slot, successor in enumerate([5, 6, 7]):
        source.admit(slot, torch.tensor([1, successor]))
    source.move(2, 0)  # the sequence of slot 0 has ended
    assert source.look_up(torch.tensor([1, 1])).tokens[:, 1].tolist() == [7, 6]
    source.admit(2, torch.tensor([2, 9]))
    found = source.look_up(torch.tensor([1, 1, 1]))
    assert found.tokens[:, 1].tolist() == [7, 6, 0]
    assert found.found[:, 1].tolist() == [True, True, False]


def test_a_round_copies_nothing_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "SEQUENCES", 0)  # as off a CPU
    source = retriever(learning="text", count=2)
    source.move(1, 0)
    tree, logits = root_tree(torch.tensor([4, 5])), torch.rand(2, 1, TOKENS)
    walk = walk_to(tree, [0, 0], 1)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a copy to the device waits for it")

    monkeypatch.setattr(torch, "tensor", refuse)
    source.look_up(tree.tokens[:, 0])
    source.update(tree, logits, walk)
    with pytest.raises(AssertionError, match="waits"):
        source.move(1, 0)


@pytest.mark.parametrize("seed", range(8))
def test_random_comings_and_goings(seed: int) -> None:
    """Every slot reads what its own sequence was taught, whatever happened to the others."""
    rng = random.Random(seed)
    source = retriever(learning="text", count=4)
    running: list[int] = []  # seeds of the sequences' matrices, by slot
    known: dict[int, list[list[int]]] = {}
    for name in range(25):
        if running and (len(running) == 4 or rng.random() < 0.4):
            slot, last = rng.randrange(len(running)), len(running) - 1
            if slot < last:
                source.move(last, slot)
                running[slot] = running[last]
            running.pop()
        else:
            text = torch.tensor([rng.randrange(TOKENS) for _ in range(20)])
            source.admit(len(running), text)
            alone = retriever(learning="text")
            alone.admit(0, text)
            known[name] = alone.matrix.ids[:-1].tolist()
            running.append(name)
        if not running:
            continue
        roots = [rng.randrange(TOKENS) for _ in running]
        found = source.look_up(torch.tensor(roots))
        paths = rank_paths(found)
        for slot, (name_there, root) in enumerate(zip(running, roots, strict=True)):
            wanted = naive_lookup(known[name_there], sorted(paths[1:], key=len), root)
            assert found.tokens[slot].tolist() == [wanted.get(path, 0) for path in paths]
    source.matrix.check_integrity()


def test_forgetting_a_move_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graft.retrieval.MatrixRetriever.move", lambda *_: None)
    with pytest.raises(AssertionError):
        test_random_comings_and_goings(0)
    with pytest.raises(AssertionError):
        test_a_moved_sequence_keeps_its_table_and_the_next_one_starts_empty()


def test_forgetting_to_clear_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graft.matrix.AdjacencyMatrix.clear", lambda *_: None)
    with pytest.raises(AssertionError):
        test_random_comings_and_goings(0)
