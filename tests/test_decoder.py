"""Rounds over a fake target: what is committed, recorded, and moved when requests end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.decoder import BatchDecoder
from graft.drafters.none import NoDrafter
from graft.grafter import TemplateGrafter
from graft.matrix import AdjacencyMatrix
from graft.pruning import dense
from graft.request import Request, StreamToken
from graft.retrieval import MatrixRetriever, NoRetriever, Retriever
from graft.sampling_params import SamplingParams
from graft.spending import Fixed
from graft.template import default_template
from graft.tree import Source
from tests.fakes import FakeTarget

VOCAB = 12


def request(index: int, prompt: Sequence[int], limit: int, **params: Any) -> Request:
    return Request(
        index=index,
        prompt=list(prompt),
        params=SamplingParams(**params),
        seed=index,
        row=index,
        stop_ids=frozenset(),
        limit=limit,
        decode=lambda ids: "".join(chr(97 + i) for i in ids),
    )


def decoder(slots: int, budget: int = 6, warm: bool = True) -> BatchDecoder:
    """Decodes a law that the last token alone decides, so that a warm matrix knows it all."""
    target = FakeTarget(VOCAB, order=1, context=0.0)
    target.open(slots, 64)
    retriever: Retriever = NoRetriever()
    if budget:
        matrix = AdjacencyMatrix(VOCAB, 8, target.device)
        order = torch.arange(VOCAB)
        if warm:
            matrix.write(order, matrix.best(torch.stack([target.law([t]) for t in order])), order)
        retriever = MatrixRetriever(matrix, [default_template().take(2 * budget)], "off")
    plan = dense(budget, 1, 1, kept=0)
    grafter = TemplateGrafter(retriever, budget)
    return BatchDecoder(target, NoDrafter(), grafter, spending=Fixed(plan), token_count=VOCAB)


def plain(target: FakeTarget, prompt: Sequence[int], count: int) -> list[int]:
    """The greedy answer, one token at a time."""
    out = list(prompt)
    for _ in range(count):
        out.append(int(target.law(out).argmax()))
    return out[len(prompt) :]


def finish(dec: BatchDecoder) -> list[StreamToken]:
    """Run rounds to the end; the target holds all but each running request's root."""
    out: list[StreamToken] = []
    while dec.running:
        out += dec.round()
        for slot, running in enumerate(dec.running):
            assert dec.target.committed[slot] == running.context[:-1]  # type: ignore[attr-defined]
    return out


def fake(dec: BatchDecoder) -> FakeTarget:
    assert isinstance(dec.target, FakeTarget)
    return dec.target


def test_admission_draws_the_first_token_outside_any_round() -> None:
    dec, req = decoder(1), request(0, [3, 4], 9)
    (first,) = dec.admit(req)
    assert first.token_id == plain(fake(dec), [3, 4], 1)[0]
    assert (first.source, first.request) == (Source.TARGET, 0)
    assert (req.records, dec.running) == ([], [req])
    assert req.prefill_seconds > 0
    assert fake(dec).committed[0] == [3, 4]


def test_a_request_of_one_token_is_over_when_admitted() -> None:
    dec = decoder(1)
    (only,) = dec.admit(request(0, [3], 1))
    assert only.finish_reason == "length"
    assert dec.running == []
    dec.admit(request(1, [4, 5], 4))  # the slot is free again
    assert fake(dec).committed[0] == [4, 5]


@pytest.mark.parametrize("budget", [0, 1, 6, 30])
@pytest.mark.parametrize("warm", [True, False])
def test_the_answer_is_that_of_plain_decoding(budget: int, warm: bool) -> None:
    dec, req = decoder(1, budget, warm), request(0, [3], 20)
    stream = dec.admit(req) + finish(dec)
    assert [t.token_id for t in stream] == plain(fake(dec), [3], 20)
    stats = req.result().stats
    assert stats.tau is not None
    if not budget:
        assert stats.tau == 1.0
    elif warm:
        assert stats.tau > 1.4


