"""Grafting against a slow reference, and its stated invariants.

Vocabularies are small, so drafts and retrieval often agree.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graft import grafting
from graft.draft import Draft, no_draft
from graft.grafting import Dedup
from graft.matrix import EMPTY
from graft.pruning import dense
from graft.retrieval import Retrieved
from graft.template import Template
from graft.tree import Source
from tests.graft_reference import TOKENS, Case, K, check, grafted, paths_of
from tests.random_trees import Nodes, drafts, make_tree, tables, templates


@st.composite
def cases(draw: st.DrawFn) -> Case:
    draft = draw(drafts(vocab_size=TOKENS - 1))
    least = draw(st.sampled_from([9, 9, 0]))
    shapes = [draw(templates(least)) for _ in range(draw(st.sampled_from([1, 3])))]
    table = draw(st.sampled_from([True] * 7 + [False])) and draw(tables(TOKENS, K))
    budget = int(draft.kept.max()) + draw(st.integers(0, 14))
    dedup: Dedup = draw(st.sampled_from(["redirect", "redirect", "skip"]))
    return Case(
        draft,
        table if isinstance(table, Tensor) else None,
        shapes,
        budget,
        dedup,
        draw(st.booleans()),
    )


@settings(deadline=None, max_examples=250)
@given(cases())
def test_a_graft_is_what_the_rule_says(case: Case) -> None:
    check(case)


@settings(deadline=None, max_examples=100)
@given(cases())
def test_the_invariants_hold(case: Case) -> None:
    """What a reader relies on, said without the reference."""
    out = grafted(case)
    tree, draft = out.tree, case.draft
    nodes = tree.used[:, 1:]
    drafted = (tree.sources[:, 1:] == Source.DRAFT) & nodes
    fetched = (tree.sources[:, 1:] == Source.RETRIEVED) & nodes
    assert (drafted.sum(1) + fetched.sum(1) + (~nodes).sum(1) == case.budget).all()
    for row in range(tree.batch):
        kept = int(draft.kept[row])
        paths, pool = paths_of(tree, row), paths_of(draft.tree, row)
        assert len({*paths}) == len(paths), "a path stands once"
        assert all(path[:-1] in paths for path in paths[1:])
        assert paths[: kept + 1] == pool[: kept + 1]
        assert drafted[row, :kept].all()
        assert torch.equal(out.scores[row, : kept + 1], draft.scores[row, : kept + 1])
        rest = [paths[i + 1] for i in range(kept, len(paths) - 1) if drafted[row, i]]
        assert rest == sorted(rest, key=pool.index), "refills stand in the order of their scores"
        if not case.refill:
            assert not rest


def row_of(entries: dict[int, list[int]]) -> Tensor:
    """A table that holds only these rows."""
    table = torch.full((TOKENS, K), EMPTY)
    for token, successors in entries.items():
        table[token, : len(successors)] = torch.tensor(successors)
    return table


def draft_of(nodes: Nodes, kept: int, root: int = 0, anchor: int | None = None) -> Draft:
    tree = make_tree([nodes], [root], source=Source.DRAFT)
    scores = -torch.arange(tree.width).unsqueeze(0) / 4
    stage = torch.zeros(1, dtype=torch.int64)
    below = None if anchor is None else torch.tensor([anchor])
    return Draft(tree, scores, torch.tensor([kept]), stage, torch.zeros(1, 0), 1, below)


# The draft holds 1 and 1-2 (kept), 3 and 5 (not kept). The matrix holds all but 5, and more below.
CHAIN: Nodes = [(0, 1), (1, 2), (0, 3), (0, 5)]
TABLE = row_of({0: [1, 3, 4], 1: [2, 5], 2: [3, 4], 3: [5], 4: [0]})
LADDER = Template(((0,), (0, 0), (0, 0, 0), (1,), (1, 0), (0, 1), (2,), (0, 0, 1)))
CASE = Case(draft_of(CHAIN, 2), TABLE, [LADDER], 9)


def test_descendants_hang_under_the_draft_s_node() -> None:
    out = check(CASE)
    assert paths_of(out.tree, 0)[1:] == [
        (1,), (1, 2), (1, 2, 3), (3,), (3, 5), (1, 5), (4,), (1, 2, 4), (5,),
    ]  # fmt: skip
    assert out.tree.sources.tolist() == [[0, 1, 1, 2, 2, 2, 2, 2, 2, 1]]
    assert int(out.redirected) == 2
    # Drafted but not kept, and retrieved: a retrieved node whose score is known.
    assert out.scores[0, 4] == -0.75


def test_skipping_leaves_the_descendants_out() -> None:
    out = check(CASE._replace(dedup="skip"))
    assert paths_of(out.tree, 0)[1:] == [(1,), (1, 2), (3,), (3, 5), (4,), (5,)]
    assert int(out.redirected) == 0


@pytest.mark.parametrize(("budget", "redirected"), [(2, 0), (3, 2), (8, 2), (9, 2), (12, 2)])
def test_template_entries_count_as_redirected_up_to_the_last_slot(
    budget: int, redirected: int
) -> None:
    assert int(check(CASE._replace(budget=budget)).redirected) == redirected


@pytest.mark.parametrize("refill", [False, True])
def test_entries_behind_the_last_retrieved_node_are_redirected_too(refill: bool) -> None:
    case = Case(draft_of([(0, 1), (0, 5)], 1), row_of({0: [1]}), [LADDER], 2, refill=refill)
    assert int(check(case).redirected) == 1


def test_refills_come_after_the_template() -> None:
    draft = draft_of([(0, 5), (0, 2), (2, 2), (0, 4)], 1)
    case = Case(draft, row_of({0: [1, 4]}), [LADDER], 5)
    out = check(case)
    assert paths_of(out.tree, 0)[1:] == [(5,), (1,), (4,), (2,), (2, 2)]
    assert out.tree.sources.tolist() == [[0, 1, 2, 2, 1, 1]]
    out = check(case._replace(refill=False))
    assert out.tree.used.tolist() == [[True, True, True, True, False, False]]


def test_stages_have_their_own_templates() -> None:
    shapes = [Template(((0,), (0, 0))), Template(((2,), (1,))), Template(())]
    draft = no_draft(torch.tensor([0, 0, 0]), dense(4, 1, 1))._replace(stage=torch.arange(3))
    out = check(Case(draft, TABLE, shapes, 4))
    assert [paths_of(out.tree, row)[1:] for row in range(3)] == [
        [(1,), (1, 2)],
        [(4,), (3,)],
        [],
    ]


def test_retrieval_hangs_below_the_anchor() -> None:
    case = Case(draft_of(CHAIN, 2, anchor=2), TABLE, [LADDER], 5)
    out = check(case)
    assert paths_of(out.tree, 0)[1:] == [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 5), (1, 2, 4)]
    assert out.tree.max_depth >= 4


def test_a_draft_without_retrieval_is_cut_or_filled_up_to_the_budget() -> None:
    case = Case(draft_of(CHAIN, 1), None, [], 2)
    assert paths_of(check(case).tree, 0) == [(), (1,), (1, 2)]
    assert paths_of(check(case._replace(refill=False)).tree, 0) == [(), (1,)]
    assert check(case._replace(budget=7)).tree.width == 8


def test_no_budget_gives_the_root_alone() -> None:
    out = check(Case(no_draft(torch.tensor([3, 4]), dense(0, 1, 1)), None, [], 0))
    assert out.tree.tokens.tolist() == [[3], [4]]
    assert out.tree.max_depth == 0


Homes = tuple[Tensor, Tensor]


def no_redirect(draft: Draft, found: Retrieved, dedup: Dedup) -> Homes:
    """Every template node a node of its own."""
    nodes = torch.arange(found.tokens.shape[1])
    home = (draft.tree.width - 1 + nodes).repeat(draft.tree.batch, 1)
    home[:, 0] = 0
    return home, found.found


def tokens_alone(draft: Draft, found: Retrieved, dedup: Dedup) -> Homes:
    """A node taken for its token."""
    home, there = no_redirect(draft, found, dedup)
    same = draft.tree.tokens.unsqueeze(1) == found.tokens.unsqueeze(2)
    same[:, :, 0] = False
    twin = same.to(torch.uint8).argmax(2)
    return home.where(~same.any(2), twin), there


@pytest.mark.parametrize("broken", [no_redirect, tokens_alone])
def test_a_broken_merge_would_be_seen(broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grafting, "_homes", broken)
    with pytest.raises(AssertionError):
        check(CASE)


@pytest.mark.parametrize(
    "change",
    [
        {"dedup": "skip"},
        {"refill": False},
        {"templates": [LADDER.take(3)]},
        {"draft": CASE.draft._replace(kept=torch.tensor([1]))},
        {"draft": CASE.draft._replace(anchor=torch.tensor([2]))},
        {"draft": CASE.draft._replace(scores=CASE.draft.scores - 1)},
        {"table": TABLE.flip(1)},
        {"table": None},
    ],
)
def test_a_graft_by_another_rule_would_be_seen(change: dict[str, Any]) -> None:
    check(CASE)
    with pytest.raises(AssertionError):
        check(CASE, CASE._replace(**change))


def test_refills_before_retrieval_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grafting, "_RETRIEVED", (1 << 21) + 1000)
    monkeypatch.setattr(grafting, "_REFILL", 1 << 20)
    with pytest.raises(AssertionError):
        check(CASE._replace(budget=4))
