"""Derive the prior that ships: `python tools/derive_prior.py PROMPTS... --head HEAD --out FILE`.

The model answers the prompts with `graft+`, each at several budgets; every candidate behind a
visited node is counted in its cell, and `graft.prior.prior_of` turns the counts into rates.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file

import graft
from graft import estimates
from graft.bench.suite import read_suite
from graft.evidence import VOICES, Cells
from graft.prior import prior_of

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("prompts", type=Path, nargs="+")
parser.add_argument("--head", required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--model", default="smollm2-135m")
parser.add_argument("--dtype", default="auto")
parser.add_argument("--limit", type=int, default=10, help="prompts per file")
parser.add_argument("--tokens", type=int, default=96)
parser.add_argument("--longest", type=int, default=500, help="prompt tokens")
parser.add_argument("--budgets", default="8,24")
parser.add_argument("--temperatures", default="0,0.8")
args = parser.parse_args()

estimates.WINDOW = float("inf")
# Whole trees, whatever they cost here.
engine = graft.load(args.model, head=args.head, dtype=args.dtype, without=("depth", "budget"))
items = [
    i
    for i in read_suite(args.prompts)
    if len(engine.tokenizer(i.turns[0]).input_ids) <= args.longest
]
by_task: dict[str, list[str]] = {}
for item in items:
    by_task.setdefault(item.task, []).append(item.turns[0])
prompts = [text for texts in by_task.values() for text in texts[-args.limit :]]
budgets = [int(n) for n in args.budgets.split(",")]
heats = [float(n) for n in args.temperatures.split(",")]
for number, prompt in enumerate(prompts):
    engine.generate(
        [{"role": "user", "content": prompt}],
        policy="graft+",
        budget=budgets[number % len(budgets)],
        temperature=heats[number // len(budgets) % len(heats)],
        max_new_tokens=args.tokens,
        seed=number,
    )
    if number % 10 == 9:
        print(number + 1, "of", len(prompts), flush=True)
found = engine.memory.estimates
cells = Cells(len(engine.memory.contexts.orders), torch.device("cpu"))
rates = prior_of(found.trials, found.hits, cells)
save_file(
    {"rates": rates.half()}, args.out, metadata={"source": f"{args.model}, {len(prompts)} prompts"}
)
for voice, name in enumerate(VOICES):
    mine = cells.voice == voice
    trials, hits = float(found.trials[mine].sum()), float(found.hits[mine].sum())
    print(f"{name}: {trials:.0f} trials, {hits / max(trials, 1):.3f} right")
