"""Recorded forwards say what plain decoding says, whatever the rounds are like.

The tape that stands for CUDA graphs poisons everything that a recording has made before it replays
one, so an answer that read anything old would be another.
"""

from __future__ import annotations

from typing import Any

import pytest

from graft.drafters.eagle3.drafter import Eagle3Drafter
from graft.engine import Engine
from graft.recordings import Recordings
from graft.target import TransformersTarget
from tests.cost_tables import DEAR
from tests.exactness.cases import SETTINGS
from tests.exactness.drafting import agree, embed, engine, plain, tau, taught
from tests.exactness.heads import LAYERS, trained_head
from tests.exactness.helpers import PROMPTS
from tests.tape import TapeRecorder
from tests.tiny_models import VOCAB_SIZE, tiny_model


def recorded(recorder: TapeRecorder, **settings: Any) -> Engine:
    """An engine whose target and head are recorded."""
    model = tiny_model("llama")
    target = TransformersTarget(model, max_context=4096, feature_layers=LAYERS, recorder=recorder)
    head = Eagle3Drafter(trained_head(), embed(), VOCAB_SIZE, recorder=recorder)
    return engine(head, of=target, **settings)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("setting", ["greedy", "all cuts"])
@pytest.mark.parametrize("policy", ["retrieval", "eagle3", "pruned", "graft", "graft+"])
def test_every_policy(policy: str, setting: str, batch: int) -> None:
    recorder = TapeRecorder()
    made = taught(recorded(recorder), setting)
    found = agree(made, setting, policy=policy, batch=batch)
    assert recorder.replays >= max(result.stats.rounds for result in found)
    assert tau(found) > 1.2


@pytest.mark.parametrize("batch", [1, 3])
def test_plain_decoding(batch: int) -> None:
    recorder = TapeRecorder()
    made = recorded(recorder)
    found = made.generate(PROMPTS[:batch], SETTINGS["all cuts"](), policy="plain")
    assert [r.token_ids for r in found] == plain(PROMPTS[:batch], "all cuts", batch)
    assert recorder.replays >= max(result.stats.rounds for result in found)


@pytest.mark.parametrize("budget", [1, 4, 60])
def test_any_budget(budget: int) -> None:
    recorder = TapeRecorder()
    agree(taught(recorded(recorder), "greedy"), "greedy", policy="graft", budget=budget)
    assert recorder.replays > 20


def test_rounds_that_spend_as_they_go() -> None:
    """Trees of many widths, rounds that sit out, drafts of many depths."""
    recorder = TapeRecorder()
    made = recorded(recorder, costs=DEAR)
    for _ in range(3):
        agree(made, "greedy", policy="graft+", budget=16, batch=1)
    assert recorder.replays > 20


def test_a_head_that_read_what_is_old_would_be_seen_by_its_taus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the theorem no draft can change a token, so the answers stay; the drafts are worse."""
    good = agree(recorded(TapeRecorder()), "greedy", policy="eagle3", batch=1)
    run = Recordings.run

    def stale(self: Recordings, key: Any, work: Any, arguments: Any) -> Any:
        if self._name == "the head" and len(self):
            kept = next(iter(self._kept.values()))
            if len(kept.inputs) == len(arguments) and key in self._kept:
                self._kept[key].replay()  # inputs of the last run
                return self._kept[key].results
        return run(self, key, work, arguments)

    monkeypatch.setattr(Recordings, "run", stale)
    bad = agree(recorded(TapeRecorder()), "greedy", policy="eagle3", batch=1)
    assert tau(bad) < tau(good) - 0.3


def test_a_target_that_read_what_is_old_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Recordings.run

    def stale(self: Recordings, key: Any, work: Any, arguments: Any) -> Any:
        if self._name != "the head" and key in self._kept:
            self._kept[key].replay()
            return self._kept[key].results
        return run(self, key, work, arguments)

    monkeypatch.setattr(Recordings, "run", stale)
    with pytest.raises(AssertionError):
        agree(recorded(TapeRecorder()), "greedy", policy="graft", batch=1)
