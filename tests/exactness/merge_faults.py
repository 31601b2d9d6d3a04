"""Faults on purpose of trees that hold drafted and retrieved nodes, put in by hand.

Each takes a monkeypatch and the engine whose trees it spoils. It knows no checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graft import grafting
from graft.draft import Draft
from graft.engine import Engine
from graft.grafting import Grafted
from graft.tree import Source, TokenTree
from tests.exactness.faults import Fault, Patch


def _changing(change: Callable[[TokenTree], TokenTree]) -> Fault:
    """A fault that changes each tree after it was put together."""

    def fault(patch: Patch, engine: Engine) -> None:
        def changed(draft: Draft, *args: Any, **options: Any) -> Grafted:
            grafted = grafting.graft(draft, *args, **options)
            return grafted._replace(tree=change(grafted.tree))

        patch.setattr("graft.grafter.graft", changed)

    return fault


def _grafted_on_draft(tree: TokenTree) -> Tensor:
    """bool [B, N]: retrieved nodes whose parent is a draft node: what a redirect leads to."""
    above = tree.sources.gather(1, tree.parents)
    return (tree.sources == Source.RETRIEVED) & (above == Source.DRAFT)


def masked_by_template(patch: Patch, engine: Engine) -> None:
    """What hangs below a redirected node sees the root alone, where the template begins."""
    ancestors = TokenTree.ancestors

    def template(tree: TokenTree) -> Tensor:
        parents = tree.parents.where(~_grafted_on_draft(tree), 0)
        return ancestors(replace(tree, parents=parents))

    patch.setattr(TokenTree, "ancestors", template)


def _wrong_parents(tree: TokenTree) -> TokenTree:
    """What hangs below a redirected node keeps its depth and hangs at the root."""
    return replace(tree, parents=tree.parents.where(~_grafted_on_draft(tree), 0))


def _late_depths(tree: TokenTree) -> TokenTree:
    """What hangs below a redirected node stands one position too far."""
    late = replace(tree, depths=tree.depths + _grafted_on_draft(tree).long())
    return replace(late, max_depth=tree.max_depth + 1)


def _lost_levels(tree: TokenTree) -> TokenTree:
    """The bound of the depths is that of one source alone: deeper nodes are never reached."""
    return replace(tree, max_depth=max(1, tree.max_depth - 2))


def no_redirect(patch: Patch, engine: Engine) -> None:
    """Retrieved nodes never meet drafted ones: a node may stand in a tree twice."""
    homes = grafting._homes

    def apart(draft: Draft, retrieved: Any, dedup: Any) -> tuple[Tensor, Tensor]:
        nobody = replace(draft.tree, used=torch.zeros_like(draft.tree.used))
        return homes(draft._replace(tree=nobody), retrieved, dedup)

    patch.setattr(grafting, "_homes", apart)


def commit_by_entry(patch: Patch, engine: Engine) -> None:
    """Rows of retrieved nodes are kept by their place among all candidates, as if those that were
    drafted and not kept had slots too."""
    commit = engine.target.commit
    entries: list[Tensor] = []  # int64 [B, N] of the last trees

    def seen(draft: Draft, *args: Any, **options: Any) -> Grafted:
        grafted = grafting.graft(draft, *args, **options)
        tree, dropped = grafted.tree, draft.tree.width - 1 - draft.kept
        index = torch.arange(tree.width) + (tree.sources == Source.RETRIEVED) * dropped[:, None]
        entries[:] = [index.clamp(max=tree.width - 1)]
        return grafted

    def by_entry(paths: Sequence[Sequence[int]]) -> None:
        commit([entries[0][row, list(path)].tolist() for row, path in enumerate(paths)])

    patch.setattr("graft.grafter.graft", seen)
    patch.setattr(engine.target, "commit", by_entry)


MERGE_FAULTS: dict[str, Fault] = {
    "masked by template": masked_by_template,
    "late depths": _changing(_late_depths),
    "commit by entry": commit_by_entry,
}
# Trees that break an invariant. The first two change what is said, if only where such a node is
# accepted; the others never do, as no fault of a drafter does (`head_faults`): by the theorem any
# tree whose mask and positions are those of its parents gives the same tokens.
BROKEN_TREES: dict[str, Fault] = {
    "wrong parents": _changing(_wrong_parents),
    "late depths": _changing(_late_depths),
    "no redirect": no_redirect,
    "lost levels": _changing(_lost_levels),
}
SILENT = ("no redirect", "lost levels")
