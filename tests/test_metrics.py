"""Numbers of rounds: tau, ratios, shares of time, and the alarm."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import torch

from graft.metrics import CollapseAlarm, RoundRecord, RoundTimes, Stats, Stopwatch, summarise
from tests.records import make_record

TIMES = RoundTimes(draft=1.0, graft=2.0, verify=4.0, commit_update=2.0, other=1.0, lookup=0.5)


def record(**changes: Any) -> RoundRecord:
    return make_record(**{"times": TIMES, **changes})


def stats(*records: RoundRecord, **changes: Any) -> Stats:
    numbers: dict[str, Any] = {
        "generated": 1,
        "trimmed": 0,
        "prefill_seconds": 0.5,
        "decode_seconds": 2.0,
        "time_to_first_token": 0.75,
    }
    return summarise(records, **{**numbers, **changes})


def test_tau_of_rounds_that_accept_nothing_is_one() -> None:
    assert stats(record(), record()).tau == 1.0


def test_tau_counts_the_bonus() -> None:
    rounds = record(accepted_retrieved=2), record(accepted_draft=1), record()
    assert stats(*rounds).tau == 2.0


def test_without_rounds_there_is_no_ratio() -> None:
    found = stats()
    assert found.rounds == 0
    for name in (
        "tau",
        "draft_accept_ratio",
        "retrieved_accept_ratio",
        "verification_waste",
        "matrix_hit_rate",
    ):
        assert getattr(found, name) is None
    assert found.time_split == {}


def test_plain_decoding_proposes_nothing_and_wastes_nothing() -> None:
    found = stats(record(proposed_retrieved=0, lookups=0, hits=0))
    assert found.tau == 1.0
    assert found.verification_waste is None
    assert found.retrieved_accept_ratio is None
    assert found.matrix_hit_rate is None


def test_ratios_are_of_sums() -> None:
    found = stats(
        record(proposed_draft=4, accepted_draft=1, accepted_retrieved=2, lookups=30, hits=3),
        record(proposed_draft=0, empty_slots=4, rows_written=1),
    )
    assert found.draft_accept_ratio == 1 / 4
    assert found.retrieved_accept_ratio == 2 / 16
    assert found.verification_waste == pytest.approx(1 - 3 / 20)
    assert found.matrix_hit_rate == 11 / 40
    assert (found.accepted_draft, found.accepted_retrieved) == (1, 2)
    assert (found.proposed_draft, found.proposed_retrieved) == (4, 16)
    assert (found.empty_slots, found.rows_written) == (4, 10)


def test_speed_counts_the_tokens_after_the_first() -> None:
    assert stats(generated=9, decode_seconds=2.0).tokens_per_second == 4.0
    assert stats(generated=1, decode_seconds=0.0).tokens_per_second is None


def test_shares_of_time_add_up_to_one() -> None:
    split = stats(record(), record()).time_split
    assert split == {
        "draft": 0.1,
        "graft": 0.2,
        "verify": 0.4,
        "commit_update": 0.2,
        "other": 0.1,
    }


def test_the_lookup_is_no_part_of_the_total() -> None:
    assert TIMES.total == 10.0
    assert stats(record(), record()).lookup_seconds == 1.0


def test_stages_and_drafting_add_up() -> None:
    found = stats(
        record(stage="d0", kept_draft=2, released_slots=6, draft_steps=0, redirected=1),
        record(stage="d1", kept_draft=4, released_slots=4, draft_steps=1),
        record(stage="d0", kept_draft=2, released_slots=6, draft_steps=0, redirected=2),
    )
    assert found.stage_histogram == {"d0": 2, "d1": 1}
    assert (found.kept_draft, found.released_slots) == (8, 16)
    assert (found.draft_steps, found.redirected) == (1, 3)


def test_records_add_up_their_sources() -> None:
    one = record(proposed_draft=3, accepted_draft=1, accepted_retrieved=2)
    assert (one.proposed, one.accepted) == (11, 3)
    assert TIMES.total == 10.0


def test_the_dictionary_is_json_with_rounds_on_request() -> None:
    found = stats(record(accepted_retrieved=2), trimmed=3)
    short, long = found.to_dict(), found.to_dict(rounds=True)
    assert "round_records" not in short
    assert json.loads(json.dumps(short))["trimmed"] == 3
    assert json.loads(json.dumps(long))["round_records"][0]["times"]["verify"] == 4.0


def test_a_stopwatch_adds_laps_of_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    watch = Stopwatch(torch.device("cpu"))
    for name in ("other", "verify", "other", "graft"):
        watch.lap(name)
    assert watch.read(0.25) == RoundTimes(other=4.0, verify=2.0, graft=4.0, lookup=0.25)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="graft")
    return caplog


def test_the_alarm_is_raised_once(warnings: pytest.LogCaptureFixture) -> None:
    alarm = CollapseAlarm(rounds=4, least=0.5)
    for _ in range(10):
        alarm.look([record()])
    assert alarm.raised
    assert len(warnings.messages) == 1
    assert "tau was 1.00 over the last 4 rounds" in warnings.messages[0]


def test_the_alarm_waits_for_a_full_window(warnings: pytest.LogCaptureFixture) -> None:
    alarm = CollapseAlarm(rounds=4, least=0.5)
    alarm.look([record()] * 3)
    assert not alarm.raised
    alarm.look([record()])
    assert alarm.raised


def test_the_alarm_is_silent_while_enough_is_accepted(warnings: pytest.LogCaptureFixture) -> None:
    alarm = CollapseAlarm(rounds=4, least=0.5)
    for _ in range(5):
        alarm.look([record(accepted_retrieved=1), record()])  # 0.5 per round
    assert not warnings.messages


def test_the_alarm_forgets_what_left_the_window(warnings: pytest.LogCaptureFixture) -> None:
    alarm = CollapseAlarm(rounds=4, least=0.5)
    alarm.look([record(accepted_retrieved=8)])
    alarm.look([record()] * 3)
    assert not alarm.raised
    alarm.look([record()])
    assert alarm.raised


def test_rounds_that_proposed_nothing_do_not_count(warnings: pytest.LogCaptureFixture) -> None:
    alarm = CollapseAlarm(rounds=2)
    alarm.look([record(proposed_retrieved=0)] * 9)
    assert not alarm.raised
