"""Measure retrieval against plain decoding.

`python tools/measure_core.py FILES... --out OUT.jsonl`

FILES are JSON lines with `id`, `task` and `turns`; only the first turn is asked. Methods run side
by side, prompt by prompt, in rotating order, on one engine; every method has a matrix of its own
that stays warm over the run. Prints tau, tokens per second against plain, and the time split, with
and without answers that repeat themselves (over 30 % repeated 8-grams).
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

import graft
from graft.bench.measurement import repeated_8grams
from graft.models import load_model
from graft.prompts import encode

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("files", nargs="+", type=Path)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--model", default="smollm2-135m")
parser.add_argument("--limit", type=int, default=20, help="prompts per file")
parser.add_argument("--tokens", type=int, default=128)
parser.add_argument("--budgets", type=int, nargs="*", default=[4, 8, 16, 32])
parser.add_argument("--prompt-learning", nargs="*", default=["text"])
parser.add_argument(
    "--hf", type=int, default=0, help="prompts per file also asked of model.generate (unpacked)"
)
parser.add_argument("--threads", type=int)
args = parser.parse_args()


def transformers_generate(ids: list[int]) -> dict[str, Any]:
    """Seconds of decoding: the whole call less that of a call for one token."""
    prompt = torch.tensor([ids])
    mask = torch.ones_like(prompt)
    seconds = []
    for count in (1, args.tokens):
        start = time.perf_counter()
        out = unpacked.generate(prompt, attention_mask=mask, do_sample=False, max_new_tokens=count)
        seconds.append(time.perf_counter() - start)
    answer = out[0, len(ids) :].tolist()
    return {"token_ids": answer, "decode_seconds": seconds[1] - seconds[0], "tau": 1.0}


engine = graft.load(args.model, threads=args.threads)
unpacked = load_model(args.model, cpu_weights="fp32").model if args.hf else None
methods: list[tuple[str, int, str]] = [("plain", 0, "off")]
methods += [("retrieval", k, learning) for learning in args.prompt_learning for k in args.budgets]
names = [f"{p}-{k}-{x}" if k else p for p, k, x in methods] + (["hf"] if args.hf else [])
memories = {n: engine.memory.copy() for n in names}
files = [file.read_text(encoding="utf-8").splitlines()[: args.limit] for file in args.files]
# One prompt of each file in turn, so that a run that is cut short is balanced.
order = [(i, lines[i]) for i in range(args.limit) for lines in files if i < len(lines)]
rank, prompts = [i for i, _ in order], [json.loads(line) for _, line in order]
engine.generate("Warm up.", max_new_tokens=16)
rows: list[dict[str, Any]] = []
with args.out.open("w", encoding="utf-8") as out:
    for number, item in enumerate(prompts):
        for turn in range(len(names)):
            i = (turn + number) % len(names)
            if names[i] == "hf" and rank[number] >= args.hf:
                continue
            if names[i] == "hf":
                ids = encode(item["turns"][0], engine.tokenizer, raw=False)
                row = transformers_generate(ids)
            else:
                policy, budget, learning = methods[i]
                engine.memory = memories[names[i]]
                engine.settings = engine.settings.having(
                    policy=policy, budget=budget or None, prompt_learning=learning
                )
                r = engine.generate(item["turns"][0], max_new_tokens=args.tokens)
                row = {"token_ids": r.token_ids} | r.stats.to_dict()
            row |= {"task": item["task"], "id": item["id"], "method": names[i]}
            rows.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
        print(f"{number + 1}/{len(prompts)}", end="\r", flush=True)

plain = {(r["task"], r["id"]): r for r in rows if r["method"] == "plain"}
differ = sum(r["token_ids"] != plain[r["task"], r["id"]]["token_ids"] for r in rows)
print(f"{len(prompts)} prompts; answers that differ from plain: {differ} of {len(rows)}")
for kind in ("all answers", "without looping answers"):
    print(f"\n## {kind}\n\n| task | method | tau | speed-up | tokens/s | forward | waste |")
    print("|---|---|---|---|---|---|---|")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for r in rows:
        loops = repeated_8grams(plain[r["task"], r["id"]]["token_ids"]) > 0.3
        if kind == "all answers" or not loops:
            groups[r["task"], r["method"]].append(r)
            groups["all", r["method"]].append(r)
    for task in sorted({t for t, _ in groups}):
        base = {(r["task"], r["id"]): r["decode_seconds"] for r in groups[task, "plain"]}
        for name in names:
            group = groups[task, name]
            if not group:
                continue
            count = sum(len(r["token_ids"]) - 1 for r in group)
            seconds = sum(r["decode_seconds"] for r in group)
            rounds = sum(r.get("rounds", 0) for r in group) or count
            tau = sum(r["tau"] * r.get("rounds", 0) for r in group if r["tau"]) / rounds or 1.0
            spent = sum(
                r["decode_seconds"] * r["time_split"].get("verify", 0)
                for r in group
                if "time_split" in r
            )
            ratio = sum(base[r["task"], r["id"]] for r in group) / seconds
            wasted = [r["verification_waste"] for r in group if r.get("verification_waste")]
            waste = sum(wasted) / len(wasted) if wasted else 0.0
            print(
                f"| {task} ({len(group)}) | {name} | {tau:.3f} | {ratio:.2f} "
                f"| {count / seconds:.1f} | {spent / seconds:.1%} | {waste:.2f} |"
            )
