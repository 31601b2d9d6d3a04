"""Measure what drafting and grafting cost in a round, whatever the head is worth.

`python tools/measure_draft.py [--head PATH]`

Without a head it takes one of random weights, of the size that a trained one would have: its
drafts are never accepted, but what they cost is real. Each stage is forced in turn. Prints, per
policy, budget and stage: milliseconds of each part of a round, of one draft forward, of the matrix
lookup, and the share of the target's forward.
"""

from __future__ import annotations

import argparse
import statistics

import torch

import graft
from graft.drafters.eagle3.config import Eagle3Config
from graft.drafters.eagle3.drafter import Eagle3Drafter
from graft.drafters.eagle3.head import Eagle3Head
from graft.engine import Engine
from graft.linear import pack_linears
from graft.loader import make_engine
from graft.metrics import RoundRecord
from graft.models import load_model
from graft.settings import EngineSettings

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="smollm2-135m")
parser.add_argument("--head", help="an EAGLE-3 head; random weights without")
parser.add_argument("--draft-vocab", type=int, default=16384, help="of the random head")
parser.add_argument("--budgets", type=int, nargs="*", default=[4, 8, 16])
parser.add_argument("--tokens", type=int, default=48)
parser.add_argument("--repeats", type=int, default=3)
parser.add_argument("--threads", type=int)
args = parser.parse_args()

PROMPT = "Write a short story about a lighthouse keeper and a lost ship."
NEVER, ALWAYS = 0.0, 1.5


def random_engine() -> Engine:
    """The model with a head of random weights."""
    loaded = load_model(args.model, threads=args.threads)
    config = loaded.model.config.get_text_config()
    count = config.num_hidden_layers
    torch.manual_seed(0)
    head = Eagle3Head(
        Eagle3Config(
            hidden_size=config.hidden_size,
            target_hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            vocab_size=loaded.vocab_size,
            draft_vocab_size=args.draft_vocab,
            feature_layers=(2, count // 2, count - 3),
        )
    ).to(loaded.model.device)
    for weight in head.parameters():  # not head.to(dtype): the rotary table stays fp32
        weight.data = weight.data.to(loaded.model.dtype)
    if loaded.model.device.type == "cpu":
        pack_linears(head, "fp16")
    embed = loaded.model.get_input_embeddings()
    assert embed is not None
    drafter = Eagle3Drafter(head.eval(), embed, loaded.token_count)
    return make_engine(loaded, drafter, EngineSettings())


def cases(budget: int) -> list[tuple[str, str, EngineSettings]]:
    """(policy, stage, settings) to measure."""
    plan = EngineSettings().plan("graft", budget)
    out = [(policy, "full", EngineSettings()) for policy in ("plain", "retrieval", "dense")]
    for stage in range(plan.stages):
        thresholds = tuple(ALWAYS if i == stage else NEVER for i in range(len(plan.checkpoints)))
        out.append(("graft", plan.stage_name(stage), EngineSettings(thresholds=thresholds)))
    return out


engine = graft.load(args.model, head=args.head, threads=args.threads) if args.head else None
engine = engine or random_engine()
print(
    f"{'policy':10}{'K':>4} {'stage':6}{'tau':>6}{'round':>8}{'draft':>8}{'graft':>8}{'verify':>8}"
    f"{'rest':>7}{'step':>7}{'lookup':>8}{'graft %':>9}{'verify %':>9}   (milliseconds)"
)
for budget in args.budgets:
    for policy, stage, settings in cases(budget):
        rounds = []
        taus = []
        for repeat in range(args.repeats + 1):
            engine.settings = settings
            result = engine.generate(
                PROMPT, policy=policy, budget=budget, max_new_tokens=args.tokens, ignore_eos=True
            )
            if repeat:  # the first one warms up
                rounds += result.stats.round_records
                taus.append(result.stats.tau or 1.0)
        assert {r.stage for r in rounds} == {stage}

        def median(name: str, records: list[RoundRecord] = rounds) -> float:
            return 1e3 * statistics.median(getattr(r.times, name) for r in records)

        total, draft, graft_, verify = map(median, ("total", "draft", "graft", "verify"))
        forwards = 1 + rounds[0].draft_steps
        print(
            f"{policy:10}{budget:>4} {stage:6}{statistics.mean(taus):6.2f}{total:8.2f}{draft:8.2f}"
            f"{graft_:8.2f}{verify:8.2f}{total - draft - graft_ - verify:7.2f}"
            f"{draft / forwards:7.2f}{median('lookup'):8.3f}{graft_ / total:9.1%}"
            f"{verify / total:9.1%}",
            flush=True,
        )
