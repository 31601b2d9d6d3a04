"""Choose and make the prompts that the shipped head is trained on.

`python tools/prepare_training.py --prompts DIR --out DIR [--answers FILE.jsonl]`

`--prompts` holds JSON lines with "id", "source" and "turns", a file per topic. Kept are the sources
whose licence is stated and allows it (SOURCES, with how many of each); two kinds of prompts are
made of them: summaries of parts of longer texts, and functions to complete from their signature
and docstring. `--answers` takes answers that there are already and keeps those of kept sources.
The same inputs give the same files.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Left out: T0 mixtures (every data set has terms of its own), Alpaca demos (non-commercial
# upstream), AdvertiseGen (no licence stated).
SOURCES = {
    "general_en": {
        "gpteacher_roleplay": 1923,
        "llms_from_scratch": 1069,
        "llamafactory_dpo_en_demo": 294,
        "llamafactory_kto_en_demo": 289,
        "llamafactory_c4_demo": 228,
        "self_instruct_user_oriented": 252,
        "self_instruct_seed": 175,
        "fastchat_dummy": 153,
    },
    "reasoning_en": {
        "alpaca_cot_strategyqa": 400,
        "alpaca_cot_ecqa": 400,
        "alpaca_cot_creak": 300,
        "alpaca_cot_qasc": 300,
        "alpaca_cot_sensemaking": 200,
    },
    "math": {"gsm8k_train": 4500, "alpaca_cot_aqua": 600, "svamp": 500},
    "code": {
        "gpteacher_codegen": 4527,
        "mbpp_not_in_bench": 541,
        "codexglue_cosqa_dev": 596,
        "codexglue_java_cs": 300,
    },
    "summarise": {"lmops_llma_rag": 100, "lmops_llma_cnndm": 99},
    "long_context": {"qmsum_train": 150, "llamafactory_wiki_demo": 192},
    "zh": {
        "belle_eval": 600,
        "belle_seed": 174,
        "llamafactory_dpo_zh_demo": 150,
        "vcsum_dev_segment": 60,
    },
}
SUMMARISE = (
    "Summarize: {}\nSummary",
    "Summarize: {}",
    "Summarize the following text in a few sentences:\n\n{}",
    "{}\n\nWrite a short summary of the text above.",
    "What are the key points of this text?\n\n{}",
)
PARTS = (700, 1500, 2500, 3600)  # characters of a part to summarise
PER_TEXT = 4
_FUNCTION = re.compile(r'(def \w+\(.*?\):\s*(?:"""|\'\'\').*?(?:"""|\'\'\'))', re.DOTALL)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--prompts", type=Path, required=True)
parser.add_argument("--answers", type=Path)
parser.add_argument("--out", type=Path, required=True)
Row = dict[str, Any]


def read(folder: Path, name: str) -> list[Row]:
    """The rows of a file whose source is allowed."""
    lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["source"] in SOURCES[name]]


def chosen(folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Files and the rows of them that are kept."""
    draw = random.Random(0)
    for name, sources in SOURCES.items():
        rows = read(folder, name)
        kept = []
        for source, count in sources.items():
            there = [row for row in rows if row["source"] == source]
            draw.shuffle(there)
            kept += there[:count]
        yield name, kept


def summaries(rows: list[Row]) -> Iterator[Row]:
    """Parts of texts, cut at the ends of sentences, to summarise."""
    draw = random.Random(1)
    for row in rows:
        if row["source"] not in ("llamafactory_wiki_demo", "llamafactory_c4_demo"):
            continue
        _, _, text = row["turns"][0].partition("\n\n")
        for number in range(PER_TEXT if len(text) > 2 * PARTS[0] else 1):
            size = draw.choice(PARTS)
            begin = draw.randrange(max(len(text) - size, 0) + 1)
            part = text[begin : begin + size]
            first, last = part.find(". ") + 1, part.rfind(".") + 1
            part = part[first if begin else 0 : last or None].strip()
            if len(part) > 200:
                prompt = draw.choice(SUMMARISE).format(part)
                yield {"id": f"{row['id']}/part{number}", "turns": [prompt]}


def functions(rows: list[Row]) -> Iterator[Row]:
    """Signatures with docstrings, to complete."""
    for row in rows:
        found = _FUNCTION.search(row["turns"][0])
        if row["source"] == "codexglue_cosqa_dev" and found:
            prompt = f"Complete the code I provided.\n\n{found[1]}\n"
            yield {"id": f"{row['id']}/complete", "turns": [prompt]}


def write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(rows):6} in {path}")


def main() -> None:
    args = parser.parse_args()
    kept = dict(chosen(args.prompts))
    prompts = {
        name: [{"id": str(row["id"]), "turns": row["turns"]} for row in rows]
        for name, rows in kept.items()
    }
    everything = [row for rows in kept.values() for row in rows]
    prompts["parts"] = list(summaries(everything))
    prompts["functions"] = list(functions(everything))
    answered = set()
    if args.answers:
        allowed = {(name, row["id"]) for name in SOURCES for row in read(args.prompts, name)}
        lines = args.answers.read_text(encoding="utf-8").splitlines()
        found = [row for row in map(json.loads, lines) if (row["file"], row["id"]) in allowed]
        answered = {(row["file"], row["id"]) for row in found}
        write(args.out / "answers.jsonl", found)
    for name, rows in prompts.items():
        rows = [row for row in rows if (name, row["id"]) not in answered]
        write(args.out / "prompts" / f"{name}.jsonl", rows)


if __name__ == "__main__":
    main()
