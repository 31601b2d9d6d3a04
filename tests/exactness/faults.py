"""Faults on purpose: ways in which tree decoding goes wrong in practice, put in by hand.

Each takes a monkeypatch and the engine whose target it spoils. It knows no checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from graft import choice, noise, verify
from graft.cache import KVCache
from graft.engine import Engine
from graft.tree import TokenTree
from graft.verify import Choose, Ends, Walk

Patch = pytest.MonkeyPatch
Fault = Callable[[Patch, Engine], None]


# Faults of the target -----------------------------------------------------------------------------


def no_compaction(patch: Patch, engine: Engine) -> None:
    """Accepted rows stay where they are; the first rows of the step are kept instead."""
    commit = engine.target.commit

    def keep_first(paths: Sequence[Sequence[int]]) -> None:
        commit([range(1, len(path) + 1) for path in paths])

    patch.setattr(engine.target, "commit", keep_first)


def positions_by_index(patch: Patch, engine: Engine) -> None:
    """A node's position is its place in the tree, not its depth."""
    forward = engine.target.forward  # type: ignore[attr-defined]

    def by_index(tokens: Tensor, depths: Tensor, step: Any, keep: int) -> Tensor:
        return forward(tokens, torch.arange(tokens.shape[1]).expand_as(depths), step, keep)

    patch.setattr(engine.target, "forward", by_index)


def parent_hidden(patch: Patch, engine: Engine) -> None:
    """A node sees its path but for its parent."""
    ancestors = TokenTree.ancestors

    def hidden(tree: TokenTree) -> Tensor:
        seen = ancestors(tree).scatter(2, tree.parents.unsqueeze(2), False)
        return seen | torch.eye(tree.width, dtype=torch.bool)  # the root is its own parent

    patch.setattr(TokenTree, "ancestors", hidden)


def sibling_seen(patch: Patch, engine: Engine) -> None:
    """A node sees its siblings."""
    ancestors = TokenTree.ancestors

    def seen(tree: TokenTree) -> Tensor:
        siblings = tree.parents.unsqueeze(2) == tree.parents.unsqueeze(1)
        siblings[:, 0] = siblings[:, :, 0] = False
        return ancestors(tree) | siblings

    patch.setattr(TokenTree, "ancestors", seen)


def shifted_parents(patch: Patch, engine: Engine) -> None:
    """The mask is off by one: a node sees the path of the node before its parent."""
    ancestors = TokenTree.ancestors

    def shifted(tree: TokenTree) -> Tensor:
        return ancestors(replace(tree, parents=(tree.parents - 1).clamp(min=0)))

    patch.setattr(TokenTree, "ancestors", shifted)


def forgotten_move(patch: Patch, engine: Engine) -> None:
    """When a request ends, the one that takes its slot finds the old rows."""
    patch.setattr(KVCache, "move", lambda *_: None)


# Faults of the walk -------------------------------------------------------------------------------


