"""Choosing for a batch: what is read of a walk, its log-probabilities, and where it must stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from graft.choice import Chooser, RowOutcome
from graft.draft import Draft, no_draft
from graft.grafting import Grafted
from graft.pruning import DraftPlan
from graft.request import Request
from graft.sampling_params import SamplingParams
from graft.tree import Source, TokenTree
from graft.verify import Walk
from tests.random_trees import FIVE, make_tree

VOCAB, PADDED = 16, 18
CPU = torch.device("cpu")


def request(prompt: int = 2, limit: int = 9, stops: Sequence[int] = (), **params: Any) -> Request:
    return Request(
        index=0,
        prompt=[1] * prompt,
        params=SamplingParams(**params),
        seed=0,
        row=0,
        stop_ids=frozenset(stops),
        limit=limit,
        decode=lambda ids: "".join(chr(97 + i) for i in ids),
    )


def wanting(tree: TokenTree, tokens: Sequence[Sequence[int]]) -> Tensor:
    """Logits under which node i of row b draws tokens[b][i]; padding would win if it could."""
    logits = torch.randn(tree.batch, tree.width, PADDED)
    for row, values in enumerate(tokens):
        for node, token in enumerate(values):
            logits[row, node, token] = 9.0
    logits[:, :, VOCAB:] = 99.0
    return logits


def choose(
    requests: Sequence[Request], tree: TokenTree, logits: Tensor
) -> tuple[list[RowOutcome], Walk]:
    """Walk and read; a row's history is its prompt, whose last token is the root."""
    chooser = Chooser(requests, PADDED, VOCAB, CPU)
    length = torch.tensor([len(r.prompt) for r in requests])
    history = torch.ones(len(requests), 20, dtype=torch.int64)
    walk = chooser.walk(tree, logits, history, length)
    return chooser.read(*_as_round(tree), walk, logits, torch.tensor(5)), walk


def _as_round(tree: TokenTree) -> tuple[Draft, Grafted]:
    """A tree as it comes of drafting and grafting, with a number of its own for each count."""
    plan = DraftPlan(8, 2, 4, (0, 1, 2), (0.5, 0.5, 0.5), (1, 2, 3, 8))
    draft = no_draft(tree.tokens[:, 0], plan)
    row = torch.ones_like(draft.kept)
    confidence = torch.tensor([0.75, 0.25, -1.0]).expand(tree.batch, -1)
    draft = draft._replace(stage=row, confidence=confidence)
    scores = torch.zeros_like(tree.tokens, dtype=torch.float32)
    # Everything behind the root comes of contexts.
    numbers = [row * n for n in (4, 3, 9, 7, 11, 10, 2)]
    return draft, Grafted(tree, scores, tree.used, tree.used & (tree.depths > 0), *numbers)


def test_a_round_is_read_row_by_row() -> None:
    tree = make_tree([FIVE, [(0, 2)]], [1, 1])
    logits = wanting(tree, [[7, 0, 9, 0, 3], [4]])
    first, second = choose([request(), request(3)], tree, logits)[0]
    assert first.path == [2, 4]
    assert [d.token for d in first.block] == [7, 9, 3]
    assert [d.source for d in first.block] == [Source.RETRIEVED, Source.RETRIEVED, Source.TARGET]
    assert (first.draft_nodes, first.retrieved_nodes) == (0, 4)
    assert (first.stage, first.kept, first.redirected) == (1, 4, 3)
    assert (first.lookups, first.hits, first.rows_written) == (9, 7, 5)
    assert (first.context_lookups, first.context_hits) == (11, 10)
    assert (first.context_nodes, first.accepted_context) == (4, 2)
    assert (second.context_nodes, second.accepted_context) == (1, 0)
    assert first.confidence == (0.75, 0.25)
    assert (second.path, [d.token for d in second.block]) == ([], [4])
    assert second.retrieved_nodes == 1
    assert all(d.logprob is None for d in [*first.block, *second.block])


def test_a_token_comes_from_the_node_that_held_it() -> None:
    tree = make_tree([FIVE], [1])
    tree.sources[0, 2] = Source.DRAFT
    (row,), _ = choose([request()], tree, wanting(tree, [[7, 0, 9, 0, 3]]))
    assert [d.source for d in row.block] == [Source.DRAFT, Source.RETRIEVED, Source.TARGET]
    assert (row.draft_nodes, row.retrieved_nodes) == (1, 3)


def test_padding_is_never_chosen() -> None:
    tree = make_tree([FIVE], [1])
    (row,), _ = choose([request(temperature=1.0)], tree, wanting(tree, [[]]))
    assert all(d.token < VOCAB for d in row.block)


