"""The options that several commands share, as types for their signatures.

Ranges are checked by the library, which knows them; here stand only the choices that help should
list. Tests compare these with the library's own.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

_DRAW: Final = "How tokens are chosen"
_END: Final = "When the answer ends"
_RUN: Final = "Model and speed"
_TREE: Final = "Drafting and retrieval"
_OUT: Final = "Input and output"


class Policy(StrEnum):
    plain = "plain"
    lookup = "lookup"
    retrieval = "retrieval"
    dense = "dense"
    eagle3 = "eagle3"
    pruned = "pruned"
    graft_unpruned = "graft-unpruned"
    graft = "graft"
    graft_plus = "graft+"
    suffix = "suffix"
    rasd = "rasd"


class Drafter(StrEnum):
    eagle3 = "eagle3"
    model = "model"
    dflash = "dflash"
    none = "none"


class Dedup(StrEnum):
    redirect = "redirect"
    skip = "skip"


class MatrixScope(StrEnum):
    request = "request"
    process = "process"
    file = "file"


class MatrixState(StrEnum):
    cold = "cold"
    warm = "warm"


class PromptLearning(StrEnum):
    text = "text"
    logits = "logits"
    off = "off"


class Optimizer(StrEnum):
    muon = "muon"
    adamw = "adamw"


class Dtype(StrEnum):
    auto = "auto"
    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"


class HeadFormat(StrEnum):
    specforge = "specforge"
    speculators = "speculators"


class SaveDtype(StrEnum):
    fp16 = "fp16"
    bf16 = "bf16"
    fp32 = "fp32"


class CpuWeights(StrEnum):
    auto = "auto"
    fp16 = "fp16"
    fp32 = "fp32"


# --- model and speed ---
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="An alias (see: graft models), a Transformers folder, a .gguf file or a hub id.",
        rich_help_panel=_RUN,
    ),
]
PolicyOption = Annotated[
    Policy | None,
    typer.Option(
        "--policy",
        help="Who fills the trees; by default graft+, or what a profile found.",
        rich_help_panel=_RUN,
    ),
]
Budget = Annotated[
    int | None,
    typer.Option("--budget", help="Nodes per tree; default by device.", rich_help_panel=_RUN),
]
Device = Annotated[
    str, typer.Option("--device", help="auto, cpu, cuda or cuda:0.", rich_help_panel=_RUN)
]
DtypeOption = Annotated[
    Dtype,
    typer.Option(
        "--dtype", help="auto is fp32 on a CPU, else the stored one.", rich_help_panel=_RUN
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", help="CPU threads.", rich_help_panel=_RUN)
]
CpuWeightsOption = Annotated[
    CpuWeights,
    typer.Option(
        "--cpu-weights",
        help="How a CPU keeps weights: fp16 is packed for speed, exact if they are fp16 already.",
        rich_help_panel=_RUN,
    ),
]
CudaGraphs = Annotated[
    bool,
    typer.Option(
        "--cuda-graphs/--no-cuda-graphs",
        help="On a CUDA device record forwards and replay them: faster, for some memory.",
        rich_help_panel=_RUN,
    ),
]

# --- drafting and retrieval ---
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="paper-60: the paper's numbers; paper-32, -16, -8, -4 are scaled.",
        rich_help_panel=_TREE,
    ),
]
DrafterOption = Annotated[
    Drafter | None,
    typer.Option(
        "--drafter",
        help="Who drafts; by default what --head or --draft-model is.",
        rich_help_panel=_TREE,
    ),
]
Head = Annotated[
    str | None,
    typer.Option(
        "--head",
        metavar="PATH",
        help="An EAGLE-3 head or DFlash drafter: a folder or a hub id. By default the one that "
        "comes with the model; none switches it off.",
        rich_help_panel=_TREE,
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        metavar="PATH",
        help="A smaller model with the same tokenizer.",
        rich_help_panel=_TREE,
    ),
]
HeadWindow = Annotated[
    int | None,
    typer.Option(
        "--head-window",
        metavar="N",
        help="The head sees the last N positions alone.",
        rich_help_panel=_TREE,
    ),
]
Beam = Annotated[
    int | None,
    typer.Option(
        "--beam", help="Nodes expanded per level; default by budget.", rich_help_panel=_TREE
    ),
]
Depth = Annotated[
    int | None,
    typer.Option(
        "--depth", help="Levels of draft nodes; default by budget.", rich_help_panel=_TREE
    ),
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoints",
        metavar="N,N,...",
        help="Draft steps after which drafting may stop.",
        rich_help_panel=_TREE,
    ),
]
Thresholds = Annotated[
    str | None,
    typer.Option(
        "--thresholds",
        metavar="P,P,...",
        help="Confidence below which it stops there.",
        rich_help_panel=_TREE,
    ),
]
Kept = Annotated[
    str | None,
    typer.Option(
        "--kept",
        metavar="N,N,...",
        help="Draft nodes kept if it stops there.",
        rich_help_panel=_TREE,
    ),
]
Refill = Annotated[
    bool,
    typer.Option(
        "--refill/--no-refill",
        help="Give slots that retrieval leaves empty to further draft nodes.",
        rich_help_panel=_TREE,
    ),
]
DedupOption = Annotated[
    Dedup,
    typer.Option(
        "--dedup",
        help="Retrieved nodes that were drafted too: go on below them, or skip.",
        rich_help_panel=_TREE,
    ),
]
Template = Annotated[
    list[Path] | None,
    typer.Option(
        "--template",
        metavar="FILE",
        help="Template of all stages; repeated, one per stage.",
        rich_help_panel=_TREE,
    ),
]
Successors = Annotated[
    int | None,
    typer.Option("--k", help="Successors per token in the matrix.", rich_help_panel=_TREE),
]
Matrix = Annotated[
    Path | None,
    typer.Option(
        "--matrix",
        metavar="FILE",
        help="Start from this matrix (see: graft matrix).",
        rich_help_panel=_TREE,
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="Settings of graft calibrate; none takes none. [default: those made here, if any]",
        rich_help_panel=_TREE,
    ),
]
MatrixScopeOption = Annotated[
    MatrixScope,
    typer.Option(
        "--matrix-scope",
        help="Who shares a matrix; file keeps in --matrix what is learnt.",
        rich_help_panel=_TREE,
    ),
]
PromptLearningOption = Annotated[
    PromptLearning,
    typer.Option(
        "--prompt-learning", help="What a prompt teaches the matrix.", rich_help_panel=_TREE
    ),
]

# --- how tokens are chosen ---
Temperature = Annotated[
    float,
    typer.Option("--temperature", "-t", help="0 is greedy: no chance.", rich_help_panel=_DRAW),
]
TopK = Annotated[
    int, typer.Option("--top-k", help="The k most likely tokens; 0 is off.", rich_help_panel=_DRAW)
]
TopP = Annotated[
    float,
    typer.Option("--top-p", help="The likeliest of this total; 1 is off.", rich_help_panel=_DRAW),
]
MinP = Annotated[
    float,
    typer.Option(
        "--min-p", help="Least share of the best probability; 0 is off.", rich_help_panel=_DRAW
    ),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(
        "--repetition-penalty",
        help="Against tokens of prompt and answer; 1 is off.",
        rich_help_panel=_DRAW,
    ),
]
PresencePenalty = Annotated[
    float,
    typer.Option(
        "--presence-penalty", help="Against tokens of the answer; 0 is off.", rich_help_panel=_DRAW
    ),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option(
        "--frequency-penalty", help="The same, for each time they occur.", rich_help_panel=_DRAW
    ),
]
NoRepeatNgramSize = Annotated[
    int,
    typer.Option(
        "--no-repeat-ngram-size", help="No n tokens twice; 0 is off.", rich_help_panel=_DRAW
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="The same seed, the same answer.", rich_help_panel=_DRAW),
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias",
        metavar="ID=VALUE",
        help="Add VALUE to the logit of token ID; repeatable.",
        rich_help_panel=_DRAW,
    ),
]
BannedToken = Annotated[
    list[int] | None,
    typer.Option(
        "--banned-token", metavar="ID", help="Never this token; repeatable.", rich_help_panel=_DRAW
    ),
]

# --- when the answer ends ---
MaxNewTokens = Annotated[
    int,
    typer.Option("--max-new-tokens", "-n", help="Tokens at most.", rich_help_panel=_END),
]
MinNewTokens = Annotated[
    int, typer.Option("--min-new-tokens", help="No end before so many.", rich_help_panel=_END)
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop", metavar="TEXT", help="End before this text; repeatable.", rich_help_panel=_END
    ),
]
StopTokenId = Annotated[
    list[int] | None,
    typer.Option(
        "--stop-token-id", metavar="ID", help="End at this token; repeatable.", rich_help_panel=_END
    ),
]
IgnoreEos = Annotated[
    bool,
    typer.Option("--ignore-eos", help="Go on at the model's end token.", rich_help_panel=_END),
]

# --- input and output ---
PromptArgument = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="The prompt; - (or none, in a pipe) reads stdin."),
]
PromptFile = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="PATH", help="Read the prompt.", rich_help_panel=_OUT),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Continue the text: no chat template.", rich_help_panel=_OUT)
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        metavar="N",
        help="Log-probabilities, and those of N alternatives (with --json).",
        rich_help_panel=_OUT,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="One JSON object on stdout.", rich_help_panel=_OUT)
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No progress, no summary.", rich_help_panel=_OUT),
]
