"""Grafting by value, round after round: sources that do not pay lose their slots."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graft.contexts import ORDERS, ContextTable
from graft.draft import Draft
from graft.estimates import Estimates
from graft.evidence import Cells
from graft.grafting import Grafted
from graft.host_valued import HostValuedGrafter
from graft.matrix import AdjacencyMatrix
from graft.prior import default_prior
from graft.pruning import dense
from graft.retrieval import MatrixMemory
from graft.spending import Fixed
from graft.tree import Source
from graft.valued import ValuedGrafter
from graft.verify import Walk, walk
from tests.random_trees import make_tree

VOCAB = 40
BUDGET = 8
PLAN = dense(BUDGET, 8, 1)
CPU = torch.device("cpu")


class Rounds:
    """A target that always says the next number, and a drafter that is sure of something else.

    Args:
        right: whether the drafter's first candidate is the target's token.
    """

    def __init__(self, right: bool, kind: type[ValuedGrafter] = ValuedGrafter) -> None:
        self.right = right
        matrix = self.matrix = AdjacencyMatrix(VOCAB, 4, CPU)
        cells = Cells(len(ORDERS), CPU)
        self.estimates = Estimates(default_prior(cells), cells.voice)
        contexts = self.contexts = ContextTable(VOCAB, CPU, rows=1 << 12)
        retriever = MatrixMemory(matrix, "text")
        self.grafter = kind(PLAN, Fixed(PLAN), cells, self.estimates, retriever, contexts, levels=6)
        self.history = torch.zeros(1, 4096, dtype=torch.int64)
        self.length = torch.tensor([10])
        self.history[0, :10] = torch.arange(10)
        self.grafter.admit(0, self.history[0, :10])

    def draft(self) -> Draft:
        """Eight candidates behind the root, with 0.5, 0.25, ... of the probability."""
        root = int(self.history[0, int(self.length) - 1])
        first = root + 1 if self.right else root + 20
        tokens = [(first + i) % VOCAB for i in range(BUDGET)]
        tree = make_tree([[(0, t) for t in tokens]], [root], source=Source.DRAFT)
        scores = torch.tensor([[0.0, *(-0.7 * (i + 1) for i in range(BUDGET))]])
        none = torch.zeros(1, dtype=torch.int64)
        return Draft(tree, scores, none + BUDGET, none, torch.zeros(1, 0), 0)

    def once(self) -> tuple[Grafted, Walk]:
        grafted = self.grafter.graft(self.draft(), None, self.history, self.length)
        grafted.tree.check_integrity()
        logits = torch.full((1, BUDGET + 1, VOCAB), -9.0)
        logits.scatter_(2, ((grafted.tree.tokens + 1) % VOCAB).unsqueeze(2), 9.0)
        path = walk(grafted.tree, logits, self.history, self.length, _greedy)
        self.grafter.learn(grafted, logits, path, self.history, self.length)
        self.length = self.length + path.accepted + 1
        return grafted, path


def _greedy(logits: Tensor, *_: Tensor) -> Tensor:
    return logits.argmax(1)


def drafted(grafted: Grafted) -> int:
    return int((grafted.tree.sources == Source.DRAFT).sum())


KINDS = [ValuedGrafter, HostValuedGrafter]


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_that_is_never_right_loses_its_slots(kind: type[ValuedGrafter]) -> None:
    """Within 20 rounds, to sources that are; and it had them before."""
    rounds = Rounds(right=False, kind=kind)
    counts = [drafted(rounds.once()[0]) for _ in range(25)]
    assert counts[0] == BUDGET
    assert max(counts[20:]) <= 2
    assert int(rounds.once()[1].accepted) >= 5


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_is_right_keeps_them(kind: type[ValuedGrafter]) -> None:
    """The negative control: the drafter's first candidate stands in every tree."""
    rounds = Rounds(right=True, kind=kind)
    for _ in range(25):
        grafted, path = rounds.once()
        assert drafted(grafted) >= 1
        assert int(path.accepted) >= 1
        assert int(grafted.tree.sources[0, path.nodes[0, 1]]) == Source.DRAFT


def test_without_learning_it_would_keep_them() -> None:
    rounds = Rounds(right=False)
    rounds.estimates.learns = False
    counts = [drafted(rounds.once()[0]) for _ in range(25)]
    assert min(counts[20:]) > 2


def test_equal_states_grow_equal_trees() -> None:
    first, second = Rounds(right=True), Rounds(right=True)
    for _ in range(12):
        one, other = first.once()[0].tree, second.once()[0].tree
        for name in ("tokens", "parents", "depths", "used", "sources"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("right", [False, True])
def test_node_by_node_is_the_same(right: bool) -> None:
    """Trees, what is said of them, and what is learnt."""
    here = Rounds(right, ValuedGrafter)
    there = Rounds(right, HostValuedGrafter)
    for _ in range(40):
        one, other = here.once()[0], there.once()[0]
        assert nodes_of(one) == nodes_of(other)
        count = int(one.tree.used.sum())
        for name in ("values", "unaided"):
            mine, theirs = getattr(one, name), getattr(other, name)
            torch.testing.assert_close(
                mine[0, :count].sort().values, theirs[0, :count].sort().values
            )
        for name, tensor in here.contexts.tensors().items():
            assert torch.equal(tensor[:-1], there.contexts.tensors()[name][:-1]), name
        # It asks about every visited node, also where growth had stopped.
        assert bool((there.estimates.trials >= here.estimates.trials - 1e-3).all())
        assert bool((there.estimates.hits >= here.estimates.hits - 1e-3).all())
        for name in ("trials", "hits", "promised", "kept", "factors"):
            getattr(there.estimates, name).copy_(getattr(here.estimates, name))
        there.estimates.refresh()
        # Of equals other nodes were verified, so the matrix learnt others.
        there.matrix.ids.copy_(here.matrix.ids)
        there.matrix.chances.copy_(here.matrix.chances)


def nodes_of(grafted: Grafted) -> set[tuple[object, ...]]:
    """Path, source and score of the nodes that are worth more than the least of them, whose place
    others worth as much may take."""
    tree, values = grafted.tree, grafted.values
    assert values is not None
    least = float(values[0, : int(tree.used.sum())].min()) * 1.0001
    paths: list[tuple[int, ...]] = [()]
    out = set[tuple[object, ...]]()
    for node in range(1, int(tree.used.sum())):
        path = (*paths[int(tree.parents[0, node])], int(tree.tokens[0, node]))
        paths.append(path)
        score = float(grafted.scores[0, node])
        known = None if score != score else round(score, 4)
        if float(values[0, node]) > least:
            out.add((path, int(tree.sources[0, node]), known))
    return out
