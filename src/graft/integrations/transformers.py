"""Graft as a decoding method of Transformers.

    from graft.integrations.transformers import decode

    model.generate(**inputs, max_new_tokens=200, custom_generate=decode)

gives the tokens that `model.generate(**inputs, max_new_tokens=200)` gives, in fewer forwards.
Everything `generate` prepares is honoured: the generation config, logits processors, stopping
criteria, padding at the left. What Graft cannot do is refused with a `ValueError` that names it.

Greedy decoding gives the same tokens. Sampling follows the same law, by Graft's own noise: not
the tokens that `torch.multinomial` would have drawn, but those that Graft's plain policy draws
with the same seed. It is repeatable by `torch.manual_seed` or by a seed of its own.

Some keywords of `generate` never reach a decoding function, whichever it is: give `streamer` as
`graft_streamer` (a `streamer` gets the prompt, then nothing), stop strings as a
`StopStringCriteria` in `stopping_criteria`; `assistant_model` goes unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from graft.engine import Engine
from graft.integrations.hf_call import Call
from graft.integrations.hf_engine import engine_of, forget
from graft.integrations.hf_processors import Processor
from graft.integrations.hf_rows import Criteria
from graft.integrations.hf_settings import check_call, prompts_of, read_criteria
from graft.request import Result
from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings

__all__ = ["Decode", "decode", "engine_of", "forget"]


class Decode:
    """A decoding function for `custom_generate`, with settings of its own.

    One engine is kept per model object, so the matrix goes on learning from call to call, which
    changes no token. `engine_of(model)` is that engine; `forget(model)` drops it. Every setting
    can be given to a single call, too, as a keyword of `generate` that begins with "graft_":
    `model.generate(..., custom_generate=decode, graft_budget=8)`.

    Args:
        policy, budget: as in `EngineSettings`; None keeps the engine's.
        seed: of the draws where `do_sample` is on; None takes one from torch's global generator.
        streamer: gets the prompt, each token as it is committed, and the end; for one row.
        engine: to decode with, made by `graft.load` over the very model that generates.

    Attributes:
        last_results: what `Engine.generate` would have returned for the rows of the last call:
            token ids, their sources, statistics. Their text is empty. (Threads that share an
            object share this; each may have its own.)

    Raises:
        ValueError: for a setting that is not supported.
    """

    def __init__(
        self,
        *,
        policy: str | None = None,
        budget: int | None = None,
        seed: int | None = None,
        streamer: BaseStreamer | None = None,
        engine: Engine | None = None,
    ) -> None:
        EngineSettings().having(policy=policy, budget=budget)
        SamplingParams(seed=seed)
        self.policy = policy
        self.budget = budget
        self.seed = seed
        self.streamer = streamer
        self.engine = engine
        self.last_results: list[Result] = []

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        *,
        generation_config: GenerationConfig,
        logits_processor: Sequence[Processor] = (),
        stopping_criteria: Sequence[Criteria] = (),
        graft_policy: str | None = None,
        graft_budget: int | None = None,
        graft_seed: int | None = None,
        graft_streamer: BaseStreamer | None = None,
        graft_engine: Engine | None = None,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Called by `generate`. Token ids int64 [B, n] in; [B, n + longest output] out."""
        streamer = self.streamer if graft_streamer is None else graft_streamer
        policy = self.policy if graft_policy is None else graft_policy
        budget = self.budget if graft_budget is None else graft_budget
        try:
            check_call(model, generation_config, model_kwargs)
            call = Call(
                _engine(model, graft_engine or self.engine),
                generation_config,
                list(logits_processor),
                read_criteria(stopping_criteria),
                _seed(generation_config, self.seed if graft_seed is None else graft_seed),
            )
            rows = call.rows(prompts_of(input_ids, model_kwargs, call.engine.target.vocab_size))
            _check_streamer(streamer, len(rows))
            if streamer is not None:
                streamer.put(input_ids.cpu())
            call.run(rows, policy, budget, streamer)
        finally:
            if streamer is not None:
                streamer.end()  # else whoever reads from it waits for ever
        self.last_results = [row.result() for row in rows]
        return call.output(rows, input_ids)


decode: Final = Decode()


def _engine(model: PreTrainedModel, given: Engine | None) -> Engine:
    if given is None:
        return engine_of(model)
    if getattr(given.target, "model", None) != model:
        raise ValueError(
            f"the engine given decodes with another model object ({given.name}); make it with "
            "graft.load(model, tokenizer=...) from the one that generates"
        )
    return given


def _seed(config: GenerationConfig, given: int | None) -> int:
    if given is not None:
        return given
    return int(torch.randint(1 << 62, ())) if config.do_sample else 0


def _check_streamer(streamer: BaseStreamer | None, rows: int) -> None:
    if streamer is not None and rows > 1:
        raise ValueError(f"a streamer takes the tokens of one row, and there are {rows}")
