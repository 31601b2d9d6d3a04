"""What a GPU must show, in one run and one file: python -m graft.bench.gpu --out gpu.json

    exactness   fp32: every policy against plain decoding, greedy and sampled
    policies    bf16: tau, speed-up over plain decoding, where a round's time goes, and answers that
                differ, at near-ties (excused) and otherwise
    rows        seconds of forwards over 1 to 61 rows and of draft steps, for the default model; of
                forwards for a model of random weights in the shape of one with 8 billion
                parameters; each with CUDA graphs and without
    memory      bytes held at most

Prompts are those built in. Without a CUDA device the same is run on the CPU over less, so that it
is known to run to its end. Sections that there is no time for are named. [ours]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from graft.atomic import write_whole
from graft.bench.measurement import Measurement
from graft.bench.results import read_results
from graft.bench.session import BenchSettings, opened
from graft.bench.vital_signs import vitals_of_cases
from graft.cost_measure import star
from graft.cuda_graphs import recorder_for
from graft.loader import load
from graft.metrics import LAPS
from graft.target import TransformersTarget
from graft.tree import TokenTree

DEFAULT = "smollm2-135m"
METHODS = (
    *("plain", "retrieval", "suffix", "rasd", "eagle3", "pruned"),
    *("graft-unpruned", "graft", "graft+"),
)
ROWS = (1, 2, 4, 8, 16, 32, 48, 61)
CONTEXT = 512  # tokens in front of what is timed
REPEATS = 5
EIGHT_BILLION = {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
SMALL = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
NEEDED = 24 << 30  # bytes of memory for the large one, its cache and what comes between


class Size(NamedTuple):
    """How much is run."""

    prompts: int  # per task
    prompt_tokens: int  # of each at most
    exact_tokens: int  # of an answer
    tokens: int
    budgets: Sequence[int]


LARGE = Size(prompts=4, prompt_tokens=1500, exact_tokens=64, tokens=128, budgets=(16, 60))
LITTLE = Size(prompts=1, prompt_tokens=200, exact_tokens=8, tokens=8, budgets=(8,))


def run(device: str, size: Size, minutes: float, **more: Any) -> dict[str, Any]:
    """Every section that there is time for.

    Args:
        device: a CUDA device, or "cpu".
        minutes: after which no section is begun.
        more: further settings of `BenchSettings`.
    """
    sections: dict[str, Callable[[], Any]] = {
        "exactness": lambda: _exactness(device, size, more),
        "policies": lambda: _policies(device, size, more),
        "rows": lambda: _rows(device, more),
        "memory": lambda: _memory(device),
    }
    start, skipped = time.monotonic(), []
    out: dict[str, Any] = {"device": _named(device)}
    for name, section in sections.items():
        if time.monotonic() - start > 60 * minutes:
            skipped.append(name)
        else:
            out[name] = section()
    return {**out, "skipped": skipped, "seconds": time.monotonic() - start}


def _exactness(device: str, size: Size, more: dict[str, Any]) -> dict[str, Any]:
    lines = _bench(device, "float32", size, size.exact_tokens, (0.0, 0.8), more)
    different = [m for m in lines if m.difference is not None]
    return {
        "answers": len(lines),
        "excused": sum(m.excused for m in lines),
        "different": [[*m.key, m.difference] for m in different],
    }


def _policies(device: str, size: Size, more: dict[str, Any]) -> list[dict[str, Any]]:
    lines = _bench(device, "bfloat16", size, size.tokens, (0.0,), more)
    out = []
    for case in vitals_of_cases(lines):
        own = [m for m in lines if (m.method, m.budget) == (case.policy, case.budget)]
        out.append(
            {
                "policy": case.policy,
                "budget": case.budget,
                "tau": case.tau,
                "speedup": case.speedup,
                "draft_steps_per_token": case["draft_steps"] / max(sum(case.tokens), 1),
                "seconds": {lap: round(case.seconds[lap], 4) for lap in LAPS},
                "different": sum(m.difference is not None for m in own),
                "excused": sum(m.excused for m in own),
            }
        )
    return out


def _bench(
    device: str,
    dtype: str,
    size: Size,
    tokens: int,
    temperatures: Sequence[float],
    more: dict[str, Any],
) -> list[Measurement]:
    given = {"model": {"model": DEFAULT}, **more}
    model = {**given.pop("model"), "device": device, "dtype": dtype}
    settings = BenchSettings(
        selection={"limit": size.prompts, "max_prompt_tokens": size.prompt_tokens, "max_turns": 1},
        methods=METHODS,
        budgets=size.budgets,
        temperatures=temperatures,
        max_new_tokens=tokens,
        model=model,
        **given,
    )
    with tempfile.TemporaryDirectory() as place:
        with opened(settings, Path(place)) as bench:
            for _ in bench.runner.run():
                pass
        return list(read_results(Path(place) / "results.jsonl").measurements)


def _rows(device: str, more: dict[str, Any]) -> list[dict[str, Any]]:
    """What forwards over so many rows take, of both models."""
    model = more.get("model", {"model": DEFAULT})
    heads = more.get("heads", (None,))
    given = {**model, "device": device, "dtype": "bfloat16", "head": heads[0]}
    out: list[dict[str, Any]] = []
    for graphs in (True, False) if device != "cpu" else (False,):
        engine = load(**given, cuda_graphs=graphs)
        costs = engine.costs(ROWS[-1] - 1)
        out.append({"model": engine.name, "cuda_graphs": graphs, **asdict(costs)})
    return [*out, *_random_rows(device)]


@torch.inference_mode()
def _random_rows(device: str) -> list[dict[str, Any]]:
    """Of a model of random weights, behind a context."""
    shape = SMALL
    if device != "cpu" and torch.cuda.get_device_properties(device).total_memory >= NEEDED:
        shape = EIGHT_BILLION
    settings: dict[str, Any] = {**shape, "dtype": torch.bfloat16}
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**settings)).eval()
    root = torch.zeros(1, dtype=torch.int64, device=device)
    trees = [star(root, rows - 1, shape["vocab_size"]) for rows in ROWS]
    parameters = sum(weight.numel() for weight in model.parameters())
    recorder, out = recorder_for(model), []
    for one in (None,) if recorder is None else (recorder, None):
        target = TransformersTarget(model, recorder=one)
        target.open(1, 2 * CONTEXT)
        target.prefill(0, torch.arange(CONTEXT, device=device) % shape["vocab_size"])
        verify = [min(_seconds(target, tree, device) for _ in range(REPEATS)) for tree in trees]
        measured = {"rows": ROWS, "verify": verify}
        out.append({"parameters": parameters, "cuda_graphs": one is not None, **measured})
    return out


def _seconds(target: TransformersTarget, tree: TokenTree, device: str) -> float:
    _wait(device)
    start = time.perf_counter()
    target.verify(tree)
    _wait(device)
    return time.perf_counter() - start


def _memory(device: str) -> dict[str, int]:
    if device == "cpu":
        return {}
    return {"peak_bytes": torch.cuda.max_memory_allocated(device)}


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def _named(device: str) -> str:
    return device if device == "cpu" else torch.cuda.get_device_name(device)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and write one JSON file."""
    parser = argparse.ArgumentParser(prog="python -m graft.bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=6.0)
    given = parser.parse_args(arguments)
    size = LITTLE if given.device == "cpu" else LARGE
    found = run(given.device, size, given.minutes)
    write_whole(given.out, (json.dumps(found, indent=2) + "\n").encode())
    sys.stdout.write(f"{given.out}\n")
    failed = found.get("exactness", {}).get("different", [])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
