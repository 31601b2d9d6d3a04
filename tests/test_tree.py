"""TokenTree: visibility, narrowing, and a check that finds every broken invariant."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from graft.tree import Source, TokenTree, root_tree
from tests.random_trees import FIVE, make_tree, path_of, trees


def five() -> TokenTree:
    return make_tree([FIVE, [*FIVE, (3, 1)]], [5, 5])


@settings(deadline=None, max_examples=60)
@given(trees())
def test_a_node_sees_its_path_and_no_other_node(tree: TokenTree) -> None:
    visible = tree.ancestors()
    for row in range(tree.batch):
        for node in range(tree.width):
            used = bool(tree.used[row, node])
            path = path_of(tree, row, node) if used else [0, node]
            assert visible[row, node].nonzero().flatten().tolist() == sorted({*path})


@settings(deadline=None, max_examples=30)
@given(trees())
def test_a_loose_bound_on_the_depth_changes_no_visibility(tree: TokenTree) -> None:
    loose = replace(tree, max_depth=tree.max_depth + 5)
    assert torch.equal(loose.ancestors(), tree.ancestors())


@settings(deadline=None, max_examples=30)
@given(trees())
def test_random_trees_keep_the_invariants(tree: TokenTree) -> None:
    tree.check_integrity()


def test_batch_and_width_are_those_of_the_tensors() -> None:
    assert (five().batch, five().width) == (2, 6)


def test_narrow_keeps_the_first_columns_of_everything() -> None:
    wide = five()
    tree = wide.narrow(3)
    for name in ("tokens", "parents", "depths", "used", "sources"):
        assert torch.equal(getattr(tree, name), getattr(wide, name)[:, :3])
    assert (tree.width, tree.max_depth) == (3, wide.max_depth)
    tree.check_integrity()


def test_narrow_to_the_same_width_is_the_same_tree() -> None:
    tree = five()
    assert tree.narrow(tree.width) is tree


def test_narrow_to_the_root_keeps_visibility_legal() -> None:
    assert five().narrow(1).ancestors().all()


def test_slots_that_are_all_empty_see_the_root_and_themselves() -> None:
    tree = replace(five().narrow(3), used=torch.tensor([[True, False, False]] * 2), max_depth=0)
    assert tree.ancestors()[0].tolist() == [
        [True, False, False],
        [True, True, False],
        [True, False, True],
    ]


def test_root_tree_holds_the_roots_alone() -> None:
    tree = root_tree(torch.tensor([3, 0]))
    tree.check_integrity()
    assert tree.tokens.tolist() == [[3], [0]]
    assert tree.used.all()
    assert tree.sources.tolist() == [[Source.TARGET]] * 2
    assert tree.max_depth == 0
    assert tree.ancestors().tolist() == [[[True]], [[True]]]


def test_the_same_token_under_different_parents_is_legal() -> None:
    five().check_integrity()


@pytest.mark.parametrize(
    ("field", "place", "value", "message"),
    [
        ("used", (0, 0), False, "root is always used"),
        ("depths", (1, 0), 1, "root has depth 0"),
        ("used", (0, 2), False, "used nodes come first"),
        ("parents", (0, 2), 2, "stands before its children"),
        ("parents", (0, 1), 3, "stands before its children"),
        ("depths", (0, 3), 1, "parent's depth plus one"),
        ("parents", (0, 3), 0, "parent's depth plus one"),
        ("depths", (0, 5), 9, "max_depth is a bound"),
        ("tokens", (0, 2), 6, "different tokens"),
    ],
)
def test_check_integrity_names_the_broken_invariant(
    field: str, place: tuple[int, int], value: int, message: str
) -> None:
    tree = five()
    values: Tensor = getattr(tree, field)
    values[place] = value
    with pytest.raises(AssertionError, match=message):
        tree.check_integrity()


def test_check_integrity_finds_a_bound_that_is_too_low() -> None:
    with pytest.raises(AssertionError, match="max_depth"):
        replace(five(), max_depth=1).check_integrity()
