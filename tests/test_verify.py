"""The walk: it draws what plain decoding draws, and steps where a child holds the draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graft import verify
from graft.tree import TokenTree, root_tree
from graft.verify import Walk, walk, walk_on_device
from tests.random_trees import FIVE, make_tree, trees

VOCAB = 16


def greedy(logits: Tensor, history: Tensor, length: Tensor, alive: Tensor) -> Tensor:
    return logits.argmax(1)


def wanting(tree: TokenTree, tokens: Sequence[Sequence[int]]) -> Tensor:
    """Logits [B, N, V] under which node i of row b draws tokens[b][i]; the rest draw 15."""
    wanted = torch.full((tree.batch, tree.width), VOCAB - 1)
    for row, values in enumerate(tokens):
        wanted[row, : len(values)] = torch.tensor(values)
    return torch.nn.functional.one_hot(wanted, VOCAB).float()


def histories(tree: TokenTree, lengths: Sequence[int], room: int = 12) -> tuple[Tensor, Tensor]:
    """A history with recognisable tokens: the root at the end, -7 behind it."""
    history = torch.full((tree.batch, room), -7)
    for row, length in enumerate(lengths):
        history[row, :length] = torch.arange(length)
        history[row, length - 1] = tree.tokens[row, 0]
    return history, torch.tensor(lengths)


@pytest.fixture(autouse=True, scope="module", params=["host", "device"])
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here is one of both ways to walk."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "device":
            patch.setattr(verify, "_walk_on_host", walk_on_device)
        yield


def greedy_walk(tree: TokenTree, tokens: Sequence[Sequence[int]]) -> tuple[Walk, list[list[int]]]:
    """The walk from length 2 on, and what it wrote."""
    history, length = histories(tree, [2] * tree.batch)
    taken = walk(tree, wanting(tree, tokens), history, length, greedy)
    return taken, [[t for t in row[2:] if t != -7] for row in history.tolist()]


def accepted_path(taken: Walk, row: int = 0) -> list[int]:
    return taken.nodes[row, 1 : int(taken.accepted[row]) + 1].tolist()


#  FIVE: 6 and 7 under the root, 9 under each of them (nodes 3 and 4)
def test_a_draw_that_no_child_holds_is_the_bonus() -> None:
    taken, written = greedy_walk(make_tree([FIVE], [5]), [[8]])
    assert (taken.accepted.tolist(), written) == ([0], [[8]])


def test_a_draw_that_a_child_holds_is_stepped_to() -> None:
    taken, written = greedy_walk(make_tree([FIVE], [5]), [[6, 9, 0, 4]])
    assert accepted_path(taken) == [1, 3]
    assert written == [[6, 9, 4]]


def test_a_node_is_its_parent_and_token_not_its_token() -> None:
    taken, written = greedy_walk(make_tree([FIVE], [5]), [[7, 0, 9, 1, 2]])
    assert accepted_path(taken) == [2, 4]
    assert written == [[7, 9, 2]]


def test_a_grandchild_is_no_child() -> None:
    taken, written = greedy_walk(make_tree([FIVE], [5]), [[9]])
    assert (accepted_path(taken), written) == ([], [[9]])


def test_the_root_is_not_its_own_child() -> None:
    taken, written = greedy_walk(make_tree([FIVE], [5]), [[5]])
    assert (accepted_path(taken), written) == ([], [[5]])


def test_an_empty_slot_is_not_a_child_that_holds_zero() -> None:
    tree = make_tree([[(0, 6)], [(0, 6), (0, 7)]], [5, 5])
    taken, _ = greedy_walk(tree, [[0], [7]])
    assert taken.accepted.tolist() == [0, 1]


def test_a_child_may_hold_token_zero() -> None:
    taken, written = greedy_walk(make_tree([[(0, 0)]], [5]), [[0, 3]])
    assert (accepted_path(taken), written) == ([1], [[0, 3]])


def test_rows_of_a_batch_end_where_they_end() -> None:
    tree = make_tree([FIVE, FIVE, FIVE], [5, 5, 5])
    taken, written = greedy_walk(tree, [[8], [6, 2], [7, 0, 9, 0, 3]])
    assert taken.accepted.tolist() == [0, 1, 2]
    assert written == [[8], [6, 2], [7, 9, 3]]
    assert taken.nodes.tolist() == [[0, 0, 0], [0, 1, 1], [0, 2, 4]]
    assert [
        row[: a + 1] for row, a in zip(taken.tokens.tolist(), [0, 1, 2], strict=True)
    ] == written


def test_a_tree_of_the_root_alone_is_plain_decoding() -> None:
    taken, written = greedy_walk(root_tree(torch.tensor([5])), [[3]])
    assert (taken.accepted.tolist(), taken.nodes.tolist(), written) == ([0], [[0]], [[3]])


def test_a_token_that_ends_the_request_ends_the_walk() -> None:
    tree = make_tree([FIVE, FIVE], [5, 5])
    history, length = histories(tree, [2, 2])
    logits = wanting(tree, [[6, 9, 0, 4]] * 2)

    def ends(token: Tensor, position: Tensor) -> Tensor:
        return (token == 6) & torch.tensor([True, False])

    taken = walk(tree, logits, history, length, greedy, ends)
    assert taken.accepted.tolist() == [0, 2]
    assert history[:, 2:].tolist() == [[6] + [-7] * 9, [6, 9, 4] + [-7] * 7]


def test_the_end_rule_is_told_the_position() -> None:
    tree = make_tree([FIVE, FIVE], [5, 5])
    history, length = histories(tree, [2, 4])
    logits = wanting(tree, [[6, 9, 0, 4]] * 2)
    taken = walk(tree, logits, history, length, greedy, lambda token, position: position >= 4)
    assert taken.accepted.tolist() == [2, 0]


def test_every_draw_finds_its_own_path_as_history() -> None:
    tree = make_tree([FIVE, FIVE], [5, 5])
    history, length = histories(tree, [2, 3])
    seen: list[list[list[int] | None]] = []

    def choose(logits: Tensor, history: Tensor, length: Tensor, alive: Tensor) -> Tensor:
        rows = zip(history.tolist(), length.tolist(), alive.tolist(), strict=True)
        seen.append([row[:n] if living else None for row, n, living in rows])
        return logits.argmax(1)

    walk(tree, wanting(tree, [[6, 9, 0, 4], [7, 0, 3]]), history, length, choose)
    assert seen == [
        [[0, 5], [0, 1, 5]],
        [[0, 5, 6], [0, 1, 5, 7]],
        [[0, 5, 6, 9], None],
    ]


def law(history: list[int]) -> int:
    """A draw that depends on the whole past."""
    return hash((17, *history)) % 5


@settings(deadline=None, max_examples=120)
@given(trees(most=12, vocab_size=5), st.data())
def test_a_walk_commits_what_plain_decoding_commits(tree: TokenTree, data: st.DataObject) -> None:
    lengths = [data.draw(st.integers(1, 4)) for _ in range(tree.batch)]
    history, length = histories(tree, lengths, room=20)
    before = history.clone()

    def choose(logits: Tensor, history: Tensor, length: Tensor, alive: Tensor) -> Tensor:
        rows = zip(history.tolist(), length.tolist(), strict=True)
        return torch.tensor([law(row[:n]) for row, n in rows])

    taken = walk(tree, torch.zeros(tree.batch, tree.width, 5), history, length, choose)
    for row, start in enumerate(lengths):
        plain = before[row, :start].tolist()
        steps = int(taken.accepted[row])
        for _ in range(steps + 1):
            plain.append(law(plain))
        assert history[row].tolist() == plain + before[row, len(plain) :].tolist()
        assert taken.tokens[row, : steps + 1].tolist() == plain[start:]
        path = taken.nodes[row, : steps + 1]
        assert tree.tokens[row, path[1:]].tolist() == plain[start:-1]
        assert tree.parents[row, path[1:]].tolist() == path[:-1].tolist()
        children = tree.used[row] & (tree.parents[row] == path[-1])
        children[0] = False
        assert plain[-1] not in tree.tokens[row, children].tolist()  # it could not have gone on
