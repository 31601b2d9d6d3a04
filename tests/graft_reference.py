"""What grafting should give: a slow reference that keeps paths in a dictionary, and its checks.

The reference follows the rule in words: kept draft nodes, then the stage's template in its order,
then what was drafted but not kept. It knows no tensors but those it compares with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from graft.draft import Draft
from graft.grafting import Dedup, Grafted, graft
from graft.matrix import EMPTY, AdjacencyMatrix
from graft.retrieval import MatrixRetriever, Retrieved
from graft.template import RankPath, Template
from graft.tree import Source, TokenTree

TOKENS, K = 6, 5
Path = tuple[int, ...]  # tokens behind the root


class Case(NamedTuple):
    """What a graft is made of, and how."""

    draft: Draft
    table: Tensor | None  # [TOKENS, K]; None retrieves nothing
    templates: Sequence[Template]  # one for all stages or one per stage
    budget: int
    dedup: Dedup = "redirect"
    refill: bool = True


class Wanted(NamedTuple):
    """A sequence's tree: path -> (source, score) in tree order; and its counts."""

    nodes: dict[Path, tuple[Source, float]]
    redirected: int
    asked: int
    found: int


def paths_of(tree: TokenTree, row: int) -> list[Path]:
    """The path of every used node, the root's first."""
    paths: list[Path] = [()]
    for node in range(1, int(tree.used[row].sum())):
        parent, token = int(tree.parents[row, node]), int(tree.tokens[row, node])
        paths.append((*paths[parent], token))
    return paths


def successor(case: Case, token: int, rank: int) -> int:
    assert case.table is not None
    return int(case.table[token, rank])


def looked_up(case: Case, start: int) -> tuple[int, int]:
    """Lookups and hits over the templates of all stages."""
    tokens: dict[RankPath, int] = {(): start}
    asked = 0
    for path in sorted({path for t in case.templates for path in t.paths}, key=len):
        if path[:-1] in tokens:
            asked += 1
            token = successor(case, tokens[path[:-1]], path[-1])
            if token != EMPTY:
                tokens[path] = token
    return asked, len(tokens) - 1


def reference(case: Case, row: int) -> Wanted:
    """The rule in words, one sequence at a time."""
    draft = case.draft
    paths, kept = paths_of(draft.tree, row), int(draft.kept[row])
    scores = dict(zip(paths, draft.scores[row].tolist(), strict=False))
    root = int(draft.tree.tokens[row, 0])
    tree = {path: (Source.DRAFT, scores[path]) for path in paths[1 : kept + 1]}
    redirected = asked = found = 0
    if case.table is not None:
        anchor = () if draft.anchor is None else paths[int(draft.anchor[row])]
        asked, found = looked_up(case, (root, *anchor)[-1])
        stage = int(draft.stage[row]) if len(case.templates) > 1 else 0
        at: dict[RankPath, Path] = {(): anchor}
        for ranks in case.templates[stage].paths:
            if len(tree) == case.budget:
                break
            above = at.get(ranks[:-1])
            if above is None:
                continue
            token = successor(case, (root, *above)[-1], ranks[-1])
            path = (*above, token)
            held = path in tree
            if token == EMPTY or (held and case.dedup == "skip"):
                continue
            at[ranks] = path
            redirected += held
            if not held:
                tree[path] = (Source.RETRIEVED, scores.get(path, math.nan))
    for path in paths[1:]:
        if case.refill and path not in tree and len(tree) < case.budget:
            tree[path] = (Source.DRAFT, scores[path])
    return Wanted(tree, redirected, asked, found)


def retrieved(case: Case) -> Retrieved | None:
    if case.table is None:
        return None
    matrix = AdjacencyMatrix(TOKENS, K, torch.device("cpu"))
    matrix.ids[:-1] = case.table.to(torch.int32)
    tree, anchor = case.draft.tree, case.draft.anchor
    place = torch.zeros_like(case.draft.kept) if anchor is None else anchor
    starts = tree.tokens.gather(1, place.unsqueeze(1)).squeeze(1)
    return MatrixRetriever(matrix, case.templates, "off").look_up(starts)


def grafted(case: Case) -> Grafted:
    found = retrieved(case)
    return graft(case.draft, found, case.budget, dedup=case.dedup, refill=case.refill)


def check(case: Case, made: Case | None = None) -> Grafted:
    """Graft; assert the invariants and equality with the reference.

    `made`: what to graft instead, for controls.
    """
    out = grafted(made or case)
    out.tree.check_integrity()
    assert out.tree.width == case.budget + 1
    assert out.scores.shape == out.tree.tokens.shape
    assert out.tree.tokens[:, 0].tolist() == case.draft.tree.tokens[:, 0].tolist()
    for row in range(out.tree.batch):
        check_row(case, out, row)
    return out


def check_row(case: Case, out: Grafted, row: int) -> None:
    tree = out.tree
    wanted = reference(case, row)
    size = 1 + len(wanted.nodes)
    assert tree.used[row].tolist() == [True] * size + [False] * (tree.width - size)
    paths = paths_of(tree, row)
    assert paths == [(), *wanted.nodes]
    assert tree.depths[row, :size].tolist() == [len(path) for path in paths]
    sources = [Source.TARGET, *(source for source, _ in wanted.nodes.values())]
    assert tree.sources[row, :size].tolist() == sources
    scores = [0.0, *(score for _, score in wanted.nodes.values())]
    assert out.scores[row, :size].tolist() == pytest.approx(scores, nan_ok=True)
    assert out.scores[row, size:].isnan().all()
    assert tree.tokens[row, size:].tolist() == [0] * (tree.width - size)
    counts = (out.redirected, out.lookups, out.hits)
    assert [int(count[row]) for count in counts] == list(wanted[1:])
