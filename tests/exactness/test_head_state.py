"""The state of a drafter: after any rounds it drafts what a fresh one drafts over the same text.

A wrong draft never changes a token, so comparing answers cannot see a head that reads stale rows,
wrong features or wrong positions; it is only slower. So here a drafter goes through random rounds
(paths accepted at random, requests that move and turn back) and its tree is held against that of a
new drafter which takes in the whole text at once, with features from plain forwards. In double
precision, so that no near-tie hides a fault or fakes one.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from graft.draft import Draft
from graft.drafters.eagle3.drafter import FEW, MANY, Eagle3Drafter
from graft.recordings import Recordings
from graft.target import TransformersTarget
from tests.exactness.head_faults import HEAD_FAULTS, HeadFault, forgotten_move
from tests.exactness.state import (
    DEEP,
    RECORDED,
    Rounds,
    cache_of,
    double_model,
    new_drafter,
    new_target,
    plain_features,
)
from tests.random_trees import path_of
from tests.tape import TapeRecorder, storage

# The state of a new drafter is proved from its line here on.
KINDS = ["eagle3", RECORDED, "model"]
EXACT = 1e-6  # scores are summed in single precision
TEXTS = [[7], [1, 2, 3, 4, 5], list(range(100, 140))]


@torch.inference_mode()
def difference(rounds: Rounds, draft: Draft) -> float:
    """How far a draft is from fresh drafters': the largest difference of a score, infinity where a
    tree is not the same."""
    worst = 0.0
    for row, text in enumerate(rounds.texts):
        kind = "eagle3" if rounds.kind == RECORDED else rounds.kind
        fresh, known = new_drafter(kind), torch.tensor(text)
        fresh.open(1, len(text) + 256)  # it never grows
        features = plain_features(text[:-1]) if fresh.feature_layers else None
        fresh.prefill(0, known[:-1], features)
        wanted = fresh.draft(known.unsqueeze(0), known.new_tensor([len(text)]), rounds.plan)
        used = int(wanted.tree.used.sum())
        for field in ("tokens", "parents", "depths", "used"):
            ours = getattr(draft.tree, field)[row, :used]
            if not torch.equal(getattr(wanted.tree, field)[0, :used], ours):
                return float("inf")
        assert int(draft.tree.used[row].sum()) == used
        assert int(draft.stage[row]) == int(wanted.stage)
        gap = (wanted.scores[0, :used] - draft.scores[row, :used]).abs().max()
        worst = max(worst, float(gap))
    return worst


def check(rounds: Rounds) -> None:
    """One more round, whose draft must be a fresh drafter's."""
    draft = rounds.draft()
    assert difference(rounds, draft) < EXACT
    rounds.finish(draft)


@pytest.mark.parametrize("texts", [TEXTS[1:2], TEXTS])
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_rounds(kind: str, texts: list[list[int]]) -> None:
    rounds = Rounds(kind, texts)
    for _ in range(5):
        rounds.run(3)
        check(rounds)
    assert {0, 1, 2} <= {*rounds.accepted}
    assert sum(rounds.accepted) > len(rounds.accepted)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_come_and_go(kind: str) -> None:
    rounds = Rounds(kind, TEXTS)
    rounds.run(2)
    rounds.leave(0)
    check(rounds)
    rounds = Rounds(kind, TEXTS, seed=1)
    rounds.run(2)
    rounds.leave(1)
    rounds.run(2)
    rounds.enter([9, 8, 7])
    rounds.run(1)
    rounds.leave(0)
    rounds.enter(list(range(30)))
    rounds.run(2)
    check(rounds)


