"""The adjacency matrix: writes with a defined winner, learning from text, and its checks."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.matrix import EMPTY, AdjacencyMatrix, Best

CPU = torch.device("cpu")
TOKENS = 6


def matrix(k: int = 3, token_count: int = TOKENS, count: int = 1) -> AdjacencyMatrix:
    return AdjacencyMatrix(token_count, k, CPU, count)


def rows_of(table: AdjacencyMatrix) -> list[list[int]]:
    return table.ids[:-1].tolist()


def write(table: AdjacencyMatrix, tokens: list[int], priority: list[int]) -> int:
    """Write row i of a recognisable table: all of its entries are i."""
    successors = torch.arange(len(tokens)).unsqueeze(1).expand(-1, table.k)
    return int(table.write(torch.tensor(tokens), said(successors), torch.tensor(priority)))


def said(successors: torch.Tensor) -> Best:
    """Successors with a probability for each."""
    return Best(successors, torch.linspace(0.5, 0.1, successors.shape[-1]).expand(successors.shape))


def naive_learn(rows: list[list[int]], text: list[int], k: int) -> list[list[int]]:
    """Each succession in the order of the text: the successor moves to the front of its row."""
    rows = [list(row) for row in rows]
    for token, successor in pairwise(text):
        held = [t for t in rows[token] if t not in (EMPTY, successor)]
        rows[token] = ([successor, *held] + [EMPTY] * k)[:k]
    return rows


def test_a_new_matrix_holds_nothing() -> None:
    table = matrix()
    tokens, ranks = torch.arange(TOKENS), torch.zeros(TOKENS, dtype=torch.int64)
    assert table.lookup(tokens, ranks).tolist() == [EMPTY] * TOKENS
    table.check_integrity()


@pytest.mark.parametrize("k", [0, -1, TOKENS + 1])
def test_k_is_bounded_by_the_vocabulary(k: int) -> None:
    with pytest.raises(ValueError, match=rf"k={k}: .* 1 to {TOKENS}"):
        matrix(k)


def test_k_may_be_the_whole_vocabulary() -> None:
    table = matrix(TOKENS)
    write(table, [0], [0])
    assert table.best(torch.randn(2, TOKENS)).ids.shape == (2, TOKENS)


def test_memory_is_six_bytes_per_entry() -> None:
    assert matrix().bytes == (TOKENS + 1) * 3 * 6


def test_the_highest_priority_wins_a_repeated_row() -> None:
    table = matrix()
    assert write(table, [2, 1, 2, 2], [5, 0, 9, 7]) == 2
    assert rows_of(table)[2] == [2] * 3
    assert rows_of(table)[1] == [1] * 3


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_row_gets_its_best_write(data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=TOKENS))
    priority = data.draw(st.permutations(range(-2, len(tokens) - 2)))
    table = matrix()
    before = rows_of(table)
    written = write(table, tokens, list(priority))
    legal = {t for t, p in zip(tokens, priority, strict=True) if p >= 0}
    for token in range(TOKENS):
        rivals = [(p, i) for i, p in enumerate(priority) if tokens[i] == token and p >= 0]
        wanted = [max(rivals)[1]] * 3 if rivals else before[token]
        assert rows_of(table)[token] == wanted
    assert written == len(legal)


def test_negative_priorities_are_not_written() -> None:
    table = matrix()
    assert write(table, [0, 1], [-1, -1]) == 0
    assert rows_of(table) == rows_of(matrix())


def test_losing_writes_land_where_nobody_reads() -> None:
    table = matrix()
    write(table, [0, 0, 0], [2, 1, -1])
    assert [row for row in rows_of(table) if row != [EMPTY] * 3] == [[0] * 3]


def test_what_the_spare_row_holds_does_not_matter() -> None:
    table, clean = matrix(), matrix()
    table.ids[-1] = torch.tensor([9, 9, -7], dtype=torch.int32)
    for each in (table, clean):
        each.learn_text(torch.tensor([0, 5, 5, 1, 0]))
        write(each, [5, 5, 2], [1, 0, 3])
    assert rows_of(table) == rows_of(clean)


def test_best_names_the_largest_logits_of_tokens_that_exist() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0, 4.0, 2.0, 3.0, 99.0, 99.0]])  # the last two are padding
    assert matrix().best(logits).ids.tolist() == [[1, 3, 5]]


@pytest.mark.parametrize("token_count", [6, 512, 1094, 1100])
def test_best_keeps_leading_dimensions_and_every_dtype(token_count: int) -> None:
    logits = torch.randn(2, 5, token_count + 3)
    best = matrix(3, token_count).best(logits).ids
    assert torch.equal(best, logits[..., :token_count].topk(3).indices)
    halves = matrix(3, token_count).best(logits.bfloat16()).ids
    known = logits[..., :token_count].bfloat16()
    assert torch.equal(known.gather(2, halves), known.topk(3).values)


@pytest.mark.parametrize("finite", [0, 1, 5])
def test_successors_exist_even_where_hardly_any_logit_is_finite(finite: int) -> None:
    for token_count in range(513, 1600, 29):  # blocks of every remainder
        logits = torch.full((4, token_count), float("-inf"))
        logits[:, :: token_count // 5][:, :finite] = 1.0
        best = matrix(8, token_count).best(logits).ids
        assert int(best.max()) < token_count
        assert all(len({*row}) == 8 for row in best.tolist())


def test_lookup_takes_any_shape() -> None:
    table = matrix()
    table.learn_text(torch.tensor([0, 1, 0, 2]))
    found = table.lookup(torch.tensor([[0, 0], [1, 2]]), torch.tensor([[0, 1], [0, 0]]))
    assert found.tolist() == [[2, 1], [0, EMPTY]]
    assert found.dtype == torch.int64


texts = st.lists(st.integers(0, TOKENS - 1), max_size=25)


@settings(deadline=None, max_examples=60)
@given(st.lists(texts, min_size=1, max_size=3), st.integers(1, 4))
def test_texts_teach_what_a_naive_model_learns(learnt: list[list[int]], k: int) -> None:
    table = matrix(k)
    wanted = rows_of(table)
    for text in learnt:
        table.learn_text(torch.tensor(text, dtype=torch.int64))
        wanted = naive_learn(wanted, text, k)
        assert rows_of(table) == wanted
    table.check_integrity()


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_text_goes_in_front_of_rows_that_logits_wrote(data: st.DataObject) -> None:
    table = matrix()
    text = data.draw(texts)
    row = st.permutations(range(TOKENS)).map(lambda p: p[:3])
    held = data.draw(st.lists(row, min_size=TOKENS, max_size=TOKENS))
    order = torch.arange(TOKENS)
    table.write(order, said(torch.tensor(held)), order)
    table.learn_text(torch.tensor(text, dtype=torch.int64))
    assert rows_of(table) == naive_learn([list(r) for r in held], text, 3)
    table.check_integrity()


def test_token_zero_is_a_token() -> None:
    table = matrix()
    table.learn_text(torch.tensor([0, 0, 1, 0]))
    assert rows_of(table)[:2] == [[1, 0, EMPTY], [0, EMPTY, EMPTY]]


@pytest.mark.parametrize("text", [[], [3]])
def test_a_text_without_successions_teaches_nothing(text: list[int]) -> None:
    table = matrix()
    table.learn_text(torch.tensor(text, dtype=torch.int64))
    assert rows_of(table) == rows_of(matrix())


def test_a_large_vocabulary_does_not_mix_up_pairs() -> None:
    table = matrix(2, 200_000)
    table.learn_text(torch.tensor([199_999, 199_998, 199_999, 0]))
    assert table.ids[199_999].tolist() == [0, 199_998]
    assert table.ids[199_998].tolist() == [199_999, EMPTY]


def test_clear_forgets_everything() -> None:
    table = matrix()
    table.learn_text(torch.tensor([1, 2, 3]))
    table.clear()
    assert rows_of(table) == rows_of(matrix())


def tables_of(table: AdjacencyMatrix) -> list[list[list[int]]]:
    """The rows of each of several tables."""
    rows = rows_of(table)
    return [rows[i * TOKENS : (i + 1) * TOKENS] for i in range(table.count)]


def test_several_tables_stand_side_by_side() -> None:
    table = matrix(count=3)
    assert table.bytes == (3 * TOKENS + 1) * 3 * 6
    assert write(table, [2, TOKENS + 2, 2 * TOKENS + 2], [0, 0, 0]) == 3  # nobody's rivals
    assert [rows[2] for rows in tables_of(table)] == [[0] * 3, [1] * 3, [2] * 3]
    assert write(table, [TOKENS + 2, TOKENS + 2, TOKENS + 2], [1, 2, 3]) == 1
    assert [rows[2] for rows in tables_of(table)] == [[0] * 3, [2] * 3, [2] * 3]
    assert write(table, [3 * TOKENS - 1, 0], [-1, -1]) == 0
    assert sum(row != [EMPTY] * 3 for row in rows_of(table)) == 3
    tokens = torch.tensor([[2, TOKENS + 2], [2 * TOKENS + 2, 0]])
    assert table.lookup(tokens, torch.zeros_like(tokens)).tolist() == [[0, 2], [2, EMPTY]]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), texts), max_size=5), st.integers(1, 4))
def test_a_text_is_learnt_by_one_table(learnt: list[tuple[int, list[int]]], k: int) -> None:
    table = matrix(k, count=3)
    wanted = tables_of(table)
    for owner, text in learnt:
        table.learn_text(torch.tensor(text, dtype=torch.int64), owner)
        wanted[owner] = naive_learn(wanted[owner], text, k)
        assert tables_of(table) == wanted
    table.check_integrity()


@pytest.mark.parametrize("cleared", [0, 1, 2])
def test_one_table_forgets(cleared: int) -> None:
    table = matrix(count=3)
    for owner in range(3):
        # The first and the last row of each.
        table.learn_text(torch.tensor([0, TOKENS - 1, owner]), owner)
    wanted = tables_of(table)
    table.clear(cleared)
    wanted[cleared] = [[EMPTY] * 3] * TOKENS
    assert tables_of(table) == wanted
    table.clear()
    assert (table.ids == EMPTY).all()


def test_successors_are_tokens_in_every_table() -> None:
    table = matrix(count=2)
    table.ids[TOKENS + 1, 0] = TOKENS + 1  # a row number, not a token
    with pytest.raises(AssertionError, match="ids are tokens"):
        table.check_integrity()
    table.ids[TOKENS + 1, 0] = TOKENS - 1
    table.check_integrity()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([TOKENS, 0, 1], "ids are tokens"),
        ([-2, 0, 1], "tokens or EMPTY"),
        ([EMPTY, 0, 1], "packed to the front"),
        ([1, 1, EMPTY], "each token once"),
    ],
)
def test_check_integrity_names_the_broken_invariant(row: list[int], message: str) -> None:
    table = matrix()
    table.ids[2] = torch.tensor(row, dtype=torch.int32)
    with pytest.raises(AssertionError, match=message):
        table.check_integrity()
