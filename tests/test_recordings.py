"""Recordings: what is replayed is what would have been computed, whatever stood there before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from graft import recordings as recordings_module
from graft import target as target_module
from graft.attention import Step
from graft.cache import BLOCK, KVCache
from graft.cuda_graphs import recorder_for
from graft.model_state import state_of
from graft.recordings import Recordings, Results
from graft.target import TransformersTarget, Verification
from graft.tree import TokenTree, root_tree
from tests.random_trees import FIVE, make_tree
from tests.tape import NotRecordable, TapeRecorder, played_back, storage
from tests.tiny_models import tiny_model

LAYERS = (0, 2, 3)
PAIR = [FIVE, [*FIVE, (4, 3)]]


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def double(x: Tensor, y: Tensor) -> Results:
    return x * 2 + y, torch.arange(3) + y


class TestRecordings:
    def test_a_work_is_recorded_once_per_key(self) -> None:
        recorder, calls = TapeRecorder(), []
        kept = Recordings(recorder, "this")

        def work(x: Tensor, y: Tensor) -> Results:
            calls.append(x)
            return double(x, y)

        for n in range(5):
            given = torch.full((3,), float(n)), torch.tensor([n, n, n])
            found = kept.run("a", work, given)
            assert [f.tolist() for f in found] == [f.tolist() for f in double(*given)]
        assert (len(calls), recorder.replays) == (2, 5)
        kept.run("b", work, given)
        assert len(calls) == 4

    def test_all_is_recorded_anew_where_something_held_has_changed(self) -> None:
        kept, scale = Recordings(TapeRecorder(), "this"), [1.0]

        def work(x: Tensor) -> Results:
            return (x * scale[0],)

        def run() -> float:
            kept.hold(scale[0])
            return float(kept.run("a", work, (torch.ones(1),))[0])

        assert run() == 1.0
        scale[0] = 3.0
        assert run() == 3.0

    def test_few_are_kept_those_that_were_used_last(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recordings_module, "MOST", 2)
        recorded: list[str] = []
        kept = Recordings(TapeRecorder(), "this")

        def run(key: str) -> None:
            def work(x: Tensor) -> Results:
                recorded.append(key)
                return (x + 1,)

            kept.run(key, work, (torch.zeros(1),))

        for key in "abacab":
            run(key)
        assert recorded[::2] == ["a", "b", "c", "b"]
        assert len(kept) == 2

    def test_their_results_take_a_bounded_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recordings_module, "BYTES", 1000)
        kept = Recordings(TapeRecorder(), "this")
        for size in (100, 100, 50, 100, 900):
            found = kept.run((size, len(kept)), lambda x: (x + 1,), (torch.zeros(size),))
            assert len(found[0]) == size
            assert kept.bytes <= max(1000, 4 * size)
        assert len(kept) == 1

    @pytest.mark.parametrize(
        "bad",
        [
            lambda x: (x * float(x[0]),),
            lambda x: (x * x.tolist()[0],),
            lambda x: (x + torch.tensor([1.0]),),
            lambda x: (x[x > 0],),
        ],
    )
    def test_what_cannot_be_recorded_is_done_without(
        self, bad: Callable[[Tensor], Results], caplog: pytest.LogCaptureFixture
    ) -> None:
        kept = Recordings(TapeRecorder(), "this model")
        with caplog.at_level(logging.WARNING, "graft"):
            for n in (1.0, 2.0):
                given = torch.full((2,), n)
                assert torch.equal(kept.run("a", bad, (given,))[0], bad(given)[0])
        (record,) = caplog.records
        assert "this model runs without CUDA graphs" in record.getMessage()
        assert "changes no token" in record.getMessage()

    def test_a_fault_of_the_work_itself_is_not_hidden(self) -> None:
        with pytest.raises(RuntimeError, match="shape"):
            Recordings(TapeRecorder(), "this").run("a", lambda x: (x.view(7),), (torch.zeros(2),))

    def test_only_one_cuda_device_has_a_recorder(self) -> None:
        def recorder(*devices: str) -> Any:
            weights = [SimpleNamespace(device=torch.device(name)) for name in devices]
            return recorder_for(SimpleNamespace(parameters=lambda: weights))  # type: ignore

        assert recorder() is None
        assert recorder("cpu", "cpu") is None
        assert recorder("cuda:0", "cuda:0") is not None
        assert recorder("cuda:0", "cuda:1") is None
        assert recorder("cuda:0", "cpu") is None


class TestTape:
    """The stand-in for CUDA graphs sees what it is there to see."""

    def test_memory_of_one_recording_holds_nothing_after_another(self) -> None:
        kept = Recordings(TapeRecorder(), "this")
        (first,) = kept.run("a", lambda x: (x + 1,), (torch.zeros(2),))
        assert first.tolist() == [1, 1]
        kept.run("b", lambda x: (x + 2,), (torch.zeros(2),))
        assert first.isnan().all()

    def test_what_python_does_once_is_not_done_again(self) -> None:
        kept, numbers = Recordings(TapeRecorder(), "this"), [1.0, 2.0, 3.0, 4.0]
        work = lambda x: (x + numbers.pop(0),)  # noqa: E731
        found = [float(kept.run("a", work, (torch.zeros(1),))[0]) for _ in range(3)]
        assert found == [2.0, 2.0, 2.0]

    def test_what_is_read_from_outside_is_known(self) -> None:
        recorder, weight = TapeRecorder(), torch.ones(2)
        given = torch.zeros(2)
        Recordings(recorder, "this").run("a", lambda x: (x + weight,), (given,))
        assert storage(weight) in recorder.read
        assert storage(given) not in recorder.read, "inputs are copied"

    def test_reading_back_is_refused(self) -> None:
        with pytest.raises(NotRecordable, match="reads a number back"):
            TapeRecorder().record(lambda: (torch.zeros(int(torch.ones(1))),))


def pair(family: str, slots: int = 2) -> tuple[TransformersTarget, TransformersTarget]:
    """A target that is recorded, and one of the same model that is not."""
    model, recorder = tiny_model(family), TapeRecorder()
    made = [
        TransformersTarget(model, feature_layers=LAYERS, max_context=4096, recorder=r)
        for r in (recorder, None)
    ]
    for target in made:
        target.open(slots, 64)
    return made[0], made[1]


def recorder_of(target: TransformersTarget) -> TapeRecorder:
    assert target._recordings is not None
    assert isinstance(target._recordings._recorder, TapeRecorder), "recording failed"
    return target._recordings._recorder


def prefill(targets: Sequence[TransformersTarget], *lengths: int) -> None:
    for slot, length in enumerate(lengths):
        tokens = torch.randint(0, 255, (length,), generator=torch.Generator().manual_seed(length))
        for target in targets:
            target.prefill(slot, tokens)


def spoil(cache: KVCache) -> None:
    """Rows that are not committed hold something, as old trees leave it."""
    for group in cache._storage:
        for slot, length in enumerate(cache.lengths):
            group[:, slot, :, length:] = 1e4


def both(
    targets: tuple[TransformersTarget, TransformersTarget], tree: TokenTree
) -> tuple[Verification, Verification]:
    spoil(targets[0].cache)
    with played_back(recorder_of(targets[0])):
        found = targets[0].verify(tree)
    return found, targets[1].verify(tree)


def far(found: Verification, wanted: Verification) -> float:
    """The largest difference of anything; infinity where something is no number."""
    gaps = [(a - b).abs().max() for a, b in zip(found, wanted, strict=True)]
    worst = float(torch.stack(gaps).max())
    return worst if worst == worst else float("inf")


def rounds(
    targets: tuple[TransformersTarget, TransformersTarget], trees: Sequence[TokenTree]
) -> list[float]:
    """Verify and commit; how far both are apart in each."""
    gaps = []
    for tree in trees:
        gaps.append(far(*both(targets, tree)))
        path = [[1, 3], [2]][: tree.batch] if tree.width > 3 else [[]] * tree.batch
        for target in targets:
            target.commit(path)
    return gaps


TREES = [
    make_tree(PAIR, [5, 8]),
    root_tree(torch.tensor([3, 4])),
    make_tree(PAIR, [9, 1]),
    make_tree([[*FIVE, (2, 9), (6, 4)], FIVE], [2, 6]),
    make_tree(PAIR, [200, 17]),
]


@pytest.mark.parametrize(
    "family",
    ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "qwen3_moe"],
)
def test_replayed_verifications_are_those_of_the_model(family: str) -> None:
    targets = pair(family)
    prefill(targets, 30, 7)
    assert max(rounds(targets, TREES * 2)) < 1e-3
    assert len(targets[0]._recordings or ()) <= 4, "lengths and tokens record nothing anew"


def test_a_model_that_reads_numbers_back_runs_without() -> None:
    targets = pair("gpt2")  # it looks for padding among the tokens
    prefill(targets, 30, 7)
    for tree in TREES:
        assert far(targets[0].verify(tree), targets[1].verify(tree)) < 1e-3
    assert not len(targets[0]._recordings or ())


def test_one_sequence_and_trees_of_any_width_share_few_recordings() -> None:
    targets = pair("llama", slots=1)
    prefill(targets, 20)
    chains = [make_tree([[(i, i + 1) for i in range(n)]], [n]) for n in range(1, 20)]
    assert max(rounds(targets, chains)) < 1e-3
    assert len(targets[0]._recordings or ()) <= 10


def test_a_cache_that_grows_is_recorded_anew() -> None:
    targets = pair("llama")
    prefill(targets, BLOCK - 20, 7)
    gaps = rounds(targets, TREES * 4)
    assert targets[0].cache.capacity > BLOCK
    assert max(gaps) < 1e-3


def elsewhere(targets: tuple[TransformersTarget, TransformersTarget]) -> list[float]:
    """Rounds, and the same over another cache, which is larger."""
    gaps = []
    for capacity in (64, 2 * BLOCK):
        for target in targets:
            target.open(2, capacity)
        prefill(targets, 30, 7)
        gaps += rounds(targets, TREES)
    return gaps


def test_another_cache_is_recorded_anew() -> None:
    assert max(elsewhere(pair("llama"))) < 1e-3


def test_a_recording_of_another_cache_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recordings, "hold", lambda *_: None)
    assert max(elsewhere(pair("llama"))) > 0.1


def test_lengths_of_the_host_in_a_recording_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = pair("llama")
    prefill(targets, 30, 7)

    def hosts(starts: Tensor, end: int, visible: Tensor, depths: Tensor) -> Step:
        return Step(0, targets[0].cache.lengths[:2], visible, depths)

    monkeypatch.setattr(target_module, "FixedStep", hosts)
    monkeypatch.setattr(Step, "starts_on", lambda self, device: torch.zeros(2).long() + 30)
    assert max(rounds(targets, TREES * 2)) > 0.1


def test_only_weights_and_the_cache_are_read_from_outside() -> None:
    targets = pair("llama")
    prefill(targets, 30, 7)
    rounds(targets, TREES)
    target = targets[0]
    recorder = recorder_of(target)
    known = {storage(t) for t in (*target.model.parameters(), *target.model.buffers())}
    known |= {storage(t) for t in target.cache._storage}
    assert target._lean is not None
    norms = [n for layer in target._lean._layers for n in (layer.before, layer.between)]
    known |= {storage(norm.size) for norm in (*norms, target._lean._norm)}
    known |= {storage(place) for kept in target._recordings._kept.values() for place in kept.inputs}
    assert recorder.read <= known


def test_what_the_model_holds_stays_where_it_is_from_call_to_call() -> None:
    """A recording reads addresses: calls after it must not move what stands there."""
    targets = pair("llama")
    lean = targets[0]._lean
    for _ in range(3):
        for target in targets:
            target.open(2, 64)
        prefill(targets, 30, 7)
        assert max(rounds(targets, TREES)) < 1e-3
    assert targets[0]._lean is lean
    recorded = len(targets[0]._recordings or ())
    assert recorded <= 4


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.model.norm, "variance_epsilon", 0.5),
        lambda model: model.lm_head.register_forward_hook(lambda _m, _a, out: out * 2),
        lambda model: model.model.layers[0].mlp.up_proj.register_forward_pre_hook(
            lambda _m, args: (args[0] * 3,)
        ),
        lambda model: setattr(model.lm_head, "weight", torch.nn.Parameter(torch.ones(256, 64))),
        lambda model: model.lm_head.weight.mul_(0.5),
        lambda model: setattr(model.model.layers[1], "mlp", model.model.layers[0].mlp),
    ],
)
def test_a_model_that_others_change_is_recorded_anew(change: Callable[[Any], object]) -> None:
    targets = pair("llama")
    for number in range(3):
        for target in targets:
            target.open(2, 64)
        prefill(targets, 30, 7)
        assert max(rounds(targets, TREES)) < 1e-3
        if number == 0:
            before = targets[0].verify(TREES[0]).logits.clone()
            change(targets[0].model)
            targets[0].open(2, 64)
            prefill(targets[:1], 30, 7)
            assert far_apart(targets[0].verify(TREES[0]).logits, before)


def test_a_hook_in_the_place_of_another_is_seen() -> None:
    """Also where it has the address of the one that is gone."""
    layer = torch.nn.Linear(2, 2)
    states = []
    for factor in range(50):
        handle = layer.register_forward_hook(lambda _m, _a, out, by=factor: out * by)
        states.append(state_of(layer))
        handle.remove()
    assert all(one != other for i, one in enumerate(states) for other in states[:i])
    assert state_of(layer) == state_of(layer)


def far_apart(one: Tensor, other: Tensor) -> bool:
    return float((one - other).abs().max()) > 1e-2
