"""Templates: which successors of successors to retrieve, best first.

A template is an ordered list of rank paths. Path (0, 2) is the third best successor of the best
successor of the root. A path stands behind its parent, so any prefix of a template is a template
for a smaller budget. The order is by measured value: how often a path's ranks are what the target
says next (`derive`). The paper's own shapes were not published in full; ours are measured.

This module knows ranks alone: no tokens, no matrix.
"""

from __future__ import annotations

import heapq
import json
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

RankPath = tuple[int, ...]


class Level(NamedTuple):
    """The nodes of one depth, int64 [n] each."""

    nodes: Tensor
    parents: Tensor
    ranks: Tensor


@dataclass(frozen=True)
class Template:
    """Rank paths in order of value, parents before children.

    Node i of a template is path i - 1; node 0 is the root.

    Raises:
        ValueError: if a path is repeated or stands before its parent.
    """

    paths: tuple[RankPath, ...]

    def __post_init__(self) -> None:
        seen: set[RankPath] = {()}
        for path in self.paths:
            if path in seen or path[:-1] not in seen or min(path) < 0:
                raise ValueError(
                    f"template path {list(path)} is repeated, has a negative rank, or stands "
                    "before its parent"
                )
            seen.add(path)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def max_depth(self) -> int:
        return max((len(path) for path in self.paths), default=0)

    @property
    def ranks_used(self) -> int:
        """Columns of the matrix that the template reads."""
        return max((max(path) for path in self.paths), default=-1) + 1

    def take(self, size: int) -> Template:
        """The `size` most valuable paths (all, if there are fewer)."""
        return Template(self.paths[:size])

    def within(self, ranks: int) -> Template:
        """The paths that read only the first `ranks` columns of a matrix."""
        return Template(tuple(path for path in self.paths if max(path) < ranks))

    @cached_property
    def _nodes(self) -> list[tuple[int, int, int]]:
        """(depth, parent node, rank) of nodes 1, 2, ..."""
        index = {(): 0} | {path: i for i, path in enumerate(self.paths, 1)}
        return [(len(path), index[path[:-1]], path[-1]) for path in self.paths]

    def parents(self, device: torch.device) -> Tensor:
        """int64 [1 + size]: parent of each node; the root's is itself."""
        return torch.tensor([0, *(parent for _, parent, _ in self._nodes)], device=device)

    def depths(self, device: torch.device) -> Tensor:
        """int64 [1 + size]."""
        return torch.tensor([0, *(depth for depth, _, _ in self._nodes)], device=device)

    def levels(self, device: torch.device) -> list[Level]:
        """Per depth from 1 on."""
        out = []
        for depth in range(1, self.max_depth + 1):
            rows = [(i, p, r) for i, (d, p, r) in enumerate(self._nodes, 1) if d == depth]
            out.append(Level(*torch.tensor(rows, device=device).unbind(1)))
        return out


def derive(
    ranks: Sequence[Sequence[int]],
    size: int,
    max_depth: int = 12,
    starts: Sequence[Sequence[bool]] | None = None,
) -> Template:
    """The `size` rank paths that real text follows most often.

    Args:
        ranks: for each text, at each position, the rank at which the matrix of that moment held
            the token that came next; -1 where it did not hold it.
        size: paths wanted.
        max_depth: longest path.
        starts: for each position, whether paths are counted from there; None counts from all.

    Counted frequencies order the paths that were seen often; a path too rare to count is worth
    its parent's frequency times its last rank's share at any depth (the product form). [ours]
    """
    counts: Counter[RankPath] = Counter()
    last: Counter[int] = Counter()
    total = 0
    for number, text in enumerate(ranks):
        last.update(text)
        for start in range(len(text)):
            if starts is not None and not starts[number][start]:
                continue
            total += 1
            for end in range(start + 1, min(start + max_depth, len(text)) + 1):
                if text[end - 1] < 0:
                    break
                counts[tuple(text[start:end])] += 1
    width = max((rank for rank in last if rank >= 0), default=-1) + 1
    share = [last[rank] / max(last.total(), 1) for rank in range(width)]

    def value(path: RankPath, parent: float) -> float:
        seen = counts[path]
        return seen / total if seen >= 20 else min(parent, parent * share[path[-1]])

    # Best-first search: a child is never worth more than its parent.
    heap: list[tuple[float, RankPath]] = [(-value((r,), 1.0), (r,)) for r in range(width)]
    heapq.heapify(heap)
    paths: list[RankPath] = []
    while heap and len(paths) < size:
        worth, path = heapq.heappop(heap)
        paths.append(path)
        if len(path) < max_depth:
            for rank in range(width):
                child = (*path, rank)
                heapq.heappush(heap, (-min(value(child, -worth), -worth), child))
    return Template(tuple(paths))


def default_template() -> Template:
    """The template that ships: derived from answers of the default model (docs/template.md)."""
    text = resources.files("graft").joinpath("data/template.json").read_text(encoding="utf-8")
    return Template(tuple(tuple(path) for path in json.loads(text)["paths"]))


def load_template(path: str | Path) -> Template:
    """A template from a JSON file: {"paths": [[0], [0, 0], [1], ...]}, best first.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """
    try:
        paths = json.loads(Path(path).read_text(encoding="utf-8"))["paths"]
        return Template(tuple(tuple(map(operator.index, each)) for each in paths))
    except OSError as error:
        raise ValueError(f"template {path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f'template {path} is no JSON file of the form {{"paths": [[0], [0, 0], [1], ...]}} '
            f"with parents before their children ({error})"
        ) from error
