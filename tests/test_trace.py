"""Traces: the rounds of one request and the tokens they committed, put together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from graft.decoder import RoundView
from graft.request import Drawn, Request
from graft.sampling_params import SamplingParams
from graft.trace import TokenTexts, Trace, TraceNode, Tracer
from graft.tree import Source
from tests.engines import small, warm
from tests.traces import (
    PLAN,
    Grown,
    as_tree,
    decode,
    generation,
    new_request,
    one_round,
    record_of,
    sample,
    trace_of,
)


def check_nodes(nodes: Sequence[TraceNode]) -> None:
    """What holds for the nodes of every round."""
    root, *others = nodes
    assert (root.parent, root.depth, root.source, root.probability) == (0, 0, "target", None)
    assert not root.accepted
    for index, node in enumerate(others, 1):
        assert node.parent < index
        assert node.depth == nodes[node.parent].depth + 1
        assert node.source in ("draft", "retrieved")
        assert node.probability is None or 0 < node.probability <= 1
        assert node.accepted <= (node.parent == 0 or nodes[node.parent].accepted)
    accepted = [n for n in others if n.accepted]
    assert [n.depth for n in accepted] == list(range(1, len(accepted) + 1))  # one path


def check_trace(trace: Trace) -> None:
    """What holds for every trace: it says what its result says."""
    result = trace.result
    assert "".join(c.text for c in trace.committed) == result.text
    assert [c.token for c in trace.committed] == result.token_ids
    assert [c.source for c in trace.committed] == [s.name.lower() for s in result.sources]
    assert sum(r.trimmed for r in trace.rounds) == result.stats.trimmed
    assert [r.record for r in trace.rounds] == list(result.stats.round_records)
    root = trace.first.token
    for traced in trace.rounds:
        check_nodes(traced.nodes)
        assert traced.nodes[0].token == root
        assert len(traced.nodes) - 1 == traced.record.proposed
        path = [n for n in traced.nodes if n.accepted]
        assert len(path) == traced.record.accepted
        told = [(n.token, n.source) for n in path]
        bonus = traced.committed[len(path) :]
        assert [(c.token, c.source) for c in traced.committed[: len(path)]] == told[
            : len(traced.committed)
        ]
        assert len(bonus) == (not traced.trimmed)
        assert all(c.source == "target" for c in bonus)
        root = traced.committed[-1].token


@pytest.mark.parametrize("seed", range(8))
def test_a_trace_says_what_the_result_says(seed: int) -> None:
    trace = sample(limit=30, seed=seed)
    check_trace(trace)
    assert any(r.record.accepted_draft for r in trace.rounds)
    assert any(n.probability is not None for r in trace.rounds for n in r.nodes)


def test_the_checks_can_fail() -> None:
    views, tokens, request = generation()
    views[1].rows[0].path.reverse()
    views[2].rows[0].path.append(60)
    with pytest.raises(AssertionError):
        check_trace(trace_of(views, tokens, request))


def test_a_real_generation_is_traced_and_not_changed() -> None:
    engine = small()
    prompt = [1, 2, 3]
    options: dict[str, Any] = {"max_new_tokens": 50, "temperature": 0.7, "seed": 3}
    expected = warm(engine, prompt, **options)
    tracer = Tracer(TokenTexts(engine._decode))
    with engine.stream(prompt, watch=tracer.watch, **options) as stream:
        tokens = list(stream)
    (result,) = stream.results
    trace = tracer.trace(tokens, result, prompt="", model="", policy="retrieval", settings={})
    check_trace(trace)
    assert result.token_ids == expected.token_ids
    assert any(r.record.accepted_retrieved for r in trace.rounds)
    assert all(n.probability is None for r in trace.rounds for n in r.nodes)


def test_tokens_behind_the_end_are_counted_and_not_shown() -> None:
    request = new_request(limit=3)
    tokens = request.take([Drawn(5, Source.TARGET, None)])
    tree = Grown([5])
    for depth, token in enumerate((6, 7, 8)):
        tree.add(depth, token, Source.DRAFT, -1.0 - depth)
    tensors, scores = as_tree([tree], 61)
    view = one_round(Random(1), request)
    block = [Drawn(t, Source.DRAFT, None) for t in (6, 7, 8)] + [Drawn(9, Source.TARGET, None)]
    row = view.rows[0]._replace(path=[1, 2, 3], block=block, draft_nodes=3, retrieved_nodes=0)
    record = record_of(Random(1), row, PLAN)
    request.records.append(record)
    tokens += request.take(block)
    (traced,) = trace_of(
        [view._replace(tree=tensors, scores=scores, rows=[row], records=[record])], tokens, request
    ).rounds
    assert [c.token for c in traced.committed] == [6, 7]
    assert traced.trimmed == 2
    assert [n.accepted for n in traced.nodes] == [False, True, True, True]
    assert [n.probability for n in traced.nodes[1:]] == pytest.approx(
        [math.exp(-1), math.exp(-2), math.exp(-3)]
    )


def test_one_row_of_a_batch_is_watched() -> None:
    mine, other = new_request(index=4), new_request(index=2)
    for each in (mine, other):
        each.take([Drawn(1, Source.TARGET, None)])
    views = [one_round(Random(seed), each) for seed, each in enumerate((other, mine))]
    width = 61
    trees = [_grown(v) for v in views]
    tree, scores = as_tree(trees, width)
    rows, records = [v.rows[0] for v in views], [v.records[0] for v in views]
    tracer = Tracer(TokenTexts(decode), request=4)
    tracer.watch(RoundView(tree, scores, ~tree.used, rows, [other, mine], records, PLAN))
    tracer.watch(views[0])  # a round without it
    (seen,) = tracer._seen
    assert [n.token for n in seen.nodes] == trees[1].tokens
    assert [n.parent for n in seen.nodes] == trees[1].parents
    assert seen.record is records[1]


def _grown(view: RoundView) -> Grown:
    used = int(view.tree.used.sum())
    tree = view.tree
    columns = (tree.tokens, tree.parents, tree.depths, tree.sources, view.scores)
    return Grown(*(column[0, :used].tolist() for column in columns))


def test_rounds_and_tokens_that_do_not_fit_are_refused() -> None:
    views, tokens, request = generation()
    for wrong in (views[:-1], [*views, views[-1]]):
        with pytest.raises(ValueError, match="watch all rounds"):
            trace_of(wrong, tokens, request)
    with pytest.raises(ValueError, match="give all of its tokens"):
        trace_of(views, [], request)


def test_an_answer_of_one_token_has_no_rounds() -> None:
    request = new_request(limit=1)
    trace = trace_of([], request.take([Drawn(3, Source.TARGET, None)]), request)
    assert trace.rounds == ()
    check_trace(trace)


def test_characters_split_over_tokens_stay_whole() -> None:
    text = "河🌍نهر"
    data = text.encode()
    params = SamplingParams(max_new_tokens=len(data))

    def spell(ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    request = Request(0, [65], params, 0, 0, frozenset(), len(data), spell)
    tokens = request.take([Drawn(byte, Source.TARGET, None) for byte in data[:1]])
    views = []
    for byte in data[1:]:
        tensors, scores = as_tree([Grown([request.context[-1]])], 1)
        block = [Drawn(byte, Source.TARGET, None)]
        row = one_round(Random(0), new_request()).rows[0]
        row = row._replace(path=[], block=block, draft_nodes=0, retrieved_nodes=0)
        record = record_of(Random(0), row, PLAN)
        views.append(RoundView(tensors, scores, ~tensors.used, [row], [request], [record], PLAN))
        request.records.append(record)
        tokens += request.take(block)
    trace = trace_of(views, tokens, request)
    check_trace(trace)
    assert "".join(c.text for c in trace.committed) == text
    assert set(trace.alone.values()) == {"\ufffd"}  # a single byte is no character


def test_a_token_keeps_its_space_alone_too() -> None:
    words = ["▁the", "▁sea", "s", ""]

    def strip_first(ids: Sequence[int]) -> str:
        return "".join(words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    text_of = TokenTexts(strip_first)
    assert strip_first([0]) == "the"
    assert [text_of(t) for t in range(4)] == [" the", " sea", "s", ""]
