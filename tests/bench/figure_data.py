"""Measurements as a benchmark could have made them, for tests of figures and for looking at them.

Every number follows from the arguments and the seed; the arithmetic of rounds, tokens and sources
holds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from graft.bench.measurement import Measurement

TASKS = ("chat", "code", "math", "summary", "translation")
MANY_TASKS = (
    *TASKS,
    *("code-completion", "code-edit", "rag-questions", "long-documents", "extraction"),
    *("creative", "reasoning", "roleplay", "json", "agent-steps"),
)
METHODS = ("plain", "lookup", "retrieval", "dense", "pruned", "graft-unpruned", "graft")
STAGES = ("d0", "d1", "d5", "full")
# Mean accepted nodes per round, cost of a round in plain rounds, nodes by source.
METHOD_NUMBERS = {
    "plain": (0.0, 1.0, 0, 0),
    "lookup": (0.5, 1.1, 10, 0),
    "retrieval": (1.1, 1.15, 0, 60),
    "dense": (2.3, 1.6, 60, 0),
    "eagle3": (2.3, 1.6, 60, 0),
    "pruned": (2.0, 1.3, 30, 0),
    "graft-unpruned": (2.1, 1.6, 30, 30),
    "graft": (2.6, 1.35, 30, 30),
    "hf": (0.0, 1.15, 0, 0),
    "hf-lookup": (0.0, 0.9, 0, 0),
}
PLAIN_SECONDS = 0.025
# What kinds of tokens two methods retrieved in code.
KINDS = {"graft": {"name": 30, "punctuation": 60, "api": 10}, "retrieval": {"name": 5}}


def make_measurement(
    method: str = "graft",
    task: str = "chat",
    number: int = 0,
    *,
    budget: int = 60,
    temperature: float = 0.0,
    batch: int = 1,
    matrix: str | None = None,
    tokens: int = 128,
    prompt_tokens: int = 200,
    gain: float = 1.0,
) -> Measurement:
    """One answer; `gain` scales how much is accepted."""
    known = METHOD_NUMBERS[method.rpartition(":")[2]]
    draw = random.Random(f"{method}{task}{number}{temperature}{batch}{matrix}")
    mean = known[0] * gain * (1 - 0.25 * temperature) * (1.15 if matrix == "warm" else 1.0)
    rounds = _rounds(
        draw,
        mean,
        tokens - 1,
        pruning=method.endswith(("pruned", "graft")) and known[:2] != (2.1, 1.6),
    )
    stages, sizes = [r[0] for r in rounds], [r[1] for r in rounds]
    draft = [_share(stage, known[2], known[3]) for stage in stages]
    retrieved = [60 - n if known[3] else 0 for n in draft]
    sources, trimmed = _sources(draw, sizes, draft, retrieved, tokens)
    cost = known[1] * (1 + 0.12 * math.log2(batch) * (known[2] + known[3]) / 60)
    round_seconds = PLAIN_SECONDS * cost * (1 + 0.05 * math.log2(batch)) * draw.uniform(0.95, 1.05)
    seconds = round_seconds * len(rounds)
    outside = method.startswith("hf")
    graft_seconds = 0.0002 * (1 + known[1]) * batch**0.5 * len(rounds) if known[3] else 0.0
    return Measurement(
        task=task,
        id=f"{task}-{number}",
        turn=0,
        method=method,
        budget=0 if outside or method == "plain" else budget,
        temperature=temperature,
        batch=batch,
        seed=0,
        matrix=matrix or ("cold" if known[3] else "none"),
        prompt_tokens=prompt_tokens,
        completion_tokens=tokens,
        token_ids=list(range(tokens)),
        sources="" if outside else sources,
        finish_reason="length",
        tau=sum(sizes) / len(sizes) if sizes and not outside else 1.0,
        rounds=0 if outside else len(rounds),
        trimmed=0 if outside else trimmed,
        prefill_seconds=0.05,
        decode_seconds=seconds,
        time_to_first_token=0.06,
        latency_seconds=0.06 + seconds,
        repeated_8grams=0.0,
        draft_steps=0,
        kept_draft=sum(draft),
        released_slots=60 * len(rounds) - sum(draft),
        redirected=0,
        proposed_draft=sum(draft),
        proposed_retrieved=sum(retrieved),
        accepted_draft=sources.count("d"),
        accepted_retrieved=sources.count("r"),
        empty_slots=0,
        lookups=100 if known[3] else 0,
        hits=80 if known[3] else 0,
        rows_written=0,
        lookup_seconds=0.6 * graft_seconds,
        seconds={
            "draft": 0.2 * seconds,
            "graft": graft_seconds,
            "verify": 0.7 * seconds,
            "commit_update": 0.05 * seconds,
            "other": 0.05 * seconds - graft_seconds,
        },
        round_tokens=[] if outside else sizes,
        round_stages=[] if outside else stages,
        round_draft=[] if outside else draft,
        round_retrieved=[] if outside else retrieved,
    )


def make_run(
    methods: Sequence[str] = METHODS,
    tasks: Sequence[str] = TASKS,
    prompts: int = 8,
    *,
    temperatures: Sequence[float] = (0.0,),
    batches: Sequence[int] = (1,),
    warm: Sequence[str] = (),
) -> list[Measurement]:
    """A whole benchmark; methods in `warm` run once more with a warm matrix."""
    out = []
    for t, task in enumerate(tasks):
        for number in range(prompts):
            tokens = 64 + 37 * ((number * 7 + t) % 12)
            for temperature in temperatures:
                for batch in batches:
                    for method in methods:
                        kinds = (None, "warm") if method in warm else (None,)
                        out += [
                            make_measurement(
                                method,
                                task,
                                number,
                                temperature=temperature,
                                batch=batch,
                                matrix=matrix,
                                tokens=tokens,
                                prompt_tokens=60 * (1 + number) ** 2,
                                gain=0.7 + 0.6 * t / max(1, len(tasks) - 1),
                            )
                            for matrix in kinds
                        ]
    return out


def _rounds(
    draw: random.Random, mean: float, tokens: int, *, pruning: bool
) -> list[tuple[str, int]]:
    """Stage and tokens of each round, until `tokens` are there."""
    out: list[tuple[str, int]] = []
    left = tokens
    while left > 0:
        stage = draw.choices(STAGES, (4, 3, 2, 2))[0] if pruning else "full"
        luck = 0.6 + 0.3 * STAGES.index(stage) if pruning else 1.0
        warmed = luck * (0.8 + 0.4 * (1 - left / tokens))
        accepted = sum(draw.random() < mean * warmed / 8 for _ in range(8)) if mean else 0
        out.append((stage, accepted + 1))
        left -= accepted + 1
    return out


def _share(stage: str, draft: int, retrieved: int) -> int:
    """Draft nodes of a round."""
    if draft == 30 and stage != "full":
        return {"d0": 8, "d1": 24, "d5": 40}[stage]
    return draft if retrieved == 0 or stage == "full" else 40


def _sources(
    draw: random.Random, sizes: list[int], draft: list[int], retrieved: list[int], tokens: int
) -> tuple[str, int]:
    """A letter per token of the answer, and the tokens that were trimmed."""
    out = "t"
    for size, drafted, looked_up in zip(sizes, draft, retrieved, strict=True):
        total = 4 * drafted + looked_up
        out += "".join("d" if draw.random() * total < 4 * drafted else "r" for _ in range(size - 1))
        out += "t"
    return out[:tokens], len(out) - tokens
