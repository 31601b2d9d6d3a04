"""Retrieval against a naive recursive model, and the rule by which rows are learnt."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graft.grafting import Lookups, MatrixRetriever, NoRetriever
from graft.matrix import EMPTY, AdjacencyMatrix
from graft.template import RankPath, Template
from graft.tree import Source, TokenTree, root_tree
from graft.verify import Walk
from tests.random_trees import make_tree, path_of, templates, trees

CPU = torch.device("cpu")
TOKENS, K = 16, 4
BUSHY = Template(((0,), (1,), (0, 0), (0, 1), (1, 0), (2,), (0, 0, 0), (1, 0, 3), (3,)))


def retriever(
    table: Tensor | None = None, template: Template = BUSHY, learning: str = "text"
) -> MatrixRetriever:
    matrix = AdjacencyMatrix(TOKENS, K, CPU)
    if table is not None:
        matrix.ids[:-1] = table.to(torch.int32)
    return MatrixRetriever(matrix, template, learning)  # type: ignore[arg-type]


@st.composite
def tables(draw: st.DrawFn) -> Tensor:
    """[TOKENS, K]: distinct successors per row, some of them missing."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    full = torch.rand(TOKENS, TOKENS, generator=generator).argsort(dim=1)[:, :K]
    missing = torch.rand(TOKENS, K, generator=generator) < draw(st.sampled_from([0.0, 0.3, 0.8]))
    return torch.where(missing, EMPTY, full)


def naive_fill(
    table: list[list[int]], paths: tuple[RankPath, ...], root: int, budget: int
) -> tuple[list[tuple[RankPath, int]], int, int]:
    """Kept (path, token) pairs, entries asked for, entries found."""
    tokens: dict[RankPath, int] = {(): root}
    asked = 0
    for path in paths:
        parent = tokens.get(path[:-1])
        if parent is None:
            continue
        asked += 1
        if table[parent][path[-1]] != EMPTY:
            tokens[path] = table[parent][path[-1]]
    del tokens[()]
    return list(tokens.items())[:budget], asked, len(tokens)


@settings(deadline=None, max_examples=120)
@given(
    tables(),
    templates(),
    st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=3),
    st.integers(1, 40),
)
def test_a_tree_is_what_the_template_finds_in_the_matrix(
    table: Tensor, template: Template, roots: list[int], budget: int
) -> None:
    tree, lookups = retriever(table, template).fill(root_tree(torch.tensor(roots)), budget)
    tree.check_integrity()
    assert tree.width == budget + 1
    for row, root in enumerate(roots):
        kept, asked, found = naive_fill(table.tolist(), template.paths, root, budget)
        assert (int(lookups.asked[row]), int(lookups.found[row])) == (asked, found)
        size = 1 + len(kept)
        assert tree.used[row].tolist() == [True] * size + [False] * (budget + 1 - size)
        assert tree.tokens[row, :size].tolist() == [root, *(token for _, token in kept)]
        index = {(): 0} | {path: i for i, (path, _) in enumerate(kept, 1)}
        assert tree.parents[row, 1:size].tolist() == [index[path[:-1]] for path, _ in kept]
        assert tree.depths[row, :size].tolist() == [0, *(len(path) for path, _ in kept)]
        assert tree.sources[row, 1:size].tolist() == [Source.RETRIEVED] * (size - 1)
        assert tree.sources[row, 0] == Source.TARGET


def test_a_cold_matrix_gives_the_root_alone() -> None:
    tree, lookups = retriever().fill(root_tree(torch.tensor([3])), 5)
    tree.check_integrity()
    assert tree.used.tolist() == [[True] + [False] * 5]
    assert (lookups.asked.tolist(), lookups.found.tolist()) == ([4], [0])


def test_paths_behind_a_hole_give_their_slots_to_the_next_ones() -> None:
    table = torch.full((TOKENS, K), EMPTY)
    table[3] = torch.tensor([EMPTY, 7, 8, 9])  # rank 0 is missing, with all that hangs below
    tree, _ = retriever(table).fill(root_tree(torch.tensor([3])), 2)
    assert tree.tokens.tolist() == [[3, 7, 8]]


def test_the_depth_of_a_tree_is_bounded_by_the_budget() -> None:
    tree, _ = retriever().fill(root_tree(torch.tensor([3])), 2)
    assert tree.max_depth == 2
    assert retriever().fill(root_tree(torch.tensor([3])), 9)[0].max_depth == BUSHY.max_depth


def test_a_template_wider_than_the_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reads rank 4, but the matrix holds 4 .*0 to 3"):
        retriever(template=Template(((4,),)))


