"""What a CUDA device must show: the same tokens there, in each dtype, and one wait per round.

Run by hand where there is one: `python -m pytest -m gpu`.
"""

from __future__ import annotations

import pytest
import torch

from graft.drafters.eagle3.drafter import Eagle3Drafter
from graft.engine import Engine
from graft.exactness import compare
from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings
from graft.target import TransformersTarget
from tests.exactness.heads import LAYERS, trained_head
from tests.exactness.helpers import PROMPTS, family_engine, plain_answers
from tests.fakes import byte_tokenizer
from tests.tiny_models import EOS_ID, FAMILIES, VOCAB_SIZE, tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def cuda_target(family: str, dtype: torch.dtype) -> TransformersTarget:
    return TransformersTarget(tiny_model(family).to("cuda", dtype), max_context=4096)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("family", FAMILIES)
def test_same_tokens_on_cuda(family: str, temperature: float, dtype: torch.dtype) -> None:
    engine = family_engine(family, cuda_target(family, dtype))
    params = SamplingParams(temperature=temperature, seed=5, max_new_tokens=48, ignore_eos=True)
    for answer in plain_answers(engine, PROMPTS, params, batch=3):
        engine.matrix.learn_text(torch.tensor(answer, device="cuda"))
    found = compare(engine, PROMPTS, params, budget=16, batch=3)
    assert found.same, found.mismatches
    assert found.tau is not None
    assert found.tau > 1.2


def test_the_matrix_learns_on_cuda_what_it_learns_on_the_cpu() -> None:
    on_cuda, on_cpu = (
        family_engine("llama", cuda_target("llama", torch.float32)),
        family_engine("llama"),
    )
    for engine in (on_cuda, on_cpu):
        engine.generate(PROMPTS, max_new_tokens=32, budget=16)
    same = on_cuda.matrix.ids.cpu() == on_cpu.matrix.ids
    assert float(same.float().mean()) > 0.99  # near-equal logits may swap ranks


def test_a_round_waits_for_the_device_once() -> None:
    engine = family_engine("llama", cuda_target("llama", torch.float32))
    engine.generate(PROMPTS[1], max_new_tokens=8, budget=16)
    with torch.profiler.profile() as profile:
        result = engine.generate(PROMPTS[1], max_new_tokens=32, budget=16, ignore_eos=True)
    waits = sum(
        e.count
        for e in profile.key_averages()
        if e.key in ("aten::item", "aten::_local_scalar_dense")
    )
    assert waits == 0, "no .item() in a round"
    assert result.stats.rounds >= 1


def drafting_engine(dtype: torch.dtype, **settings: object) -> Engine:
    """A tiny target on CUDA with a head that knows its answers."""
    model = tiny_model("llama").to("cuda", dtype)
    head = trained_head().to("cuda")
    for weight in head.parameters():
        weight.data = weight.data.to(dtype)
    return Engine(
        TransformersTarget(model, max_context=4096, feature_layers=LAYERS),
        byte_tokenizer(),
        name="llama",
        token_count=VOCAB_SIZE,
        eos_token_ids=(EOS_ID,),
        settings=EngineSettings(**settings),
        drafter=Eagle3Drafter(head, model.get_input_embeddings(), VOCAB_SIZE),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("policy", ["dense", "pruned", "graft-unpruned", "graft", "graft+"])
def test_drafting_says_the_same_on_cuda(policy: str, dtype: torch.dtype) -> None:
    engine = drafting_engine(dtype)
    params = SamplingParams(max_new_tokens=24, ignore_eos=True)
    for budget in (8, 60):
        found = compare(engine, PROMPTS, params, policy=policy, budget=budget, batch=3)
        assert found.same, found.mismatches
        assert found.tau is not None
        assert found.tau > 1.5


@pytest.mark.parametrize("scope", ["process", "request"])
def test_a_drafted_round_waits_once_and_once_per_checkpoint(scope: str) -> None:
    engine = drafting_engine(torch.float32, matrix_scope=scope)
    options = {"policy": "graft", "budget": 60, "ignore_eos": True}
    engine.generate(PROMPTS[1], max_new_tokens=8, **options)
    stream = engine.stream(PROMPTS[1], max_new_tokens=40, **options)
    next(stream)  # the prefill is no round
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchroniz") as waits:
            for _ in stream:
                pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
    records = stream.results[0].stats.round_records
    allowed = sum(1 + len(record.confidence) for record in records)
    assert len(waits) <= allowed, [str(w.message) for w in waits]


def test_the_lookup_runs_beside_the_draft() -> None:
    engine = drafting_engine(torch.float32)
    result = engine.generate(PROMPTS[2], policy="graft", budget=60, max_new_tokens=40)
    for record in result.stats.round_records:
        assert record.times.lookup > 0
        assert record.times.total < 10
