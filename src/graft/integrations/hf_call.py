"""One call of `generate`: its rows as requests, and what it returns.

It joins what the other `hf_` files read and build with an engine, and knows nothing of how a call
gets here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from graft.engine import Engine
from graft.integrations.hf_processors import Processor, RowProcessors, as_settings, for_row
from graft.integrations.hf_rows import Crowd, EndRule, Prompt, Row, pad_right
from graft.integrations.hf_settings import Ends
from graft.model_support import last_fixed_position
from graft.sampling_params import SamplingParams
from graft.target import TransformersTarget

__all__ = ["Call"]

_UNLIMITED: Final = 1 << 40


class _Kept(NamedTuple):
    """What a row keeps of every position, where it is asked for: [1, V] float32 each."""

    logits: list[Tensor] | None
    scores: list[Tensor] | None


class Call:
    """One call of `generate`."""

    def __init__(
        self,
        engine: Engine,
        config: GenerationConfig,
        processors: list[Processor],
        ends: Ends,
        seed: int,
    ) -> None:
        self.engine = engine
        self._config = config
        self._processors = processors
        self._ends = ends
        self._seed = seed
        self._kept: list[_Kept] = []

    def rows(self, prompts: Sequence[Prompt]) -> list[Row]:
        together = len(prompts) > 1 and bool(self._ends.others) and not self._ends.fills
        crowd = Crowd(len(prompts)) if together else None
        return [self._row(prompt, len(prompts), crowd) for prompt in prompts]

    def run(
        self, rows: list[Row], policy: str | None, budget: int | None, streamer: BaseStreamer | None
    ) -> None:
        """Decode all rows to their ends."""
        stream = self.engine.run(rows, policy=policy, budget=budget)
        crowd = rows[0].rule.crowd
        with stream:
            for token in stream:
                if streamer is not None:
                    streamer.put(torch.tensor([token.token_id]))
                if crowd is not None and all(crowd.over(len(row.drawn)) for row in rows):
                    break
        if crowd is not None:
            for row in rows:
                row.cut(crowd.last)

    def output(self, rows: Sequence[Row], ids: Tensor) -> Tensor | GenerateDecoderOnlyOutput:
        """What `generate` returns."""
        outputs = [row.output for row in rows]
        sequences = torch.cat([ids, pad_right(outputs, self._pad(), ids)], dim=1)
        if not self._config.return_dict_in_generate:
            return sequences
        steps = max(len(output) for output in outputs)
        fields: dict[str, Any] = {
            "sequences": sequences,
            "scores": _join([kept.scores for kept in self._kept], outputs, steps),
            "logits": _join([kept.logits for kept in self._kept], outputs, steps),
        }
        return GenerateDecoderOnlyOutput(**fields)

    def _row(self, prompt: Prompt, rows: int, crowd: Crowd | None) -> Row:
        kept = self._keep()
        rule = EndRule(self._ends.others, prompt, kept.scores, crowd)
        limit = self._limit(prompt)
        return Row(
            index=prompt.number,
            prompt=prompt.ids,
            params=self._params(prompt, rows, rule, kept, limit),
            seed=self._seed,
            row=prompt.number,
            stop_ids=self._ends.tokens,
            limit=limit,
            decode=lambda _: "",
            rule=rule,
        )

    def _keep(self) -> _Kept:
        asked = self._config.return_dict_in_generate
        kept = _Kept(
            [] if asked and self._config.output_logits else None,
            [] if asked and self._config.output_scores else None,
        )
        self._kept.append(kept)
        return kept

    def _limit(self, prompt: Prompt) -> int:
        """Output tokens at most. `generate` draws one even where there is no room for it."""
        asked = _UNLIMITED if self._ends.limit is None else self._ends.limit - prompt.width
        context = self.engine.target.max_context
        room = _UNLIMITED if context is None else context - len(prompt.ids)
        if room < 1:
            raise ValueError(
                f"row {prompt.number} has {len(prompt.ids)} tokens, but {self.engine.name} holds "
                f"{context} of prompt and answer together: shorten the prompt"
            )
        target = cast(TransformersTarget, self.engine.target)
        scaled = last_fixed_position(target.model.config.get_text_config(decoder=True)) is not None
        if scaled and asked > room:
            raise ValueError(
                f"row {prompt.number} may grow to {len(prompt.ids) + asked} tokens, but the rotary "
                f"scaling of {self.engine.name} changes at {context}, from where on a forward over "
                f"several tokens says something else than one token at a time: ask for {room} new "
                "tokens at most"
            )
        return min(max(asked, 1), room)

    def _params(
        self, prompt: Prompt, rows: int, rule: EndRule, kept: _Kept, limit: int
    ) -> SamplingParams:
        sample = bool(self._config.do_sample)
        usual: dict[str, Any] = {
            "temperature": 1.0 if sample else 0.0,
            "max_new_tokens": limit,
            "seed": self._seed,
        }
        processors = for_row(self._processors, prompt.number, rows)
        if kept.logits is None and kept.scores is None:
            fields = as_settings(processors, prompt, self._ends.tokens, sample)
            if fields is not None and (params := _valid({**usual, **fields}, limit)) is not None:
                return params
        own = RowProcessors(processors, prompt, rule, kept.logits, kept.scores)
        return SamplingParams(**usual, logits_processors=(own,))

    def _pad(self) -> int:
        """The token that fills rows which have ended: the first end token, if no other is set."""
        pad, ends = self._config.pad_token_id, self._config.eos_token_id
        first = ends[0] if isinstance(ends, list) else ends
        return int((first or 0) if pad is None else pad)


def _valid(fields: dict[str, Any], limit: int) -> SamplingParams | None:
    """The settings, unless Graft's ranges are narrower than Transformers'."""
    fields["min_new_tokens"] = min(fields.get("min_new_tokens", 0), limit)
    try:
        return SamplingParams(**fields)
    except ValueError:
        return None


def _join(
    kept: Sequence[list[Tensor] | None], outputs: Sequence[Sequence[int]], steps: int
) -> tuple[Tensor, ...] | None:
    """One [B, V] per position; zeros in rows that have ended."""
    rows = []
    for row, output in zip(kept, outputs, strict=True):
        if row is None:
            return None
        known = row[: len(output)]
        rows.append(torch.cat([*known, *[torch.zeros_like(row[0])] * (steps - len(known))]))
    return torch.stack(rows, dim=1).unbind(0)
