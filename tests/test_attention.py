"""Tree attention against a dense reference that knows only positions and paths."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from graft.attention import NAME, Step, tree_attention
from graft.tree import TokenTree
from tests.random_trees import FIVE, make_tree, path_of, trees

DIM, KV_HEADS = 8, 2


def seen_keys(tree: TokenTree, row: int, node: int, start: int, window: int | None) -> list[int]:
    """Keys that a node may see, from first principles: the past and its path, within the window."""
    path = path_of(tree, row, node) if tree.used[row, node] else [0, node]
    position = {key: key for key in range(start)}
    position |= {start + n: start + int(tree.depths[row, n]) for n in path}
    own = start + int(tree.depths[row, node])
    return sorted(key for key, at in position.items() if window is None or own - at < window)


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tree: TokenTree,
    starts: list[int],
    window: int | None,
    softcap: float | None,
    scaling: float,
) -> Tensor:
    out = torch.zeros(*query.shape[:3], value.shape[-1]).transpose(1, 2).contiguous()
    groups = query.shape[1] // key.shape[1]
    for row, start in enumerate(starts):
        for node in range(tree.width):
            keys = seen_keys(tree, row, node, start, window)
            for head in range(query.shape[1]):
                scores = key[row, head // groups, keys] @ query[row, head, node] * scaling
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                out[row, node, head] = scores.softmax(0) @ value[row, head // groups, keys]
    return out


def rows_for(tree: TokenTree, starts: list[int], groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; rows behind a sequence's own end are loud, so that they show."""
    end = max(starts) + tree.width
    query = torch.randn(tree.batch, KV_HEADS * groups, tree.width, DIM)
    key, value = torch.randn(2, tree.batch, KV_HEADS, end, DIM)
    for row, start in enumerate(starts):
        key[row, :, start + tree.width :] = 30.0
        value[row, :, start + tree.width :] = 1e4
    return query, key, value


@settings(deadline=None, max_examples=60)
@given(
    trees(most=8),
    st.data(),
    st.sampled_from([None, 1, 2, 5]),
    st.sampled_from([None, 2.0]),
    st.sampled_from([1, 3]),
)
def test_rows_see_their_past_and_path_and_nothing_else(
    tree: TokenTree, data: st.DataObject, window: int | None, softcap: float | None, groups: int
) -> None:
    starts = [data.draw(st.integers(0, 7)) for _ in range(tree.batch)]
    query, key, value = rows_for(tree, starts, groups)
    step = Step(0, starts, tree.ancestors(), tree.depths)
    out, weights = tree_attention(
        nn.Module(),
        query,
        key,
        value,
        None,
        graft_step=step,
        scaling=0.3,
        sliding_window=window,
        softcap=softcap,
    )
    assert weights is None
    wanted = reference(query, key, value, tree, starts, window, softcap, 0.3)
    torch.testing.assert_close(out, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_the_default_scale_is_that_of_the_head_dimension(softcap: float | None) -> None:
    tree = make_tree([FIVE], [5])
    query, key, value = rows_for(tree, [3], 2)
    step = Step(0, [3], tree.ancestors(), tree.depths)
    out, _ = tree_attention(nn.Module(), query, key, value, None, graft_step=step, softcap=softcap)
    wanted = reference(query, key, value, tree, [3], None, softcap, 1 / math.sqrt(DIM))
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)


def test_values_may_be_narrower_than_keys() -> None:
    tree = make_tree([FIVE], [5])
    query, key, value = rows_for(tree, [3], 2)
    step = Step(0, [3], tree.ancestors(), tree.depths)
    out, _ = tree_attention(nn.Module(), query, key, value[..., :5], None, graft_step=step)
    full, _ = tree_attention(nn.Module(), query, key, value, None, graft_step=step)
    torch.testing.assert_close(out, full[..., :5])


def test_a_row_that_is_no_ancestor_does_not_matter() -> None:
    tree = make_tree([FIVE], [5])
    query, key, value = rows_for(tree, [3], 1)
    step = Step(0, [3], tree.ancestors(), tree.depths)
    before, _ = tree_attention(nn.Module(), query, key, value, None, graft_step=step)
    key[0, :, 3 + 1], value[0, :, 3 + 1] = 9.0, 99.0  # node 1
    after, _ = tree_attention(nn.Module(), query, key, value, None, graft_step=step)
    changed = (before != after).flatten(2).any(2)
    assert changed.tolist() == [[False, True, False, True, False]]


def test_keys_behind_the_window_are_not_read() -> None:
    """They may hold anything, even no number."""
    tree, starts = make_tree([FIVE, FIVE], [1, 2]), [9, 7]
    query, key, value = rows_for(tree, starts, 2)
    step = Step(0, starts, tree.ancestors(), tree.depths)
    assert [step.first_seen(w) for w in (None, 3, 8, 100)] == [0, 5, 0, 0]

    def out() -> Tensor:
        return tree_attention(
            nn.Module(), query, key, value, None, graft_step=step, sliding_window=3
        )[0]

    before = out()
    key[:, :, :5] = value[:, :, :5] = torch.nan
    assert torch.equal(out(), before)


def test_layers_with_one_window_share_one_mask() -> None:
    tree = make_tree([FIVE], [5])
    step = Step(0, [3], tree.ancestors(), tree.depths)
    like = torch.zeros(1)
    assert step.bias(None, 2, like) is step.bias(None, 2, like)
    assert step.bias(2, 2, like) is not step.bias(None, 2, like)
    assert step.bias(None, 2, like.bfloat16()).dtype == torch.bfloat16
    assert step.bias(None, 2, like).shape == (1, 1, 2 * 5, 3 + 5)


def test_a_step_knows_its_extent() -> None:
    tree = make_tree([FIVE, FIVE], [5, 5])
    step = Step(4, [3, 9], tree.ancestors(), tree.depths)
    assert (step.first, step.batch, step.width, step.end) == (4, 2, 5, 14)


def test_a_call_without_its_step_is_refused() -> None:
    rows = torch.zeros(1, 1, 1, DIM)
    with pytest.raises(NotImplementedError, match="Module does not pass on its keywords"):
        tree_attention(nn.Module(), rows, rows, rows, None)


def test_attention_sinks_are_refused() -> None:
    rows = torch.zeros(1, 1, 1, DIM)
    step = Step(0, [0], torch.ones(1, 1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(NotImplementedError, match="Module has attention sinks"):
        tree_attention(nn.Module(), rows, rows, rows, None, graft_step=step, s_aux=torch.zeros(1))


def test_transformers_finds_the_function_by_its_name() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert ALL_ATTENTION_FUNCTIONS[NAME] is tree_attention
