"""Retrieval against a naive recursive model, the rule by which rows are learnt, and tables that
belong to one slot each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graft import retrieval
from graft.draft import no_draft
from graft.grafting import graft
from graft.matrix import EMPTY, AdjacencyMatrix
from graft.pruning import dense
from graft.retrieval import MatrixRetriever, NoRetriever, Retrieved
from graft.settings import PromptLearning
from graft.template import RankPath, Template
from graft.tree import Source, TokenTree, root_tree
from graft.verify import Walk
from tests.random_trees import make_tree, path_of, tables, templates, trees

CPU = torch.device("cpu")
TOKENS, K = 16, 4
BUSHY = Template(((0,), (1,), (0, 0), (0, 1), (1, 0), (2,), (0, 0, 0), (1, 0, 3), (3,)))


@pytest.fixture(autouse=True, scope="module", params=["host", "device"])
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here is one of both ways to write rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "SEQUENCES", 99 if request.param == "host" else 0)
        yield


def retriever(
    table: Tensor | None = None,
    shapes: Sequence[Template] = (BUSHY,),
    learning: PromptLearning = "text",
    count: int = 1,
) -> MatrixRetriever:
    """Over a matrix that holds `table`, [count * TOKENS, K]."""
    matrix = AdjacencyMatrix(TOKENS, K, CPU, count)
    if table is not None:
        matrix.ids[:-1] = table.to(torch.int32)
    return MatrixRetriever(matrix, shapes, learning, shared=count == 1)


def naive_lookup(
    table: list[list[int]], paths: Sequence[RankPath], start: int
) -> dict[RankPath, int]:
    """What is found, by path, in the order of the paths."""
    tokens: dict[RankPath, int] = {(): start}
    for path in paths:
        parent = tokens.get(path[:-1])
        if parent is not None and table[parent][path[-1]] != EMPTY:
            tokens[path] = table[parent][path[-1]]
    return tokens


def rank_paths(found: Retrieved) -> list[RankPath]:
    """The rank path of each node of a shape."""
    paths: list[RankPath] = [()] * len(found.shape.parents)
    for nodes, parents, ranks in found.shape.levels:
        for node, parent, rank in zip(
            nodes.tolist(), parents.tolist(), ranks.tolist(), strict=True
        ):
            paths[node] = (*paths[parent], rank)
    return paths


starts = st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=3)
stages = st.lists(templates(), min_size=1, max_size=4)


@settings(deadline=None, max_examples=120)
@given(tables(), stages, starts)
def test_all_stages_are_looked_up_at_once(
    table: Tensor, shapes: list[Template], roots: list[int]
) -> None:
    found = retriever(table, shapes).look_up(torch.tensor(roots))
    paths = rank_paths(found)
    assert len({*paths}) == len(paths)
    assert {*paths} == {(), *(path for shape in shapes for path in shape.paths)}
    assert found.shape.depths.tolist() == [len(path) for path in paths]
    assert [paths[p] for p in found.shape.parents.tolist()] == [path[:-1] for path in paths]
    assert found.shape.max_depth == max(len(path) for path in paths)
    for row, root in enumerate(roots):
        wanted = naive_lookup(table.tolist(), sorted(paths[1:], key=len), root)
        assert found.found[row].tolist() == [path in wanted for path in paths]
        assert found.tokens[row].tolist() == [wanted.get(path, 0) for path in paths]


@settings(deadline=None, max_examples=80)
@given(stages)
def test_places_give_back_the_template_of_each_stage(shapes: list[Template]) -> None:
    found = retriever(shapes=shapes).look_up(torch.tensor([0]))
    paths, size = rank_paths(found), len(found.shape.parents)
    assert found.shape.places.shape == (len(shapes), size)
    for stage, shape in enumerate(shapes):
        places = found.shape.places[stage].tolist()
        inside = [node for node in range(size) if places[node] < size]
        assert [paths[n] for n in sorted(inside, key=places.__getitem__)] == [(), *shape.paths]
        assert sorted(places[n] for n in inside) == list(range(len(inside)))
        assert {places[n] for n in range(size) if n not in inside} <= {size}


def fill(source: MatrixRetriever, roots: Tensor, budget: int) -> TokenTree:
    """Trees that retrieval has for itself."""
    return graft(no_draft(roots, dense(budget, 1, 1)), source.look_up(roots), budget).tree


@settings(deadline=None, max_examples=100)
@given(tables(), templates(), starts, st.integers(1, 40))
def test_a_tree_is_what_the_template_finds_in_the_matrix(
    table: Tensor, template: Template, roots: list[int], budget: int
) -> None:
    tree = fill(retriever(table, [template]), torch.tensor(roots), budget)
    tree.check_integrity()
    assert tree.width == budget + 1
    for row, root in enumerate(roots):
        found = naive_lookup(table.tolist(), template.paths, root)
        kept = list(found.items())[: budget + 1]
        size = len(kept)
        assert tree.used[row].tolist() == [True] * size + [False] * (budget + 1 - size)
        assert tree.tokens[row, :size].tolist() == [token for _, token in kept]
        index = {path: i for i, (path, _) in enumerate(kept)}
        assert tree.parents[row, :size].tolist() == [index[path[:-1]] for path, _ in kept]
        assert tree.depths[row, :size].tolist() == [len(path) for path, _ in kept]
        assert tree.sources[row, 1:size].tolist() == [Source.RETRIEVED] * (size - 1)
        assert tree.sources[row, 0] == Source.TARGET


def test_a_cold_matrix_gives_the_root_alone() -> None:
    roots = torch.tensor([3])
    out = graft(no_draft(roots, dense(5, 1, 1)), retriever().look_up(roots), 5)
    out.tree.check_integrity()
    assert out.tree.used.tolist() == [[True] + [False] * 5]
    assert (out.lookups.tolist(), out.hits.tolist()) == ([4], [0])


def test_paths_behind_a_hole_give_their_slots_to_the_next_ones() -> None:
    table = torch.full((TOKENS, K), EMPTY)
    table[3] = torch.tensor([EMPTY, 7, 8, 9])  # rank 0 is missing, with all that hangs below
    assert fill(retriever(table), torch.tensor([3]), 2).tokens.tolist() == [[3, 7, 8]]


def test_the_depth_of_a_tree_is_bounded_by_the_budget() -> None:
    assert fill(retriever(), torch.tensor([3]), 2).max_depth == 2
    assert fill(retriever(), torch.tensor([3]), 9).max_depth == BUSHY.max_depth


def test_a_template_wider_than_the_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reads rank 4, but the matrix holds 4 .*0 to 3"):
        retriever(shapes=[BUSHY, Template(((4,),))])


def test_looking_up_does_not_write() -> None:
    table = torch.arange(TOKENS * K).reshape(TOKENS, K) % TOKENS
    source = retriever(table)
    source.look_up(torch.tensor([3, 0]))
    assert torch.equal(source.matrix.ids[:-1].long(), table)


def walk_to(tree: TokenTree, ends: Sequence[int], levels: int) -> Walk:
    """The walk that ends at the given node of every tree."""
    nodes = torch.zeros(tree.batch, levels, dtype=torch.int64)
    accepted = []
    for row, end in enumerate(ends):
        path = path_of(tree, row, end)
        accepted.append(len(path) - 1)
        nodes[row] = torch.tensor((path + [end] * levels)[:levels])
    return Walk(nodes, torch.zeros_like(nodes), torch.tensor(accepted))


def naive_winners(tree: TokenTree, walk: Walk, slots: Sequence[int]) -> dict[int, tuple[int, int]]:
    """The (sequence, node) that each row of the matrix comes from; `slots`: table per sequence."""
    best: dict[int, tuple[int, int, int]] = {}
    where = {}
    for row in range(tree.batch):
        path = walk.nodes[row, : int(walk.accepted[row]) + 1].tolist()
        for node in range(tree.width):
            if not tree.used[row, node]:
                continue
            claim = (row, int(node in path), path.index(node) if node in path else node)
            place = int(tree.tokens[row, node]) + slots[row] * TOKENS
            if place not in best or claim > best[place]:
                best[place], where[place] = claim, (row, node)
    return where


@settings(deadline=None, max_examples=120)
@given(st.data(), trees(most=10, vocab_size=6), st.booleans())
def test_a_row_is_learnt_from_the_deepest_accepted_else_the_last_node(
    data: st.DataObject, tree: TokenTree, shared: bool
) -> None:
    ends = [data.draw(st.integers(0, size - 1)) for size in tree.used.sum(1).tolist()]
    deepest = max(len(path_of(tree, row, end)) for row, end in enumerate(ends))
    walk = walk_to(tree, ends, data.draw(st.integers(deepest, tree.max_depth + 1)))
    logits = torch.rand(tree.batch, tree.width, TOKENS)
    source = retriever(count=1 if shared else 3)
    written = source.update(tree, logits, walk)
    winners = naive_winners(tree, walk, [0] * 3 if shared else range(3))
    best = source.matrix.best(logits).ids
    for row in range(len(source.matrix.ids) - 1):
        wanted = best[winners[row]].tolist() if row in winners else [EMPTY] * K
        assert source.matrix.ids[row].tolist() == wanted
    assert int(written) == len(winners)
    source.matrix.check_integrity()


def test_of_equal_tokens_in_two_sequences_the_last_sequence_teaches() -> None:
    tree = make_tree([[(0, 6), (1, 5)], [(0, 5)]], [5, 6])
    logits = torch.rand(2, 3, TOKENS)
    source = retriever()
    assert int(source.update(tree, logits, walk_to(tree, [2, 0], 3))) == 2
    assert torch.equal(source.matrix.ids[[6, 5]].long(), source.matrix.best(logits[1, :2]).ids)


def test_empty_slots_teach_nothing() -> None:
    tree = make_tree([[(0, 6)], []], [5, 5])  # row 1 has an empty slot, whose token reads 0
    source = retriever()
    source.update(tree, torch.rand(2, 2, TOKENS), walk_to(tree, [0, 0], 1))
    written = (source.matrix.ids[:-1] != EMPTY).any(1).nonzero().flatten().tolist()
    assert written == [5, 6]


def test_no_retriever_leaves_the_tree_and_learns_nothing() -> None:
    nothing, tree = NoRetriever(), root_tree(torch.tensor([1, 2]))
    assert nothing.look_up(torch.tensor([1, 2])) is None
    assert int(nothing.update(tree, torch.rand(2, 1, 9), walk_to(tree, [0, 0], 1))) == 0
    assert nothing.admit(0, torch.tensor([1, 2])) is None
    nothing.move(1, 0)
