"""Verification: walking a tree with the target's own draws (sampler-match).

At each visited node one token y is drawn from the target's processed distribution given exactly
the committed path. If a child of the node holds y, the walk steps there; else y is the bonus and
the walk ends.

**Theorem (losslessness).** Let the tree be any function of the past: committed tokens, matrix,
head, earlier draws. Then the committed tokens have the law of plain decoding.
*Proof.* The token committed at position t is the draw made at position t, from
p(. | committed path), by the same rule as in plain decoding. The tree decides only whether the
logits for position t + 1 are already at hand (a child holds y) or need another forward; neither
choice changes the draw at t, and the tree was fixed before it. By induction over positions the
joint law is the product of the target's conditionals, for every tree. With noise keyed by (seed,
request row, position) even the draws themselves are the same numbers as in plain decoding, so the
two outputs are equal token by token.

The chance to step further from a node is the sum of p over its children, the most that any rule
reaches with children fixed beforehand.

This module knows trees and logits: not how a token is drawn (`Choose`), nor where trees come from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from graft.tree import TokenTree

# (logits [B, V], history [B, T], length [B], alive [B]) -> tokens [B]: draws the token of position
# length[b], given the tokens before it, and leaves the logits as they are.
Choose = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# (tokens [B], length [B]) -> bool [B]: whether a request ends with the token just drawn.
Ends = Callable[[Tensor, Tensor], Tensor]


class Walk(NamedTuple):
    """The path taken through each tree. Level d is the draw made at depth d."""

    nodes: Tensor  # int64 [B, D + 1], node visited at each level; the last one repeats
    tokens: Tensor  # int64 [B, D + 1], token drawn there; valid up to level `accepted`
    accepted: Tensor  # int64 [B], nodes accepted; the draw at this level is the bonus


def walk(
    tree: TokenTree,
    logits: Tensor,
    history: Tensor,
    length: Tensor,
    choose: Choose,
    ends: Ends | None = None,
) -> Walk:
    """Walk every tree of the batch, level by level; on a CPU in the host's own numbers.

    Args:
        tree: B trees of N nodes.
        logits: [B, N, V], the target's logits after each node.
        history: int64 [B, T], committed tokens; the walk writes its draws behind them, so that
            `choose` finds the path as history.
        length: int64 [B], committed tokens, the root included.
        choose: draws one token per row.
        ends: where given, rows stop at a token that ends their request (needed where drawing
            has side effects, such as a user's stateful processor).
    """
    way = _walk_on_host if tree.tokens.device.type == "cpu" else walk_on_device
    return way(tree, logits, history, length, choose, ends)


def walk_on_device(
    tree: TokenTree,
    logits: Tensor,
    history: Tensor,
    length: Tensor,
    choose: Choose,
    ends: Ends | None = None,
) -> Walk:
    """`walk` without a look at any number: all levels of the deepest path are walked."""
    rows = torch.arange(tree.batch, device=tree.tokens.device)
    node = torch.zeros_like(length)
    alive = torch.ones_like(length, dtype=torch.bool)
    accepted = torch.zeros_like(length)
    nodes, drawn = [], []
    for level in range(tree.max_depth + 1):
        here = length + level
        token = choose(logits[rows, node], history, here, alive)
        # A finished row keeps what stands there.
        history[rows, here] = torch.where(alive, token, history[rows, here])
        nodes.append(node)
        drawn.append(token)
        if level == tree.max_depth:
            break
        child, found = _child(tree, node, token)
        alive = alive & found
        if ends is not None:
            alive = alive & ~ends(token, here)
        node = torch.where(alive, child, node)
        accepted = accepted + alive
    return Walk(torch.stack(nodes, 1), torch.stack(drawn, 1), accepted)


def _child(tree: TokenTree, node: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """The child of `node` that holds `token`, and whether there is one (int64 and bool [B])."""
    match = (tree.parents == node.unsqueeze(1)) & (tree.tokens == token.unsqueeze(1)) & tree.used
    match[:, 0] = False  # the root is nobody's child
    return match.to(torch.uint8).argmax(1), match.any(1)


def _walk_on_host(
    tree: TokenTree,
    logits: Tensor,
    history: Tensor,
    length: Tensor,
    choose: Choose,
    ends: Ends | None = None,
) -> Walk:
    """`walk` where looking is free: it ends with the last path, and children are found by hand."""
    rows, below = range(tree.batch), _children(tree) if tree.max_depth else []
    node, alive, accepted = [0] * tree.batch, [True] * tree.batch, [0] * tree.batch
    nodes: list[list[int]] = []
    drawn: list[list[int]] = []
    flat = logits.flatten(0, 1)
    going = torch.ones(tree.batch, dtype=torch.bool)
    for level in range(tree.max_depth + 1):
        here = length + level
        places = [b * tree.width + node[b] for b in rows]
        # One row is looked at where it stands; several are copied together.
        first = places[0]
        seen = flat[first : first + 1] if tree.batch == 1 else flat[places]
        token = choose(seen, history, here, going)
        # A finished row keeps what stands there.
        written = (
            token if all(alive) else token.where(going, history.gather(1, here[:, None])[:, 0])
        )
        history.scatter_(1, here.unsqueeze(1), written.unsqueeze(1))
        said = token.tolist()
        nodes.append(node)
        drawn.append(said)
        if level == tree.max_depth:
            break
        over = ends(token, here).tolist() if ends is not None else [False] * tree.batch
        child = [below[b].get((node[b], said[b]), 0) for b in rows]
        before, alive = alive, [alive[b] and child[b] > 0 and not over[b] for b in rows]
        if not any(alive):
            break
        if alive != before:
            going = torch.tensor(alive)
        node = [child[b] if alive[b] else node[b] for b in rows]
        accepted = [accepted[b] + alive[b] for b in rows]
    walked = torch.tensor([nodes, drawn]).transpose(1, 2)
    return Walk(walked[0], walked[1], torch.tensor(accepted))


def _children(tree: TokenTree) -> list[dict[tuple[int, int], int]]:
    """Per sequence, the node below a parent that holds a token."""
    out = []
    for tokens, parents, count in zip(
        tree.tokens.tolist(), tree.parents.tolist(), tree.used.sum(1).tolist(), strict=True
    ):
        edges = zip(parents[1:count], tokens[1:count], strict=True)
        out.append({edge: node for node, edge in enumerate(edges, 1)})
    return out
