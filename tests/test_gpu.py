"""What a CUDA device must show: the same tokens there, in each dtype, and one wait per round.

Run by hand where there is one: `python -m pytest -m gpu`.
"""

from __future__ import annotations

import pytest
import torch

from graft.cuda_graphs import recorder_for
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


def cuda_target(family: str, dtype: torch.dtype, *, graphs: bool = True) -> TransformersTarget:
    model = tiny_model(family).to("cuda", dtype)
    recorder = recorder_for(model) if graphs else None
    return TransformersTarget(model, max_context=4096, recorder=recorder)


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("family", FAMILIES)
def test_same_tokens_on_cuda(
    family: str, temperature: float, dtype: torch.dtype, graphs: bool
) -> None:
    engine = family_engine(family, cuda_target(family, dtype, graphs=graphs))
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


def drafting_engine(dtype: torch.dtype, *, graphs: bool = True, **settings: object) -> Engine:
    """A tiny target on CUDA with a head that knows its answers."""
    model = tiny_model("llama").to("cuda", dtype)
    head = trained_head().to("cuda")
    for weight in head.parameters():
        weight.data = weight.data.to(dtype)
    recorder = recorder_for(model) if graphs else None
    target = TransformersTarget(model, max_context=4096, feature_layers=LAYERS, recorder=recorder)
    return Engine(
        target,
        byte_tokenizer(),
        name="llama",
        token_count=VOCAB_SIZE,
        eos_token_ids=(EOS_ID,),
        settings=EngineSettings(**settings),
        drafter=Eagle3Drafter(head, model.get_input_embeddings(), VOCAB_SIZE, recorder=recorder),
    )


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("policy", ["dense", "pruned", "graft-unpruned", "graft", "graft+"])
def test_drafting_says_the_same_on_cuda(policy: str, dtype: torch.dtype, graphs: bool) -> None:
    engine = drafting_engine(dtype, graphs=graphs)
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
    engine.generate(PROMPTS[1], max_new_tokens=40, **options)  # records all that there is
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


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma2"])
def test_forwards_are_recorded_once_and_follow_a_cache_that_grows(family: str) -> None:
    """Prompts of several lengths, batches of several sizes and answers beyond the first capacity:
    each as without graphs, where one sequence's tree is compared with the next one's."""
    engines = [
        family_engine(family, cuda_target(family, torch.float32, graphs=graphs))
        for graphs in (True, False)
    ]
    for batch, tokens in ((1, 40), (3, 40), (1, 600), (2, 300), (1, 40)):
        params = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
        found = [engine.generate(PROMPTS[:batch], params, budget=16) for engine in engines]
        assert [r.token_ids for r in found[0]] == [r.token_ids for r in found[1]]
    target = engines[0].target
    assert isinstance(target, TransformersTarget)
    assert target._recordings is not None
    assert target._recordings._recorder is not None, "recording has not failed"
    assert 0 < len(target._recordings) < 40


def test_drafts_are_the_same_with_graphs_and_without() -> None:
    engines = [drafting_engine(torch.float32, graphs=graphs) for graphs in (True, False)]
    for prompt in PROMPTS * 2:
        taus = []
        for engine in engines:
            result = engine.generate(prompt, policy="graft", budget=60, max_new_tokens=40)
            taus.append(result.stats.tau)
        assert taus[0] == pytest.approx(taus[1], rel=0.05)
    for engine in engines[:1]:
        assert isinstance(engine.drafter, Eagle3Drafter)
        assert engine.drafter._recordings is not None
        assert len(engine.drafter._recordings) > 2


def test_the_lookup_runs_beside_the_draft() -> None:
    engine = drafting_engine(torch.float32)
    result = engine.generate(PROMPTS[2], policy="graft", budget=60, max_new_tokens=40)
    for record in result.stats.round_records:
        assert record.times.lookup > 0
        assert record.times.total < 10
