"""What an engine holds: counted part by part, and no more after a long answer than before."""

from __future__ import annotations

import pytest
from torch import nn

from graft.cache import BLOCK
from graft.footprint import Part, weight_bytes
from graft.linear import PackedLinear, pack_linears
from tests.exactness.drafting import DRAFTERS, engine
from tests.exactness.helpers import PROMPTS


def named(parts: list[Part]) -> dict[str, Part]:
    found = {part.what: part for part in parts}
    assert len(found) == len(parts)
    return found


def test_weights_are_counted_as_they_are_kept() -> None:
    plain = nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32))
    before = weight_bytes(plain)
    assert before == 4 * (64 * 32 + 4 * 32) + 8
    pack_linears(plain, "fp16")
    if isinstance(plain[0], PackedLinear) and plain[0].packed:
        assert weight_bytes(plain) == before - 2 * 64 * 32


@pytest.mark.parametrize("drafter", ["eagle3", "model"])
def test_parts(drafter: str) -> None:
    made = engine(DRAFTERS[drafter](), policy="graft+", budget=16)
    what = {"eagle3": "head", "model": "draft model"}[drafter]
    before = named(made.footprint())
    assert set(before) == {"matrix", what, "a tree"}
    made.generate(PROMPTS[2], max_new_tokens=8)
    parts = named(made.footprint())
    assert set(parts) == {"matrix", "contexts", what, f"{what}'s cache", "a tree"}
    assert parts["matrix"].bytes == made.matrix.ids.nbytes + made.matrix.chances.nbytes
    cache = parts[f"{what}'s cache"]
    assert cache.bytes == cache.per_token * BLOCK
    # A key and a value of 2 heads of 16 numbers per layer, and the logits.
    assert parts["a tree"].bytes == 16 * 4 * (3 * 2 * 2 * 16 + 256)


def test_only_the_cache_grows() -> None:
    made = engine(DRAFTERS["eagle3"](), policy="graft+", budget=16)
    made.generate(PROMPTS, max_new_tokens=8)
    before = named(made.footprint())
    made.generate(PROMPTS, max_new_tokens=300, ignore_eos=True)
    after = named(made.footprint())
    grown = {what for what, part in after.items() if part.bytes > before[what].bytes}
    assert grown == {"head's cache"} == {what for what, part in after.items() if part.per_token}


def test_without_a_drafter_there_is_the_memory_alone() -> None:
    assert set(named(engine(policy="retrieval").footprint())) == {"matrix", "a tree"}
