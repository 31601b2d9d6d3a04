"""The model card of a trained head: what it is for, what it learnt from, what it reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RUN = (
    ("answers", "answers to train on"),
    ("answer_tokens", "tokens in them"),
    ("looping_left_out", "looping answers left out"),
    ("epochs", "epochs"),
    ("test_steps", "steps of the training-time test"),
    ("max_length", "longest text, tokens"),
    ("window", "window, positions"),
    ("draft_vocab", "draft vocabulary asked for"),
    ("coverage", "share of answer tokens it covers"),
    ("parameters", "parameters"),
    ("rate", "learning rate"),
    ("seed", "seed"),
    ("base", "trained on from"),
    ("data", "digest of the data"),
)


def card(facts: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """Markdown.

    Args:
        facts: of the run. measured: the last evaluation.
    """
    model = facts["model"]
    lines = [
        f"# EAGLE-3 head for {model}",
        "",
        f"Drafts for {model}: it changes how fast that model decodes, never what it says. Trained "
        "on the model's own answers by training-time test, with `graft train head`; "
        "`training.jsonl` holds the settings and the curves.",
        "",
        "| | |",
        "|---|---|",
        *[f"| {name} | {_shown(facts[key])} |" for key, name in _RUN if facts[key] is not None],
        f"| answer tokens seen | {_shown(measured['tokens'])} |",
    ]
    if "held_out_tau" in measured:
        trees = measured["trees"]
        steps = ", ".join(f"{share:.1%}" for share in measured["held_out_accuracy"])
        lines += [
            "",
            "On prompts it was not trained on:",
            "",
            f"- first choice equal to the model's, by draft step: {steps}",
            f"- tau {measured['held_out_tau']:.2f}: tokens per round with trees of "
            f"{trees['budget']} nodes (beam {trees['beam']}, depth {trees['depth']}), greedy, "
            f"{trees['prompts']} prompts of {trees['tokens']} tokens, looping answers left out",
        ]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