def test_log_probabilities_are_those_of_the_visited_nodes() -> None:
    tree = make_tree([FIVE, FIVE], [1, 1])
    logits = wanting(tree, [[7, 0, 9, 0, 3], [4]])
    rows, _ = choose([request(logprobs=3), request(logprobs=3)], tree, logits)
    for row, (outcome, visited) in enumerate(zip(rows, [[0, 2, 4], [0]], strict=True)):
        known = logits[row, visited, :VOCAB].log_softmax(1)
        assert len(outcome.block) == len(visited)
        for drawn, wanted in zip(outcome.block, known, strict=True):
            assert drawn.logprob is not None
            assert drawn.logprob.chosen == pytest.approx(float(wanted[drawn.token]), abs=1e-5)
            best = wanted.topk(3)
            assert list(drawn.logprob.top) == best.indices.tolist()
            assert list(drawn.logprob.top.values()) == pytest.approx(best.values.tolist(), abs=1e-5)


def test_log_probabilities_of_no_alternatives() -> None:
    tree = make_tree([FIVE], [1])
    (row,), _ = choose([request(logprobs=0)], tree, wanting(tree, [[4]]))
    assert row.block[0].logprob is not None
    assert row.block[0].logprob.top == {}


def nothing_left(ids: Tensor, scores: Tensor) -> Tensor:
    return torch.full_like(scores, float("-inf"))


@pytest.mark.parametrize("logprobs", [None, 2])
def test_settings_that_leave_no_token_are_named(logprobs: int | None) -> None:
    tree = make_tree([FIVE], [1])
    asked = request(logits_processors=[nothing_left], logprobs=logprobs)
    with pytest.raises(ValueError, match=r"no token can be chosen.*logits_processors"):
        choose([asked], tree, wanting(tree, [[4]]))


class Recorder:
    """A processor that keeps what it was shown."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.seen.append(ids[0].tolist())
        return scores


@pytest.mark.parametrize(
    ("settings", "calls"),
    [
        ({}, 3),
        ({"stops": [9]}, 2),
        ({"stops": [7, 4, 5]}, 1),
        ({"limit": 2}, 2),
        ({"stop": "j"}, 2),  # 9 is "j"
        ({"stop": ["hj", "z"]}, 2),  # 7, 9 is "hj"
        ({"stop": "hjd"}, 3),
    ],
)
def test_a_users_processor_is_not_called_behind_the_end(
    settings: dict[str, Any], calls: int
) -> None:
    tree, recorder = make_tree([FIVE], [1]), Recorder()
    asked = request(logits_processors=[recorder], **settings)
    (row,), _ = choose([asked], tree, wanting(tree, [[7, 0, 9, 0, 3]]))
    assert recorder.seen == [[1, 1], [1, 1, 7], [1, 1, 7, 9]][:calls]
    assert [d.token for d in row.block] == [7, 9, 3][:calls]
    assert not asked.finished  # looking ahead is not taking
    untouched = request(**settings)
    untouched.take(row.block)
    asked.take(row.block)
    assert (asked.text, asked.stop_reason) == (untouched.text, untouched.stop_reason)


def test_rows_stop_at_their_own_ends() -> None:
    tree = make_tree([FIVE, FIVE, FIVE], [1, 1, 1])
    recorders = [Recorder(), Recorder(), Recorder()]
    limits: list[dict[str, Any]] = [{"stops": [7]}, {"limit": 2}, {"stops": [1, 2, 3]}]
    requests = [
        request(logits_processors=[r], **each) for r, each in zip(recorders, limits, strict=True)
    ]
    choose(requests, tree, wanting(tree, [[7, 0, 9, 0, 3]] * 3))
    assert [len(r.seen) for r in recorders] == [1, 2, 3]


def test_a_ban_that_leaves_nothing_behind_the_end_is_no_error() -> None:
    # Prompt and answer use up all tokens: a node holds the last one, and nothing can follow it.
    tree = make_tree([[(0, 2)]], [1])
    asked = request(1, limit=1, no_repeat_ngram_size=1, banned_tokens=[0, *range(3, VOCAB)])
    (row,), _ = choose([asked], tree, wanting(tree, [[2, 0]]))
    assert [d.token for d in row.block] == [2]
    asked.limit = 2
    with pytest.raises(ValueError, match=r"no token can be chosen.*no_repeat_ngram_size"):
        choose([asked], tree, wanting(tree, [[2, 0]]))