def token_alone(patch: Patch, engine: Engine) -> None:
    """A child is any node that holds the token, whoever its parent is."""

    def anywhere(tree: TokenTree, node: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        match = (tree.tokens == token.unsqueeze(1)) & tree.used
        match[:, 0] = False
        return match.to(torch.uint8).argmax(1), match.any(1)

    class Anywhere(dict[tuple[int, int], int]):
        def get(self, edge: tuple[int, int], otherwise: int) -> int:  # type: ignore[override]
            return next((node for (_, held), node in self.items() if held == edge[1]), otherwise)

    children = verify._children
    patch.setattr(verify, "_child", anywhere)
    patch.setattr(verify, "_children", lambda tree: [Anywhere(each) for each in children(tree)])


# (p [B, V], token drawn [B], children's probabilities [B, N], 0 elsewhere) -> node or -1 [B]
Rule = Callable[[Tensor, Tensor, Tensor], Tensor]


def likely_child(p: Tensor, token: Tensor, children: Tensor) -> Tensor:
    """Whatever was drawn, a child with a probability above 0.3 is good enough."""
    return torch.where(children.amax(1) > 0.3, children.argmax(1), -1)


def tied_child(p: Tensor, token: Tensor, children: Tensor) -> Tensor:
    """The best child is taken where it is about as likely as what was drawn."""
    own = p.gather(1, token.unsqueeze(1)).squeeze(1)
    return torch.where(children.amax(1) > 0.8 * own, children.argmax(1), -1)


def peeking(rule: Rule) -> Fault:
    """The walk looks at the draw and at the tree before it decides what was drawn."""

    def fault(patch: Patch, engine: Engine) -> None:
        def walk(
            tree: TokenTree,
            logits: Tensor,
            history: Tensor,
            length: Tensor,
            choose: Choose,
            ends: Ends | None = None,
        ) -> Walk:
            node = torch.zeros_like(length)

            def choose_child(at: Tensor, past: Tensor, here: Tensor, alive: Tensor) -> Tensor:
                nonlocal node
                token = choose(at, past, here, alive)
                p = at.softmax(1)
                mine = (tree.parents == node.unsqueeze(1)) & tree.used
                mine[:, 0] = False
                taken = rule(p, token, p.gather(1, tree.tokens) * mine)
                held = tree.tokens.gather(1, taken.clamp(min=0).unsqueeze(1)).squeeze(1)
                token = torch.where(taken >= 0, held, token)
                child, found = verify._child(tree, node, token)
                node = torch.where(found, child, node)
                return token

            return verify.walk(tree, logits, history, length, choose_child, ends)

        patch.setattr(choice, "walk", walk)

    return fault


def redrawn_bonus(patch: Patch, engine: Engine) -> None:
    """Where no child holds the draw, the bonus is drawn once more."""

    def walk(
        tree: TokenTree,
        logits: Tensor,
        history: Tensor,
        length: Tensor,
        choose: Choose,
        ends: Ends | None = None,
    ) -> Walk:
        path = verify.walk(tree, logits, history, length, choose, ends)
        if tree.width == 1:
            return path
        rows = torch.arange(tree.batch)
        last = logits[rows, path.nodes[rows, path.accepted]]
        again = last.softmax(1).multinomial(1, generator=_RANDOM).squeeze(1)
        path.tokens[rows, path.accepted] = again
        history[rows, length + path.accepted] = again
        return path

    patch.setattr(choice, "walk", walk)


_RANDOM = torch.Generator().manual_seed(0)


# Faults of the noise ------------------------------------------------------------------------------


def noise_without_position(patch: Patch, engine: Engine) -> None:
    """Each position has the same noise."""
    call = noise.GumbelNoise.__call__

    def still(self: Any, position: Tensor, tokens: Tensor | None = None) -> Tensor:
        return call(self, torch.zeros_like(position), tokens)

    patch.setattr(noise.GumbelNoise, "__call__", still)


def noise_by_call(patch: Patch, engine: Engine) -> None:
    """Noise as a generator gives it: by the number of draws so far, not by position."""
    call = noise.GumbelNoise.__call__

    def counted(self: Any, position: Tensor, tokens: Tensor | None = None) -> Tensor:
        self.calls = getattr(self, "calls", -1) + 1
        return call(self, torch.full_like(position, self.calls), tokens)

    patch.setattr(noise.GumbelNoise, "__call__", counted)


# All of them -------------------------------------------------------------------------------------

TARGET_FAULTS: list[Fault] = [
    no_compaction,
    positions_by_index,
    parent_hidden,
    sibling_seen,
    shifted_parents,
    forgotten_move,
]
WALK_FAULTS: dict[str, Fault] = {
    "likely child": peeking(likely_child),
    "tied child": peeking(tied_child),
    "redrawn bonus": redrawn_bonus,
    "token alone": token_alone,
}
