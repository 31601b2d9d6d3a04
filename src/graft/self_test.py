"""The self-test of a drafter at load: does it draft this target's text at all?

A head for another target loads without any error where the sizes agree, and then nothing it drafts
is ever accepted. A short answer to a fixed prompt tells. It changes nothing in the engine but time.
"""

from __future__ import annotations

import logging

from graft.engine import Engine

log = logging.getLogger("graft")

PROMPT = "Count from one to thirty in words, separated by commas."
TOKENS = 32
LEAST_TAU = 1.05


def self_test(engine: Engine) -> float | None:
    """tau of dense drafting on the fixed prompt; warns with the likely causes if it is too low.

    None where the model cannot be asked that, or the answer ended before a round.
    """
    raw = not getattr(engine.tokenizer, "chat_template", None)
    budget = min(engine.settings.budget or 8, 8)
    try:
        result = engine.generate(
            PROMPT, policy="dense", budget=budget, raw=raw, max_new_tokens=TOKENS
        )
    except ValueError:  # a context too short, or a chat template that wants other messages
        return None
    engine.forget()
    tau = result.stats.tau
    if tau is not None and tau < LEAST_TAU:
        log.warning(
            "the drafter's tokens are hardly ever accepted: tau was %.2f on a short test (1.00 is "
            "none at all). Likely causes: it was made for another model or another fine-tune of "
            "this one; its feature layers are not those it was trained with; it was trained with "
            "another tokenizer or chat template. The output is not affected, but decoding is "
            "slower than plain: check it with graft heads inspect, or leave it out.",
            tau,
        )
    return tau
