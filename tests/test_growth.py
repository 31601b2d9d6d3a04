"""Growth takes the likeliest nodes: compared with a search that goes node by node."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graft.contexts import ContextTable
from graft.draft import Draft, no_draft
from graft.estimates import Estimates
from graft.evidence import Cells
from graft.growth import Grown, Rules, grow
from graft.host_contexts import HostContexts
from graft.host_growth import HostGrower, Tree, children
from graft.matrix import EMPTY, AdjacencyMatrix
from graft.offers import Lookups
from graft.pruning import dense
from graft.tree import Source, TokenTree
from tests.random_trees import drafts, tables

VOCAB = 6
ORDERS = (1, 2, 3)
CPU = torch.device("cpu")
Path = tuple[int, ...]
ALL = Rules()


class Case(NamedTuple):
    """A round, and where its trees are grown from."""

    history: Tensor  # [B, T]
    length: Tensor  # [B]
    draft: Draft
    contexts: ContextTable | None
    ids: Tensor | None  # [VOCAB, k] successors
    chances: Tensor
    table: Tensor  # [B, cells]
    budget: int
    levels: int


CELLS = Cells(len(ORDERS), CPU)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    draft = draw(drafts(vocab_size=VOCAB))
    batch = draft.tree.batch
    drawn = random.Random(draw(st.integers(0, 1 << 32)))
    contexts = None
    if draw(st.booleans()):
        contexts = ContextTable(VOCAB, CPU, orders=ORDERS, rows=1 << 12, ring=3)
        for _ in range(draw(st.integers(0, 3))):
            text = [drawn.randrange(VOCAB) for _ in range(30)]
            contexts.learn_text(torch.tensor(text))
    ids = draw(tables(rows=VOCAB, k=3)) if draw(st.booleans()) else None
    made = torch.Generator().manual_seed(drawn.randrange(1 << 30))
    length = [drawn.randrange(1, 9) for _ in range(batch)]
    history = torch.randint(VOCAB, (batch, 12), generator=made)
    roots = history.gather(1, torch.tensor(length).unsqueeze(1) - 1)
    tree = draft.tree
    tokens = torch.cat([roots, tree.tokens[:, 1:]], 1)
    tree = TokenTree(tokens, tree.parents, tree.depths, tree.used, tree.sources, tree.max_depth)
    return Case(
        history,
        torch.tensor(length),
        draft._replace(tree=tree),
        contexts,
        ids,
        (torch.rand(VOCAB, 3, generator=made) - 0.2).half().float(),
        torch.rand(batch, CELLS.count, generator=made) * draw(st.sampled_from([0.3, 0.99])),
        draw(st.integers(1, 14)),
        draw(st.integers(1, 6)),
    )


def _successors(case: Case) -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
    ids = case.ids
    return None if ids is None else lambda tokens: (ids[tokens], case.chances[tokens])


def grown(case: Case, rules: Rules = ALL, least: float = 0.0) -> Grown:
    longest = case.contexts.longest if case.contexts is not None else 1
    back = torch.arange(longest - 1, -1, -1)
    windows = case.history.gather(1, (case.length.unsqueeze(1) - 1 - back).clamp(min=0))
    lookups = Lookups(
        case.contexts,
        _successors(case),
    )
    return grow(
        windows,
        case.length,
        case.draft,
        lookups,
        CELLS,
        case.table,
        budget=case.budget,
        levels=case.levels,
        beam=16,
        rules=rules,
        least=least,
    )


def behind(case: Case, row: int, path: Path, drafted: int | None) -> dict[int, tuple[int, int]]:
    """Cell, and index in the draft or -1, of every token that may follow a path."""
    text = [*case.history[row, : int(case.length[row])].tolist(), *path]
    named: dict[int, int] = {}  # token -> cell
    found = False
    if case.contexts is not None:
        longest = case.contexts.longest
        window = torch.tensor(([0] * longest + text)[-longest:])
        out = case.contexts.lookup(case.contexts.hashes(window, torch.tensor(len(text))))
        found = bool(out.found.any())
        rows = CELLS.of_contexts(out.classes, out.found)
        for token, cell in zip(out.tokens.flatten().tolist(), rows.flatten().tolist(), strict=True):
            if token != EMPTY:
                named.setdefault(token, cell)
    if case.ids is not None:
        rows = CELLS.of_matrix(case.chances[text[-1]], torch.tensor(found))
        for token, cell in zip(case.ids[text[-1]].tolist(), rows.tolist(), strict=True):
            if token != EMPTY:
                named.setdefault(token, cell)
    below: dict[int, int] = {}
    tree, scores = case.draft.tree, case.draft.scores
    if drafted is not None:
        for node in range(1, tree.width):
            if bool(tree.used[row, node]) and int(tree.parents[row, node]) == drafted:
                below[int(tree.tokens[row, node])] = node
    found_cells = {}
    for token in {**named, **below}:
        node = below.get(token, -1)
        chance = -1.0
        if node >= 0:
            chance = float((scores[row, node] - scores[row, drafted or 0]).exp())
        column = CELLS.of_drafter(torch.tensor(chance), torch.tensor(len(path) + 1))
        cell = CELLS.join(torch.tensor(named.get(token, 0)), column)
        found_cells[token] = (int(cell), node)
    return found_cells


def reference(case: Case, row: int, rules: Rules = ALL) -> dict[Path, float]:
    """The likeliest nodes and their values, one by one."""
    found: dict[Path, float] = {}
    waiting: list[tuple[float, Path, int | None]] = [(-1.0, (), 0)]
    while waiting and len(found) <= case.budget:
        value, path, drafted = heapq.heappop(waiting)
        found[path] = -value
        if len(path) == case.levels:
            continue
        cells = behind(case, row, path, drafted)
        first = rules.drafter_first and not path
        apart = not rules.anywhere and path and drafted is not None
        if first or apart:
            cells = {token: (cell, node) for token, (cell, node) in cells.items() if node >= 0}
        total = sum(float(case.table[row, cell]) for cell, _ in cells.values())
        for token, (cell, node) in cells.items():
            chance = float(case.table[row, cell]) / max(total, 1.0)
            below = node if node >= 0 else None
            heapq.heappush(waiting, (value * chance, (*path, token), below))
    return found


def paths(tree: TokenTree, row: int) -> list[Path]:
    """The path of each used node."""
    out: list[Path] = [()]
    for node in range(1, int(tree.used[row].sum())):
        out.append((*out[int(tree.parents[row, node])], int(tree.tokens[row, node])))
    return out


def check(case: Case, out: Grown) -> None:
    out.tree.check_integrity()
    assert out.tree.width == case.budget + 1
    for row in range(out.tree.batch):
        wanted = reference(case, row)
        found = dict(zip(paths(out.tree, row), out.values[row].tolist(), strict=False))
        assert sorted(found.values()) == pytest.approx(sorted(wanted.values()), rel=1e-4)
        least = min(wanted.values())
        for path, value in found.items():
            assert value == pytest.approx(wanted.get(path, least), rel=1e-4)


@settings(deadline=None, max_examples=150)
@given(cases())
def test_the_tree_holds_the_likeliest_nodes(case: Case) -> None:
    check(case, grown(case))


def host_trees(case: Case, rules: Rules = ALL, least: float = 0.0) -> list[Tree]:
    """What growing node by node makes of a case."""
    matrix = None
    if case.ids is not None:
        matrix = AdjacencyMatrix(VOCAB, 3, CPU)
        matrix.ids[:-1], matrix.chances[:-1] = case.ids.int(), case.chances.half()
    estimates = Estimates(case.table[0], CELLS.voice)
    estimates.resize(case.draft.tree.batch)
    contexts = None if case.contexts is None else HostContexts(case.contexts)
    grower = HostGrower(
        CELLS,
        estimates,
        contexts,
        matrix,
        budget=case.budget,
        levels=case.levels,
        beam=16,
        rules=rules,
    )
    below = children(case.draft, CELLS, 16)
    out = []
    for row, end in enumerate(case.length.tolist()):
        estimates.rates = case.table[row]
        text = case.history[row, :end].tolist()
        out.append(grower.grow(text, below[row], row, (0, 0), least))
    return out


@settings(deadline=None, max_examples=150)
@given(cases(), st.booleans(), st.booleans())
def test_node_by_node_the_tree_is_the_same(case: Case, anywhere: bool, first: bool) -> None:
    rules = Rules(anywhere, first)
    for row, tree in enumerate(host_trees(case, rules)):
        wanted = reference(case, row, rules)
        assert sorted(tree.values) == pytest.approx(sorted(wanted.values()), rel=1e-4)
        assert tree.values == sorted(tree.values, reverse=True)
        least = min(wanted.values())
        paths: list[Path] = [()]
        for node in range(1, len(tree.tokens)):
            paths.append((*paths[tree.parents[node]], tree.tokens[node]))
            assert tree.depths[node] == len(paths[-1])
            assert tree.values[node] == pytest.approx(wanted.get(paths[-1], least), rel=1e-4)
        for node, offers in tree.offers.items():
            found = {o.token: (o.cell, o.drafted or -1) for o in offers}
            index = tree.drafted[node] or (None if node else 0)
            said = behind(case, row, paths[node], index)
            if (rules.drafter_first and not node) or (not anywhere and node and index is not None):
                said = {token: (cell, at) for token, (cell, at) in said.items() if at >= 0}
            assert found == said


@settings(deadline=None, max_examples=60)
@given(cases(), st.floats(0.001, 0.5))
def test_node_by_node_no_node_of_use_is_missed(case: Case, least: float) -> None:
    for row, tree in enumerate(host_trees(case, least=least)):
        wanted = [v for v in reference(case, row).values() if v > least * 1.001]
        found = [v for v in tree.values if v > least * 1.001]
        assert sorted(found) == pytest.approx(sorted(wanted), rel=1e-4)


@settings(deadline=None, max_examples=60)
@given(cases(), st.floats(0.001, 0.5))
def test_no_node_of_use_is_missed(case: Case, least: float) -> None:
    out = grown(case, least=least)
    out.tree.check_integrity()
    for row in range(out.tree.batch):
        wanted = [v for v in reference(case, row).values() if v > least * 1.001]
        found = [v for v in out.values[row].tolist() if v > least * 1.001]
        assert sorted(found) == pytest.approx(sorted(wanted), rel=1e-4)


def test_no_level_is_grown_for_useless_nodes() -> None:
    case = Case(
        torch.tensor([[1, 2, 3, 4, 5]]),
        torch.tensor([5]),
        no_draft(torch.tensor([5]), dense(8, 2, 2)),
        None,
        torch.arange(1, VOCAB + 1).remainder(VOCAB).unsqueeze(1),
        torch.full((VOCAB, 1), 0.5),
        torch.full((1, CELLS.count), 0.6),
        8,
        6,
    )
    assert [grown(case, least=x).tree.max_depth for x in (0.0, 0.2, 0.5)] == [6, 4, 2]


@settings(deadline=None, max_examples=60)
@given(cases())
def test_the_drafter_may_have_the_first_word(case: Case) -> None:
    """Then every path begins with a draft node, and no likelier one of these is missed."""
    out = grown(case, Rules(drafter_first=True))
    out.tree.check_integrity()
    for row in range(out.tree.batch):
        wanted = reference(case, row, Rules(drafter_first=True))
        assert sorted(out.values[row][out.tree.used[row]].tolist()) == pytest.approx(
            sorted(wanted.values()), rel=1e-4
        )
    first = (out.tree.depths == 1) & out.tree.used
    assert bool((out.tree.sources[first] == Source.DRAFT).all())


@settings(deadline=None, max_examples=60)
@given(cases())
def test_retrieval_may_be_kept_from_under_the_draft(case: Case) -> None:
    """Then no retrieved node hangs under a drafted one, and no likelier node is missed."""
    rules = Rules(anywhere=False)
    out = grown(case, rules)
    out.tree.check_integrity()
    for row in range(out.tree.batch):
        wanted = reference(case, row, rules)
        assert sorted(out.values[row][out.tree.used[row]].tolist()) == pytest.approx(
            sorted(wanted.values()), rel=1e-4
        )
    above = out.tree.sources.gather(1, out.tree.parents)
    retrieved = out.tree.used & (out.tree.sources == Source.RETRIEVED)
    assert not bool((above[retrieved] == Source.DRAFT).any())


@settings(deadline=None, max_examples=60)
@given(cases())
def test_each_row_is_grown_for_itself(case: Case) -> None:
    out = grown(case)
    for row in range(out.tree.batch):
        part = slice(row, row + 1)
        tree = case.draft.tree
        alone = grown(
            case._replace(
                history=case.history[part],
                length=case.length[part],
                draft=case.draft._replace(
                    tree=TokenTree(
                        tree.tokens[part],
                        tree.parents[part],
                        tree.depths[part],
                        tree.used[part],
                        tree.sources[part],
                        tree.max_depth,
                    ),
                    scores=case.draft.scores[part],
                ),
                table=case.table[part],
            )
        )
        assert paths(alone.tree, 0) == paths(out.tree, row)


@settings(deadline=None, max_examples=60)
@given(cases())
def test_every_node_says_where_it_comes_from(case: Case) -> None:
    """Its index in the draft, whether retrieval names it, and what was offered behind it."""
    out = grown(case)
    for row in range(out.tree.batch):
        for node, path in enumerate(paths(out.tree, row)):
            index = int(out.drafted[row, node])
            drafted = index if index < case.draft.tree.width else None
            if node:
                parent = int(out.tree.parents[row, node])
                above = int(out.drafted[row, parent])
                cells = behind(
                    case, row, path[:-1], above if above < case.draft.tree.width else None
                )
                cell, place = cells[path[-1]]
                assert place == (-1 if drafted is None else drafted)
                source = Source.RETRIEVED if drafted is None else Source.DRAFT
                assert int(out.tree.sources[row, node]) == source
                assert bool(out.retrieved[row, node]) == (int(CELLS.parts()[0][cell]) > 0)
            place = int(out.place[row, node])
            if place < out.offers.tokens.shape[1]:
                valid = out.offers.valid[row, place]
                offered = dict(
                    zip(
                        out.offers.tokens[row, place][valid].tolist(),
                        out.offers.cells[row, place][valid].tolist(),
                        strict=True,
                    )
                )
                wanted = {t: cell for t, (cell, _) in behind(case, row, path, drafted).items()}
                assert offered == wanted


def test_the_comparison_notices_an_estimate_that_is_not_used() -> None:
    """The negative control: with another table the tree would be another."""
    case = Case(
        torch.tensor([[1, 2, 3]]),
        torch.tensor([3]),
        no_draft(torch.tensor([3]), dense(4, 1, 1)),
        None,
        torch.tensor([[1, 2, 3]] * VOCAB),
        torch.full((VOCAB, 3), 0.5),
        torch.linspace(0.1, 0.9, CELLS.count).unsqueeze(0),
        4,
        2,
    )
    check(case, grown(case))
    with pytest.raises(AssertionError):
        check(case, grown(case._replace(table=case.table.flip(1))))


def test_nothing_to_offer_leaves_the_root() -> None:
    none = no_draft(torch.tensor([3]), dense(4, 1, 1))
    out = grown(
        Case(
            torch.tensor([[1, 2, 3]]),
            torch.tensor([3]),
            none,
            None,
            torch.full((VOCAB, 3), EMPTY),
            torch.zeros(VOCAB, 3),
            torch.full((1, CELLS.count), 0.5),
            5,
            3,
        )
    )
    assert out.tree.used.tolist() == [[True] + [False] * 5]
