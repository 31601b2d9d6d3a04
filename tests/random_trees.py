"""Trees, drafts, templates and tables for tests: written out by hand, or drawn at random.

Invariant: what is made here keeps the invariants of `TokenTree`, `Draft` and `Template`.
It knows no models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from graft.draft import Draft
from graft.matrix import EMPTY
from graft.template import RankPath, Template
from graft.tree import Source, TokenTree

# The nodes of a tree behind its root: (parent, token) each.
Nodes = Sequence[tuple[int, int]]

#        root
#       /    \
#   1: 6      2: 7
#   |         |
#   3: 9      4: 9
FIVE: Nodes = [(0, 6), (0, 7), (1, 9), (2, 9)]


def make_tree(
    rows: Sequence[Nodes],
    roots: Sequence[int],
    max_depth: int | None = None,
    source: Source = Source.RETRIEVED,
) -> TokenTree:
    """A batch of trees, all nodes of one source; short rows end in empty slots."""
    width = 1 + max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.int64)
    parents, depths = torch.zeros_like(tokens), torch.ones_like(tokens)
    sources = torch.zeros_like(tokens)
    used = torch.zeros_like(tokens, dtype=torch.bool)
    for b, (row, root) in enumerate(zip(rows, roots, strict=True)):
        tokens[b, 0], depths[b, 0], used[b, 0] = root, 0, True
        for node, (parent, token) in enumerate(row, 1):
            tokens[b, node], parents[b, node], used[b, node] = token, parent, True
            depths[b, node] = depths[b, parent] + 1
            sources[b, node] = source
    deepest = int((depths * used).max())
    return TokenTree(tokens, parents, depths, used, sources, max_depth or deepest)


def path_of(tree: TokenTree, row: int, node: int) -> list[int]:
    """Nodes from the root to `node`, both included."""
    path = [node]
    while path[0]:
        path.insert(0, int(tree.parents[row, path[0]]))
    return path


@st.composite
def nodes(
    draw: st.DrawFn, most: int = 12, vocab_size: int = 16, least: int = 0
) -> list[tuple[int, int]]:
    """The nodes of one random tree; siblings hold different tokens."""
    out: list[tuple[int, int]] = []
    for node in range(1, draw(st.integers(least, most)) + 1):
        parent, token = draw(st.integers(0, node - 1)), draw(st.integers(0, vocab_size - 1))
        taken = {t for p, t in out if p == parent}
        free = [t % vocab_size for t in range(token, token + vocab_size)]
        token = next((t for t in free if t not in taken), vocab_size)
        out.append((parent, token) if token < vocab_size else (node - 1, 0))
    return out


@st.composite
def trees(draw: st.DrawFn, most: int = 12, batch: int = 3, vocab_size: int = 16) -> TokenTree:
    """A batch of random trees of different sizes."""
    rows = draw(st.lists(nodes(most, vocab_size), min_size=1, max_size=batch))
    token = st.integers(0, vocab_size - 1)
    roots = draw(st.lists(token, min_size=len(rows), max_size=len(rows)))
    return make_tree(rows, roots)


@st.composite
def templates(draw: st.DrawFn, least: int = 0) -> Template:
    """Random prefix-closed orders of rank paths, with ranks 0 to 3; `least`: paths drawn, some of
    which are the same."""
    paths: list[RankPath] = []
    for _ in range(draw(st.integers(least, 12))):
        path = (*draw(st.sampled_from([(), *paths])), draw(st.integers(0, 3)))
        if path not in paths:
            paths.append(path)
    return Template(tuple(paths))


@st.composite
def drafts(draw: st.DrawFn, most: int = 9, batch: int = 3, vocab_size: int = 6) -> Draft:
    """Random drafts: candidates best first, of which a random number is kept; random anchors
    among those kept, or none; stages 0 to 2."""
    least = draw(st.sampled_from([0, most // 2]))
    rows = draw(st.lists(nodes(most, vocab_size, least), min_size=1, max_size=batch))
    roots = draw(st.tuples(*[st.integers(0, vocab_size - 1)] * len(rows)))
    tree = make_tree(rows, roots, source=Source.DRAFT)
    kept = [draw(st.integers(min(least // 2, len(row)), len(row))) for row in rows]
    anchor = [draw(st.integers(0, number)) for number in kept] if draw(st.booleans()) else None
    falling = -torch.arange(tree.width) / 8
    return Draft(
        tree=tree,
        scores=falling.expand(tree.batch, -1).where(tree.used, -torch.inf),
        kept=torch.tensor(kept),
        stage=torch.tensor(draw(st.tuples(*[st.integers(0, 2)] * len(rows)))),
        confidence=torch.full((tree.batch, 2), 0.5),
        steps=1,
        anchor=None if anchor is None else torch.tensor(anchor),
    )


@st.composite
def tables(draw: st.DrawFn, rows: int = 16, k: int = 4, tokens: int | None = None) -> Tensor:
    """Successor tables [rows, k]: distinct tokens per row, some of them missing."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    full = torch.rand(rows, tokens or rows, generator=generator).argsort(dim=1)[:, :k]
    missing = torch.rand(rows, k, generator=generator) < draw(st.sampled_from([0.0, 0.3, 0.8]))
    return full.masked_fill(missing, EMPTY)
