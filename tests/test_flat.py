"""What a round costs besides its forwards is the same at any length of the text.

Counted, not timed: the elements that torch's operations make or fill while a round grafts, walks,
learns and commits; the forwards of target and head, which read the whole text, are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from graft.decoder import BatchDecoder
from graft.drafters.eagle3.drafter import Eagle3Drafter
from graft.engine import Engine
from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings
from graft.target import TransformersTarget
from tests.cost_tables import FREE
from tests.exactness.heads import LAYERS, trained_head
from tests.fakes import byte_tokenizer
from tests.tiny_models import EOS_ID, VOCAB_SIZE, tiny_model

SHORT, LONG = 1000, 8000
FILLING = {"copy_", "fill_", "zero_", "add_", "mul_", "div_", "where_", "masked_fill_"}


class Elements(TorchDispatchMode):
    """Counts elements, but for those of forwards."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count, self.paused = 0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = isinstance(out, Tensor) and func._schema.returns[0].alias_info is None
        filled = func.__name__.partition(".")[0] in FILLING
        if not self.paused and (made or filled):
            self.count += out.numel()
        return out


@pytest.fixture
def engine() -> Engine:
    model = tiny_model("llama", max_position_embeddings=2 * LONG)
    return Engine(
        TransformersTarget(model, max_context=2 * LONG, feature_layers=LAYERS),
        byte_tokenizer(),
        name="llama",
        token_count=VOCAB_SIZE,
        eos_token_ids=(EOS_ID,),
        settings=EngineSettings(),
        drafter=Eagle3Drafter(trained_head(), model.get_input_embeddings(), VOCAB_SIZE),
        costs=FREE,
    )


def paused(elements: list[Elements], work: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        for one in elements:
            one.paused = True
        out = work(*args, **kwargs)
        for one in elements:
            one.paused = False
        return out

    return run


def per_round(
    engine: Engine, length: int, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[int]:
    """Elements of each round behind a prompt of so many tokens."""
    running: list[Elements] = []
    counts: list[int] = []
    round_ = BatchDecoder.round

    def counted(decoder: BatchDecoder) -> Any:
        with Elements() as elements:
            running.append(elements)
            out = round_(decoder)
            running.remove(elements)
        counts.append(elements.count)
        return out

    with monkeypatch.context() as patch:
        patch.setattr(BatchDecoder, "round", counted)
        patch.setattr(TransformersTarget, "verify", paused(running, TransformersTarget.verify))
        patch.setattr(Eagle3Drafter, "draft", paused(running, Eagle3Drafter.draft))
        random = torch.Generator().manual_seed(1)
        prompt = torch.randint(0, EOS_ID, (length,), generator=random).tolist()
        params = SamplingParams(max_new_tokens=40, ignore_eos=True)
        engine.generate(prompt, params, **options)
    return counts


@pytest.mark.parametrize("policy", ["plain", "retrieval", "eagle3", "graft", "graft+"])
def test_rounds_cost_the_same_behind_any_text(
    policy: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = (
        per_round(engine, length, monkeypatch, policy=policy, budget=16) for length in (SHORT, LONG)
    )
    assert len(short) > 5
    assert statistics.median(long) < 1.5 * statistics.median(short)


def test_a_copy_of_the_text_would_be_seen(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    state = BatchDecoder._state

    def copying(decoder: BatchDecoder) -> Any:
        history, length, roots = state(decoder)
        return history.clone(), length, roots

    monkeypatch.setattr(BatchDecoder, "_state", copying)
    short, long = (
        per_round(engine, length, monkeypatch, policy="plain") for length in (SHORT, LONG)
    )
    assert statistics.median(long) > 3 * statistics.median(short)
