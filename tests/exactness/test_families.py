"""Every supported family: trees say what plain decoding says, and plain decoding is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from graft.exactness import PRECISIONS, compare
from graft.sampling_params import SamplingParams
from graft.tree import TokenTree
from tests.exactness.cases import ALONE, SETTINGS
from tests.exactness.helpers import (
    PROMPTS,
    assert_accepting,
    assert_same,
    family_engine,
    family_target,
    teach_answers,
)
from tests.random_trees import make_tree, path_of
from tests.tiny_models import FAMILIES

# Twelve nodes in no tidy order: chains of four, siblings, and a token (30) at three nodes.
NODES = [
    (0, 30),
    (0, 31),
    (1, 30),
    (2, 33),
    (1, 34),
    (3, 35),
    (4, 36),
    (6, 37),
    (2, 38),
    (0, 39),
    (7, 30),
    (9, 41),
]
TEXT = PROMPTS[2]


@pytest.mark.parametrize("setting", ["greedy", "top_p"])
@pytest.mark.parametrize("family", FAMILIES)
def test_trees_say_what_plain_decoding_says(family: str, setting: str) -> None:
    engine, params = family_engine(family), SETTINGS[setting]
    teach_answers(engine, PROMPTS, params, batch=3)
    found = compare(engine, PROMPTS, params, budget=16, batch=3)
    assert_same(found)
    assert_accepting(found)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_setting_of_every_family(family: str, setting: str) -> None:
    engine, params = family_engine(family), SETTINGS[setting]
    batch = 1 if setting in ALONE else 3
    teach_answers(engine, PROMPTS, params, batch)
    for budget in (4, 16, 60):
        found = compare(engine, PROMPTS, params, budget=budget, batch=batch)
        assert_same(found)
        assert_accepting(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_decoding_is_that_of_transformers(family: str) -> None:
    engine = family_engine(family)
    params = SamplingParams(max_new_tokens=32)
    for prompt in PROMPTS[1:]:
        ours = engine.continue_ids(prompt, params, policy="plain").token_ids
        theirs = _generate(family, prompt, 32)
        if ours == theirs:
            continue
        # Teacher forcing: up to the difference the texts are equal, and there was a near-tie.
        place = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
        logits = engine.logits_of([*prompt, *ours[:place]])[0]
        gap = float(logits[ours[place]] - logits[theirs[place]])
        assert abs(gap) <= PRECISIONS[torch.float32].margin, (place, gap)


def _generate(family: str, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = family_target(family).model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_verification_are_independent(family: str) -> None:
    tree = make_tree([NODES], [TEXT[-1]])
    assert dependence(family, tree) <= 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_node_are_those_of_its_path(family: str) -> None:
    tree = make_tree([NODES], [TEXT[-1]])
    assert distance_from_plain(family, tree) <= 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_after_an_accepted_path_are_those_of_plain_forwards(family: str) -> None:
    """Commit a path that needs moving, then verify the next tree behind it."""
    target, path = family_target(family), [2, 4, 7]
    tree = make_tree([NODES], [TEXT[-1]])
    _verify(family, tree)
    target.commit([path])
    text = [*TEXT, *(int(tree.tokens[0, node]) for node in path), 50]
    following = make_tree([NODES], [50])
    assert _distance(family, text, following, target.verify(following).logits[0]) <= 1e-4


def dependence(family: str, tree: TokenTree) -> float:
    """The most that a logit moves when the token of a node that is no ancestor changes."""
    before, moved = _verify(family, tree), 0.0
    ancestry = _ancestry(tree)
    for node in (1, 4, 8, 9):
        tokens = tree.tokens.clone()
        tokens[0, node] = 200 + node
        after = _verify(family, replace(tree, tokens=tokens))
        others = ~ancestry[:, node]
        moved = max(moved, float((after - before)[others].abs().max()))
        assert float((after - before)[~others].abs().max()) > 1e-2, "descendants do depend on it"
    return moved


def distance_from_plain(family: str, tree: TokenTree) -> float:
    return _distance(family, TEXT, tree, _verify(family, tree))


def _distance(family: str, text: list[int], tree: TokenTree, logits: Tensor) -> float:
    """How far the logits [N, V] of a tree's nodes are from the model's own, path by path."""
    model, off = family_target(family).model, 0.0
    for node in range(tree.width):
        path = tree.tokens[0, path_of(tree, 0, node)].tolist()
        with torch.inference_mode():
            plain = model(input_ids=torch.tensor([[*text[:-1], *path]])).logits[0, -1]
        off = max(off, float((logits[node] - plain).abs().max()))
    return off


def _ancestry(tree: TokenTree) -> Tensor:
    """bool [N, N], from the parents alone: whether column j is on the path of row i."""
    out = torch.zeros(tree.width, tree.width, dtype=torch.bool)
    for node in range(tree.width):
        out[node, path_of(tree, 0, node)] = True
    return out


@torch.inference_mode()
def _verify(family: str, tree: TokenTree) -> Tensor:
    """Logits [N, V] of a tree whose root is the last token of TEXT."""
    target = family_target(family)
    target.open(1, 256)
    target.prefill(0, torch.tensor(TEXT[:-1]))
    return target.verify(tree).logits[0]