def test_a_round_is_one_forward_for_all_running_requests() -> None:
    dec = decoder(3)
    for i in range(3):
        dec.admit(request(i, [i + 1], 30))
    before = fake(dec).forwards
    dec.round()
    assert fake(dec).forwards == before + 1
    assert [r.batch for r in dec.last_records] == [3, 3, 3]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 25)), min_size=1, max_size=5),
    st.sampled_from([0, 1, 6]),
)
def test_uneven_requests_do_not_disturb_each_other(
    shapes: list[tuple[int, int]], budget: int
) -> None:
    dec = decoder(len(shapes), budget)
    requests = [
        request(i, [(7 * i + j) % VOCAB for j in range(prompt)], limit)
        for i, (prompt, limit) in enumerate(shapes)
    ]
    stream = [token for each in requests for token in dec.admit(each)]
    stream += finish(dec)
    for each in requests:
        wanted = plain(fake(dec), each.prompt, each.limit)
        assert each.result().token_ids == wanted
        assert [t.token_id for t in stream if t.request == each.index] == wanted


def test_the_last_request_moves_into_the_gap_of_a_finished_one() -> None:
    dec = decoder(3, budget=0)
    short, middle, long = (request(i, [i + 1], n) for i, n in enumerate((2, 9, 9)))
    for each in (short, middle, long):
        dec.admit(each)
    dec.round()
    assert dec.running == [long, middle]
    assert [row[0] for row in fake(dec).committed[:2]] == [3, 2]
    late = request(3, [8, 8], 3)
    dec.admit(late)
    assert fake(dec).committed[2] == [8, 8]
    finish(dec)
    for each in (short, middle, long, late):
        assert each.result().token_ids == plain(fake(dec), each.prompt, each.limit)


def test_records_say_what_happened() -> None:
    dec, req = decoder(1, budget=5), request(0, [3, 4], 15)
    dec.admit(req)
    length = 3
    while dec.running:
        before = len(req.drawn)
        dec.round()
        (record,) = dec.last_records
        assert record is req.records[-1]
        assert record.context == length
        assert record.proposed == record.proposed_retrieved <= 5
        assert record.proposed + record.empty_slots + record.unspent_slots == 5
        assert record.hits <= record.lookups <= 10
        assert 1 <= record.rows_written <= 1 + record.proposed
        assert record.accepted_draft == 0
        assert record.times.total > 0
        taken = len(req.drawn) - before + (req.trimmed if req.finished else 0)
        assert record.accepted + 1 == taken
        length += record.accepted + 1


def test_histories_grow_with_the_texts() -> None:
    dec, req = decoder(2, budget=3), request(0, [5] * 250, 300)
    dec.admit(req)
    dec.admit(request(1, [6], 40))
    finish(dec)
    assert req.result().token_ids == plain(fake(dec), req.prompt, 300)


@pytest.mark.parametrize(
    ("held", "kept"),
    [([], 0), ([3, 4, 5], 3), ([3, 4, 5, 6], 3), ([3, 4, 5, 6, 7], 3), ([3, 9], 1), ([9], 0)],
)
def test_admission_keeps_the_rows_of_a_common_beginning(held: list[int], kept: int) -> None:
    dec, req = decoder(1), request(0, [3, 4, 5, 6], 8)
    if held:
        fake(dec).prefill(0, torch.tensor(held))
    # The last prompt token is always run, since its logits are wanted.
    stream = dec.admit(req, held)
    assert req.cached_tokens == kept
    assert fake(dec).committed[0] == [3, 4, 5, 6]
    stream += finish(dec)
    assert [t.token_id for t in stream] == plain(fake(dec), req.prompt, 8)
    assert req.result().usage.cached_tokens == kept


def test_forced_tokens_are_prefilled() -> None:
    dec, req = decoder(1), request(0, [3, 4], 6)
    req.forced = [7, 8]
    dec.admit(req)
    assert fake(dec).committed[0] == [3, 4, 7, 8]
    finish(dec)
    assert req.result().token_ids == plain(fake(dec), [3, 4, 7, 8], 4)
