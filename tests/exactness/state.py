"""Random rounds that drive a target and a drafter directly, and a first-principles reference.

`Rounds` calls what the decoder calls, in its order, with paths accepted at random and trees that
hold retrieved nodes too. All in double precision, over one small target. Before each draft the free
rows of the drafter's cache are poisoned: who reads them says so.
It knows no engine, no sampling and no requests.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from transformers import PreTrainedModel

from graft.cache import KVCache
from graft.draft import Draft, sat_out
from graft.drafters.base import Drafter
from graft.drafters.eagle3.drafter import Eagle3Drafter
from graft.drafters.independent import ModelDrafter
from graft.grafting import graft
from graft.matrix import AdjacencyMatrix
from graft.pruning import DraftPlan
from graft.retrieval import MatrixRetriever
from graft.target import TransformersTarget, Verification
from graft.template import default_template
from graft.tree import TokenTree
from tests.exactness.heads import LAYERS, random_head
from tests.tape import TapeRecorder
from tests.tiny_models import VOCAB_SIZE, tiny_model

# Rounds of sequences stop at different checkpoints; the other plan never stops.
PLAN = DraftPlan(24, 4, 5, (0, 1), (0.0, 0.005), (2, 8, 14))
DEEP = DraftPlan(24, 4, 5, kept=(14,))


@cache
def double_model(seed: int = 0) -> PreTrainedModel:
    model: PreTrainedModel = tiny_model("llama", seed).double()
    return model


# Forwards of this drafter and its target are recorded and replayed.
RECORDED = "eagle3, recorded"


def new_target(
    layers: Sequence[int] = LAYERS, recorder: TapeRecorder | None = None
) -> TransformersTarget:
    return TransformersTarget(
        double_model(), max_context=4096, feature_layers=layers, recorder=recorder
    )


def new_drafter(kind: str) -> Drafter:
    """A drafter that has seen nothing; all of a kind have the same weights."""
    if kind == "model":
        return ModelDrafter(TransformersTarget(double_model(3), max_context=4096), VOCAB_SIZE)
    head = random_head().double()
    head.lm_head.weight *= 10  # sure enough of something that its trees are deep
    recorder = TapeRecorder() if kind == RECORDED else None
    embed = double_model().get_input_embeddings()
    return Eagle3Drafter(head, embed, VOCAB_SIZE, recorder=recorder)


@torch.inference_mode()
def plain_features(text: Sequence[int], layers: Sequence[int] = LAYERS) -> Tensor:
    """Features [n, F] from one forward of the unmodified model: inputs of its layers, and of its
    final norm."""
    model = double_model()
    modules = [*model.model.layers, model.model.norm]
    seen: dict[int, Tensor] = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda _m, args, i=i: seen.__setitem__(i, args[0][0]),
        )
        for i, module in enumerate(modules)
    ]
    try:
        model(input_ids=torch.tensor([list(text)]))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat([seen[layer] for layer in layers], dim=-1)


def cache_of(drafter: Drafter) -> KVCache:
    if isinstance(drafter, ModelDrafter):
        return drafter.model.cache
    assert isinstance(drafter, Eagle3Drafter)
    return drafter.cache


class Rounds:
    """Sequences in slots 0, 1, ... with their committed tokens, the root included.

    Args:
        kind: of the drafter.
        texts: what the sequences begin with, at least one token each.
        seed: of everything random here.
        plan: of the drafts.
    """

    def __init__(
        self, kind: str, texts: Sequence[Sequence[int]], seed: int = 0, plan: DraftPlan = PLAN
    ) -> None:
        self.kind, self.plan = kind, plan
        self.random = random.Random(seed)
        self.target = new_target(recorder=TapeRecorder() if kind == RECORDED else None)
        self.drafter = new_drafter(kind)
        matrix = AdjacencyMatrix(VOCAB_SIZE, 8, self.target.device)
        rows = torch.Generator().manual_seed(seed)
        first = torch.randint(0, VOCAB_SIZE, (VOCAB_SIZE + 1, 1), generator=rows)
        matrix.ids[:] = (first + torch.arange(8)) % VOCAB_SIZE  # a row's tokens differ
        self.retriever = MatrixRetriever(matrix, [default_template().take(24)], "off")
        self.texts: list[list[int]] = []
        self.accepted: list[int] = []  # of every round and sequence
        self.target.open(len(texts), 1)
        self.drafter.open(len(texts), 1)
        for text in texts:
            self.enter(text)

    def token(self) -> int:
        return self.random.randrange(VOCAB_SIZE)

    def enter(self, text: Sequence[int]) -> None:
        """A new sequence takes the next slot."""
        self.texts.append([])
        self._prefill(len(self.texts) - 1, list(text), 0)

    def turn(self, slot: int, keep: int, more: int) -> None:
        """A sequence goes on as another one that shares its first `keep` tokens."""
        text = [*self.texts[slot][:keep], *(self.token() for _ in range(more))]
        # The root is not in the target's cache, and the last token of a prompt is run again.
        common = min(keep, len(self.texts[slot]) - 1, len(text) - 1)
        self._prefill(slot, text, self.drafter.reusable(slot, common))

    def leave(self, slot: int) -> None:
        """A sequence ends; the last one takes its slot."""
        last = len(self.texts) - 1
        if slot < last:
            self.target.move(last, slot)
            self.drafter.move(last, slot)
            self.texts[slot] = self.texts[last]
        self.texts.pop()

    @torch.inference_mode()
    def draft(self) -> Draft:
        """Draft over the roots, with poison where nothing is to be read."""
        self.poison()
        return self.drafter.draft(*self._state(), self.plan)

    @torch.inference_mode()
    def finish(self, draft: Draft) -> tuple[TokenTree, Verification]:
        """Graft, verify, accept a random path and commit."""
        retrieved = self.retriever.look_up(draft.tree.tokens[:, 0])
        tree = graft(draft, retrieved, self.plan.budget).tree
        tree.check_integrity()
        seen = self.target.verify(tree)
        paths = [self._random_path(tree, row) for row in range(tree.batch)]
        self.target.commit(paths)
        self.drafter.commit(paths, seen.features)
        for row, path in enumerate(paths):
            self.texts[row] += [*tree.tokens[row, path].tolist(), self.token()]
            self.accepted.append(len(path))
        return tree, seen

    def run(self, count: int) -> None:
        for _ in range(count):
            self.finish(self.draft())

    @torch.inference_mode()
    def sit_out(self, count: int) -> None:
        """Rounds in which the drafter is not asked."""
        for _ in range(count):
            self.poison()
            history, length = self._state()
            self.drafter.keep_up(history, length)
            roots = history.gather(1, length.unsqueeze(1) - 1).squeeze(1)
            self.finish(sat_out(roots, self.plan))

    def poison(self) -> None:
        """Spoil the free rows. No number at all where one sequence runs: each row that is looked
        at, even with weight zero, would show. In a batch the rows behind a shorter sequence are
        masked, and zero times a large number is zero; so are they in what is recorded."""
        cache = cache_of(self.drafter)
        hidden = len(self.texts) > 1 or self.kind == RECORDED
        value = 1e9 if hidden else torch.nan
        for storage in cache._storage:
            for slot, length in enumerate(cache.lengths):
                storage[:, slot, :, length:] = value

    def _state(self) -> tuple[Tensor, Tensor]:
        """History with arbitrary tokens behind each sequence, as walks leave them, and lengths."""
        room = max(len(text) for text in self.texts) + self.plan.budget + 2
        rows = [[*text, *(self.token() for _ in range(room - len(text)))] for text in self.texts]
        return torch.tensor(rows), torch.tensor([len(text) for text in self.texts])

    @torch.inference_mode()
    def _prefill(self, slot: int, text: list[int], cached: int) -> None:
        self.target.truncate(slot, cached)
        self.drafter.truncate(slot, cached)
        tokens = torch.tensor(text)
        if self.drafter.feature_layers:
            self.target.prefill(
                slot,
                tokens[cached:],
                absorb=lambda part: self.drafter.prefill(slot, tokens, part),
            )
        else:
            self.target.prefill(slot, tokens[cached:])
            self.drafter.prefill(slot, tokens, None)
        self.texts[slot] = [*text, self.token()]

    def _random_path(self, tree: TokenTree, row: int) -> list[int]:
        """Any path from the root, often a long one."""
        path: list[int] = []
        while self.random.random() < 0.85:
            mine = (tree.parents[row] == (path[-1] if path else 0)) & tree.used[row]
            mine[0] = False
            children = mine.nonzero().flatten().tolist()
            if not children:
                break
            path.append(self.random.choice(children))
        return path