def test_filling_does_not_write() -> None:
    table = torch.arange(TOKENS * K).reshape(TOKENS, K) % TOKENS
    graft = retriever(table)
    graft.fill(root_tree(torch.tensor([3])), 5)
    assert torch.equal(graft.matrix.ids[:-1].long(), table)


def walk_to(tree: TokenTree, ends: list[int], levels: int) -> Walk:
    """The walk that ends at the given node of every tree."""
    nodes = torch.zeros(tree.batch, levels, dtype=torch.int64)
    accepted = []
    for row, end in enumerate(ends):
        path = path_of(tree, row, end)
        accepted.append(len(path) - 1)
        nodes[row] = torch.tensor((path + [end] * levels)[:levels])
    return Walk(nodes, torch.zeros_like(nodes), torch.tensor(accepted))


def naive_winners(tree: TokenTree, walk: Walk) -> dict[int, tuple[int, int]]:
    """The (row, node) that each token's successors come from."""
    best: dict[int, tuple[int, int, int]] = {}
    where = {}
    for row in range(tree.batch):
        path = walk.nodes[row, : int(walk.accepted[row]) + 1].tolist()
        for node in range(tree.width):
            if not tree.used[row, node]:
                continue
            claim = (row, int(node in path), path.index(node) if node in path else node)
            token = int(tree.tokens[row, node])
            if token not in best or claim > best[token]:
                best[token], where[token] = claim, (row, node)
    return where


@settings(deadline=None, max_examples=100)
@given(st.data(), trees(most=10, vocab_size=6))
def test_a_row_is_learnt_from_the_deepest_accepted_else_the_last_node(
    data: st.DataObject, tree: TokenTree
) -> None:
    sizes = tree.used.sum(1).tolist()
    ends = [data.draw(st.integers(0, size - 1)) for size in sizes]
    deepest = max(len(path_of(tree, row, end)) for row, end in enumerate(ends))
    levels = data.draw(st.integers(deepest, tree.max_depth + 1))
    walk = walk_to(tree, ends, levels)
    logits = torch.rand(tree.batch, tree.width, TOKENS)
    graft = retriever()
    written = graft.update(tree, logits, walk)
    winners = naive_winners(tree, walk)
    best = graft.matrix.best(logits)
    for token in range(TOKENS):
        wanted = best[winners[token]].tolist() if token in winners else [EMPTY] * K
        assert graft.matrix.ids[token].tolist() == wanted
    assert int(written) == len(winners)
    graft.matrix.check_integrity()


def test_empty_slots_teach_nothing() -> None:
    tree = make_tree([[(0, 6)], []], [5, 5])  # row 1 has an empty slot, whose token reads 0
    graft = retriever()
    graft.update(tree, torch.rand(2, 2, TOKENS), walk_to(tree, [0, 0], 1))
    written = (graft.matrix.ids[:-1] != EMPTY).any(1).nonzero().flatten().tolist()
    assert written == [5, 6]


def test_the_prompt_teaches_its_successions() -> None:
    graft = retriever(learning="text")
    assert graft.learn_prompt(torch.tensor([1, 2, 1, 3])) is None
    assert graft.matrix.ids[1].tolist() == [3, 2, EMPTY, EMPTY]


def test_the_prompt_teaches_its_logits_the_last_occurrence_winning() -> None:
    graft = retriever(learning="logits")
    observe = graft.learn_prompt(torch.tensor([1, 2, 1]))
    assert (graft.matrix.ids == EMPTY).all()
    assert observe is not None
    logits = torch.rand(3, TOKENS)
    observe(torch.tensor([1, 2, 1]), logits)
    assert torch.equal(graft.matrix.ids[[2, 1]].long(), graft.matrix.best(logits[1:]))


def test_the_prompt_may_teach_nothing() -> None:
    graft = retriever(learning="off")
    assert graft.learn_prompt(torch.tensor([1, 2, 1])) is None
    assert (graft.matrix.ids == EMPTY).all()


def test_no_retriever_leaves_the_tree_and_learns_nothing() -> None:
    nothing, tree = NoRetriever(), root_tree(torch.tensor([1, 2]))
    filled, lookups = nothing.fill(tree, 9)
    assert filled is tree
    assert [t.tolist() for t in lookups] == [[0, 0], [0, 0]]
    assert isinstance(lookups, Lookups)
    assert int(nothing.update(tree, torch.rand(2, 1, 9), walk_to(tree, [0, 0], 1))) == 0
    assert nothing.learn_prompt(torch.tensor([1, 2])) is None
