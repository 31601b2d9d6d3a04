"""Derive the retrieval template that ships: `python tools/derive_template.py ANSWERS.jsonl OUT`.

ANSWERS holds one object a line with `prompt_ids` and `answer_ids`, answers of the model itself.
The model reads each of them once; beside it a matrix learns as it does in decoding (prompt text,
then the best successors at every answered token) and the rank at which it held each next token is
written down. `graft.template.derive` turns the ranks into an order of rank paths.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import graft
from graft.matrix import AdjacencyMatrix, Best
from graft.template import derive

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("answers", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--model", default="smollm2-135m")
parser.add_argument("--limit", type=int, default=400, help="answers to read")
parser.add_argument("--size", type=int, default=512, help="paths to keep")
args = parser.parse_args()

engine = graft.load(args.model)
matrix = AdjacencyMatrix(engine.token_count, 8, engine.target.device)
lines = [json.loads(line) for line in args.answers.read_text(encoding="utf-8").splitlines()]
lines = [x for x in lines if x.get("repeated_8gram_share", 0) <= 0.3]  # loops teach loops
step = max(1, len(lines) // args.limit)
ranks: list[list[int]] = []
for line in lines[::step][: args.limit]:
    prompt, answer = line["prompt_ids"], line["answer_ids"]
    best: list[Best] = []
    engine.target.open(1, len(prompt) + len(answer))
    with torch.inference_mode():
        engine.target.prefill(
            0,
            torch.tensor(prompt + answer),
            lambda _tokens, logits, best=best: best.append(matrix.best(logits)),
        )
        said = Best(*(torch.cat(part) for part in zip(*best, strict=True)))
        matrix.learn_text(torch.tensor(prompt))
        text: list[int] = []
        first = len(prompt) - 1
        for i, (token, following) in enumerate(zip([prompt[-1], *answer], answer, strict=False)):
            row = matrix.ids[token].tolist()
            text.append(row.index(following) if following in row else -1)
            one = torch.tensor([token])
            matrix.write(
                one, Best(*(part[first + i, None] for part in said)), torch.zeros_like(one)
            )
        ranks.append(text)
template = derive(ranks, args.size)
total = sum(map(len, ranks))
report = {
    "source": f"{args.model}, {len(ranks)} answers of its own, {total} positions, matrix k = 8",
    "paths": template.paths,
}
args.out.write_text(json.dumps(report) + "\n", encoding="utf-8")
shares = [sum(t.count(r) for t in ranks) / total for r in range(8)]
print(f"{total} positions; share held at rank 0..7: {[round(s, 3) for s in shares]}")
print("first paths:", template.paths[:40])
