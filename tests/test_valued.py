"""Grafting by value, round after round: sources that do not pay lose their slots."""

from __future__ import annotations

import torch
from torch import Tensor

from graft.contexts import ContextTable
from graft.draft import Draft
from graft.estimates import Estimates
from graft.evidence import Cells
from graft.grafting import Grafted
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

    def __init__(self, right: bool) -> None:
        self.right = right
        matrix = AdjacencyMatrix(VOCAB, 4, CPU)
        cells = Cells(4, CPU)
        self.estimates = Estimates(default_prior(cells), cells.voice)
        contexts = ContextTable(VOCAB, CPU, rows=1 << 12)
        retriever = MatrixMemory(matrix, "text")
        self.grafter = ValuedGrafter(
            PLAN, Fixed(PLAN), cells, self.estimates, retriever, contexts, levels=6
        )
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


def test_a_drafter_that_is_never_right_loses_its_slots() -> None:
    """Within 20 rounds, to sources that are; and it had them before."""
    rounds = Rounds(right=False)
    counts = [drafted(rounds.once()[0]) for _ in range(25)]
    assert counts[0] == BUDGET
    assert max(counts[20:]) <= 2
    assert int(rounds.once()[1].accepted) >= 5


def test_one_that_is_right_keeps_them() -> None:
    """The negative control: the drafter's first candidate stands in every tree."""
    rounds = Rounds(right=True)
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
