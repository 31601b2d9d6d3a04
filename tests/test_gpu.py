"""What a CUDA device must show: the same tokens there, in each dtype, and one wait per round.

Run by hand where there is one: `python -m pytest -m gpu`.
"""

from __future__ import annotations

import pytest
import torch

from graft.exactness import compare
from graft.sampling_params import SamplingParams
from graft.target import TransformersTarget
from tests.exactness.helpers import PROMPTS, family_engine, plain_answers
from tests.tiny_models import FAMILIES, tiny_model

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
