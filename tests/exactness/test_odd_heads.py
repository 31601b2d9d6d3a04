"""Heads that are wrong, narrow or oddly numbered: they change the trees, and never a token.

Where two heads are the same function in different clothes (a permuted vocabulary), even the trees
are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from graft.decoder import RoundView
from graft.drafters.eagle3.drafter import Eagle3Drafter
from graft.drafters.eagle3.head import Eagle3Head
from graft.engine import Engine
from graft.matrix import AdjacencyMatrix
from graft.memory import Memory
from graft.sampling_params import SamplingParams
from graft.tree import Source
from tests.exactness import drafting
from tests.exactness.drafting import agree, eagle3, engine, plainly, tau
from tests.exactness.heads import head_config, random_head, trained_head
from tests.exactness.helpers import PROMPTS
from tests.random_trees import path_of
from tests.tiny_models import VOCAB_SIZE

GREEDY = SamplingParams(max_new_tokens=24, ignore_eos=True)
POLICIES = ["dense", "pruned", "graft-unpruned", "graft", "graft+"]


def drafted(made: Engine, policy: str = "dense") -> list[set[tuple[int, ...]]]:
    """The paths of all draft nodes from their roots on, round by round."""
    rounds: list[set[tuple[int, ...]]] = []

    def watch(view: RoundView) -> None:
        nodes = (view.tree.sources[0] == Source.DRAFT).nonzero().flatten().tolist()
        paths = [path_of(view.tree, 0, node) for node in nodes]
        rounds.append({tuple(view.tree.tokens[0, path].tolist()) for path in paths})

    for _ in made.stream(PROMPTS[1], GREEDY, policy=policy, budget=16, watch=watch):
        pass
    return rounds


def renumbered(head: Eagle3Head, ids: Sequence[int] | Tensor) -> Eagle3Head:
    """A head that names only these target ids, in this order."""
    order = torch.as_tensor(ids)
    made = Eagle3Head(head_config(draft_vocab_size=len(order))).eval().requires_grad_(False)
    weights: dict[str, Any] = dict(head.state_dict())
    weights["lm_head.weight"] = weights["lm_head.weight"][order]
    weights["target_ids"] = order
    made.load_state_dict(weights)
    return made


def test_a_permuted_vocabulary_drafts_the_same_trees() -> None:
    order = torch.randperm(VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    identity = renumbered(trained_head(), range(VOCAB_SIZE))
    permuted = renumbered(trained_head(), order)
    wanted = drafted(engine(eagle3()))
    assert drafted(engine(eagle3(head=identity))) == wanted
    assert drafted(engine(eagle3(head=permuted))) == wanted
    assert sum(len(paths) for paths in wanted) > 16
    # A table that does not fit its rows is seen.
    permuted.target_ids = permuted.target_ids.roll(1)
    assert drafted(engine(eagle3(head=permuted))) != wanted


@pytest.mark.parametrize("setting", ["greedy", "all cuts"])
def test_a_permuted_vocabulary_says_the_same(setting: str) -> None:
    order = torch.randperm(VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    found = agree(engine(eagle3(head=renumbered(trained_head(), order))), setting)
    assert tau(found) > 3.0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [1, 5, 150])
def test_a_reduced_vocabulary(count: int, policy: str) -> None:
    """Narrower than the beam, too."""
    ids = torch.randperm(VOCAB_SIZE, generator=torch.Generator().manual_seed(1))[:count]
    made = engine(eagle3(head=renumbered(trained_head(), ids.sort().values)))
    found = agree(made, "all cuts", policy=policy)
    assert names(made, policy) <= {*ids.tolist()}
    assert count < 150 or tau(found) > 1.2


def names(made: Engine, policy: str) -> set[int]:
    """Tokens that draft nodes hold."""
    return {token for paths in drafted(made, policy) for path in paths for token in path[1:]}


@pytest.mark.parametrize("policy", POLICIES)
def test_ids_that_no_tokenizer_knows_are_never_drafted(policy: str) -> None:
    """Padding of the vocabulary, which this head likes better than what it has learnt."""
    known, head = 240, trained_head()
    learnt = [token for token in plainly(PROMPTS[1], GREEDY) if token < known][:16]
    head.lm_head.weight[known:] = 1.5 * head.lm_head.weight[learnt]
    assert max(names(engine(eagle3(head=head)), policy)) >= known, "it does like them"
    model = drafting.model()
    model.token_count = known
    for drafter in (Eagle3Drafter(head, drafting.embed(), known), model):
        made = engine(drafter)
        made.token_count = known
        made.memory = Memory(AdjacencyMatrix(known, 8, made.target.device))
        assert max(names(made, policy)) < known
        plain = made.generate(PROMPTS[1], GREEDY, policy="plain").token_ids
        assert made.generate(PROMPTS[1], GREEDY, policy=policy, budget=16).token_ids == plain
        assert max(plain) < known


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("where", ["everywhere", "some tokens", "one sequence"])
def test_a_head_that_drafts_no_numbers(where: str, policy: str) -> None:
    """Overflow in half precision looks like this."""
    head = trained_head()
    if where == "everywhere":
        head.lm_head.weight[:] = torch.nan
    elif where == "some tokens":
        head.lm_head.weight[::2] = torch.nan
        head.lm_head.weight[1::8] = torch.inf
    drafter = eagle3(head=head)
    if where == "one sequence":  # rows of PROMPTS[2] alone hold such tokens
        embed = drafter._embed
        drafter._embed = lambda ids: embed(ids).masked_fill((ids % 7 == 3).unsqueeze(-1), torch.nan)
    for batch in (1, 3):
        found = agree(engine(drafter), "all cuts", policy=policy, batch=batch)
        if where == "everywhere":
            assert sum(r.stats.proposed_draft for r in found) == 0
            assert policy != "graft" or sum(r.stats.proposed_retrieved for r in found) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_head_that_has_learnt_nothing(policy: str) -> None:
    agree(engine(eagle3(head=random_head())), "all cuts", policy=policy)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_before_residual": True},
        {"norm_before_fc": True, "fc_norm": True},
        {"norm_output": True},
        {"num_hidden_layers": 2, "sliding_window": 5},
        {"own_embeddings": True, "attention_bias": True, "mlp_bias": True, "fc_bias": True},
        {"qk_norm": True, "head_dim": 8, "hidden_size": 48, "own_embeddings": True},
    ],
)
def test_heads_of_other_shapes(changes: dict[str, Any]) -> None:
    agree(engine(eagle3(head=random_head(**changes))), "all cuts")


@pytest.mark.parametrize("window", [1, 4, 16, 4096])
def test_a_window(window: int) -> None:
    found = agree(engine(eagle3(window=window)), "all cuts")
    if window == 4096:
        wide = agree(engine(eagle3()), "all cuts")
        assert [r.stats.rounds for r in found] == [r.stats.rounds for r in wide]
    if window == 1:
        assert drafted(engine(eagle3(window=1))) != drafted(engine(eagle3()))