@pytest.mark.parametrize("keep", [0, 1, 20, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_turn(kind: str, keep: int) -> None:
    """As much of the first turn as both have, be it nothing, some, or all of it."""
    for rest in (1, 7):
        rounds = Rounds(kind, TEXTS[2:], seed=rest)
        rounds.run(4)
        rounds.turn(0, min(keep, len(rounds.texts[0])), rest)
        check(rounds)
        rounds.run(3)
        check(rounds)


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_back_beside_others(kind: str) -> None:
    rounds = Rounds(kind, TEXTS, seed=4)
    rounds.run(3)
    rounds.turn(1, 6, 2)
    rounds.run(2)
    check(rounds)


@pytest.mark.parametrize("texts", [TEXTS[1:2], TEXTS])
@pytest.mark.parametrize("kind", ["eagle3", RECORDED])
def test_rounds_that_were_sat_out(kind: str, texts: list[list[int]]) -> None:
    rounds = Rounds(kind, texts)
    assert rounds.drafter.waits
    for count in (1, 4, 2, 7):
        rounds.sit_out(count)
        check(rounds)
        rounds.run(1)
    rounds.sit_out(3)
    rounds.turn(0, 4, 3)
    check(rounds)
    assert isinstance(rounds.drafter, Eagle3Drafter)
    for count in (12, 40):  # rows of its own for those that have waited long
        rounds.sit_out(count)
        assert all(FEW < len(rows) <= MANY + 6 for rows in rounds.drafter._waiting)
        check(rounds)
    rounds = Rounds(kind, TEXTS)  # one leaves while features wait
    rounds.sit_out(3)
    rounds.leave(0)
    rounds.sit_out(2)
    check(rounds)


@pytest.mark.parametrize("texts", [[246], [255], [250, 3]])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_that_grows(kind: str, texts: list[int]) -> None:
    """Between rounds, and in the middle of a draft, whose rows are not committed."""
    made = [[(7 * i + n) % 256 for i in range(n)] for n in texts]
    rounds = Rounds(kind, made, plan=DEEP)
    cache = cache_of(rounds.drafter)
    before, grown = cache.capacity, False
    while cache.capacity == before:
        draft = rounds.draft()
        grown = cache.capacity > before
        assert difference(rounds, draft) < EXACT
        rounds.finish(draft)
    assert grown, "in the middle of a draft"
    check(rounds)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_in_several_chunks(kind: str) -> None:
    rounds = Rounds(kind, [[(5 * i) % 251 for i in range(530)], [3, 4]])
    check(rounds)
    rounds.run(2)
    check(rounds)


def test_recorded_rounds_are_replayed() -> None:
    rounds = Rounds(RECORDED, TEXTS)
    rounds.run(6)
    for part in (rounds.target, rounds.drafter):
        assert isinstance(part, TransformersTarget | Eagle3Drafter)
        recordings = part._recordings
        assert recordings is not None
        recorder = recordings._recorder
        assert isinstance(recorder, TapeRecorder), "nothing has failed"
        assert recorder.replays >= 6


def test_a_recorded_head_reads_weights_and_caches_alone() -> None:
    rounds = Rounds(RECORDED, TEXTS[1:2])
    rounds.run(8)
    drafter = rounds.drafter
    assert isinstance(drafter, Eagle3Drafter)
    assert drafter._recordings is not None
    recorder = drafter._recordings._recorder
    assert isinstance(recorder, TapeRecorder)
    known = [*drafter.head.parameters(), *drafter.head.buffers(), *drafter.cache._storage]
    known += [*double_model().parameters()]  # embeddings
    known += [given for kept in drafter._recordings._kept.values() for given in kept.inputs]
    assert recorder.read <= {storage(tensor) for tensor in known}


def test_the_check_sees_the_cache_of_a_recording_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings of rows that stand elsewhere by now."""
    rounds = Rounds(RECORDED, TEXTS)
    rounds.run(2)
    monkeypatch.setattr(Recordings, "hold", lambda *_: None)
    cache = cache_of(rounds.drafter)
    cache._storage = [storage.clone() for storage in cache._storage]
    rounds.run(1)
    assert difference(rounds, rounds.draft()) > 1e-3


# Faults that no comparison of answers can see ---------------------------------------------------


@pytest.mark.parametrize("fault", HEAD_FAULTS)
def test_the_check_sees(fault: HeadFault, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds("eagle3", TEXTS)
    rounds.run(1)
    assert isinstance(rounds.drafter, Eagle3Drafter)
    fault(rounds.drafter, monkeypatch)
    rounds.run(2)
    if fault is forgotten_move:
        rounds.leave(0)
    assert difference(rounds, rounds.draft()) > 1e-3


def test_the_check_sees_waiting_features_that_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of positions that the next turn does not run again."""
    rounds = Rounds("eagle3", TEXTS[2:])
    drafter = rounds.drafter
    assert isinstance(drafter, Eagle3Drafter)
    rounds.run(3)
    while len(drafter._waiting[0]) < 2:
        rounds.run(1)
    truncate = drafter.truncate

    def drop(slot: int, length: int) -> None:
        truncate(slot, length)
        drafter._waiting[slot] = drafter._waiting[slot][:0]

    monkeypatch.setattr(drafter, "truncate", drop)
    rounds.turn(0, len(rounds.texts[0]), 7)
    with pytest.raises(RuntimeError, match="0 elements"):  # no row is left for the root
        rounds.draft()


def test_the_check_sees_features_of_rounds_that_were_sat_out_get_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = Rounds("eagle3", TEXTS)
    drafter = rounds.drafter
    assert isinstance(drafter, Eagle3Drafter)
    rounds.run(2)
    commit = drafter.commit

    def forgetful(paths: Sequence[Sequence[int]], features: torch.Tensor | None) -> None:
        commit(paths, features)
        for slot in range(len(paths)):
            # As many as there should be, all of them of this round.
            waiting = drafter._waiting[slot]
            drafter._waiting[slot] = waiting[-1:].expand_as(waiting).clone()

    monkeypatch.setattr(drafter, "commit", forgetful)
    rounds.sit_out(2)
    assert difference(rounds, rounds.draft()) > 1e-3


def test_the_check_sees_long_waits_that_lose_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds("eagle3", TEXTS[1:2])
    drafter = rounds.drafter
    assert isinstance(drafter, Eagle3Drafter)
    remember = drafter._remember

    def short(slot: int, context: torch.Tensor, count: int) -> None:
        remember(slot, context, count)
        drafter.cache.lengths[slot] -= 1
        drafter._waiting[slot] = torch.cat([drafter._waiting[slot][:1], drafter._waiting[slot]])

    rounds.sit_out(12)
    monkeypatch.setattr(drafter, "_remember", short)
    assert difference(rounds, rounds.draft()) > 1e-3


def test_the_check_sees_a_row_that_is_read_behind_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The poison is seen: one row too many counts as committed."""
    rounds = Rounds("eagle3", TEXTS[1:2])
    rounds.run(2)
    rounds.poison()
    monkeypatch.setattr(rounds, "poison", lambda: None)
    cache_of(rounds.drafter).lengths[0] += 1
    draft = rounds.draft()
    assert not bool(draft.tree.used[0, 1]), "no number, no draft"


def test_the_check_sees_a_model_that_misses_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds("model", TEXTS)
    commit = rounds.drafter.commit
    rounds.run(1)
    monkeypatch.setattr(rounds.drafter, "commit", lambda p, f: commit([q[:1] for q in p], f))
    rounds.run(3)
    assert difference(rounds, rounds.draft()) > 1e-3


# Features ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [(0,), (1,), (3,), (0, 1, 3), (3, 0)])
def test_features_are_the_inputs_of_layers(layers: tuple[int, ...]) -> None:
    """At prefill, chunk by chunk, as in a plain forward of the whole text."""
    target, text, found = new_target(layers), [(3 * i) % 256 for i in range(300)], []
    target.open(1, 300)
    with torch.inference_mode():
        target.prefill(0, torch.tensor(text), absorb=lambda part: found.append(part))
    assert [len(part) for part in found] == [256, 44]
    torch.testing.assert_close(torch.cat(found), plain_features(text, layers), atol=1e-9, rtol=0)


def test_features_of_nodes_are_those_of_their_paths() -> None:
    rounds = Rounds("eagle3", TEXTS)
    rounds.run(2)
    texts = [list(text) for text in rounds.texts]
    tree, seen = rounds.finish(rounds.draft())
    assert seen.features is not None
    for row, text in enumerate(texts):
        for node in range(0, int(tree.used[row].sum()), 3):
            path = tree.tokens[row, path_of(tree, row, node)].tolist()
            plain = plain_features([*text[:-1], *path])[-1]
            torch.testing.assert_close(seen.features[row, node], plain, atol=1e-9, rtol=0)
