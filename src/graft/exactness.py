"""Exactness: does tree decoding say what plain decoding says, token for token?

`compare` runs both with the same seeds and looks at every output position. Two shapes of the same
forward may round a near-tie differently; that is arithmetic, not method. So a difference is
excused, and counted, where plain decoding's own choice hung by less than a stated margin:

    - its best two (noised) scores, or a score at the cut of top-k, top-p or min-p
      (`Sampler.margin`), lay within the margin of `PRECISIONS` for the dtype, over T; or
    - in a mixture of experts a router's last chosen and first refused expert did.

Every other difference is a mismatch. Comparison goes up to the first difference of an answer;
after an excused one the tree decoder continues from plain decoding's own tokens (re-anchoring).
More excuses than the table allows fail, whatever their margins. The rule and its numbers are ours.

Invariant: a comparison never calls an answer equal without having looked at each of its tokens.
It does not know how trees are made or verified: engines alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import torch

from graft.engine import Engine
from graft.prompts import Prompt, as_prompts, encode
from graft.request import Result
from graft.routers import watch_routers
from graft.sampling import Sampler
from graft.sampling_params import SampleRequest, SamplingParams

__all__ = [
    "PRECISIONS",
    "Comparison",
    "Difference",
    "Precision",
    "PromptComparison",
    "compare",
    "first_difference",
]


class Precision(NamedTuple):
    """What rounding excuses in a dtype."""

    margin: float  # in logits; divided by the temperature where one samples
    tokens_per_excuse: int  # more than one excuse in so many tokens (begun) fails


PRECISIONS: Final = {
    # Rounding of 1e-13 in a logit of 30, a few hundred times over.
    torch.float64: Precision(1e-9, 5000),
    # Each margin is twice what was measured between forwards of 1 and of 9 to 16 rows: by how much
    # the gap between two of a position's ten best tokens moved. Here 5e-5, in small models.
    torch.float32: Precision(1e-4, 5000),
    # 0.04 in the default model: logits around 30 have steps of 1/64 in fp16. One choice in a
    # hundred or so is decided by less.
    torch.float16: Precision(0.1, 50),
    # 0.25 there: three bits of mantissa less, so larger steps and a larger share of near-ties.
    torch.bfloat16: Precision(0.5, 10),
}

# One set of settings for all answers, or a function that makes them anew for each decoding, which
# a user's stateful processors need.
Settings = SamplingParams | Callable[[], SamplingParams]


@dataclass(frozen=True)
class Difference:
    """A position at which the two decoders committed different tokens."""

    prompt: int  # index in the call
    position: int  # of the output, from 0
    plain: int | None  # token id; None where this answer had ended
    other: int | None
    margin: float  # by how much plain decoding preferred its own, in units of logit / T
    limit: float  # up to which margin rounding explains it
    router_margin: float  # nearest choice of a router so far, in its logits; inf if there is none
    excuse: Literal["near-tie", "router"] | None


@dataclass(frozen=True)
class PromptComparison:
    """One prompt's answer."""

    tokens: int  # compared
    rounds: int  # of tree decoding
    accepted: int  # nodes, by all rounds
    differences: tuple[Difference, ...]

    @property
    def tau(self) -> float | None:
        """Mean tokens per round of tree decoding; None without a round."""
        return 1 + self.accepted / self.rounds if self.rounds else None


@dataclass(frozen=True)
class Comparison:
    """All answers of a call."""

    precision: Precision
    prompts: tuple[PromptComparison, ...]

    @property
    def tokens(self) -> int:
        """Output positions compared."""
        return sum(p.tokens for p in self.prompts)

    @property
    def tau(self) -> float | None:
        """Mean tokens per round of tree decoding; None without a round."""
        rounds = sum(p.rounds for p in self.prompts)
        return 1 + sum(p.accepted for p in self.prompts) / rounds if rounds else None

    @property
    def mismatches(self) -> list[Difference]:
        """Differences that rounding does not explain."""
        return [d for p in self.prompts for d in p.differences if d.excuse is None]

    @property
    def excuses(self) -> list[Difference]:
        """Differences that rounding explains."""
        return [d for p in self.prompts for d in p.differences if d.excuse is not None]

    @property
    def allowed(self) -> int:
        """Excuses that these many tokens may have."""
        return max(1, -(-self.tokens // self.precision.tokens_per_excuse))

    @property
    def same(self) -> bool:
        """No mismatch, and no more excuses than allowed."""
        return not self.mismatches and len(self.excuses) <= self.allowed


def compare(
    engine: Engine,
    prompts: Prompt | Sequence[Prompt],
    params: Settings,
    *,
    policy: str | None = None,
    budget: int | None = None,
    raw: bool = False,
    batch: int = 1,
    progress: Callable[[PromptComparison], None] | None = None,
) -> Comparison:
    """Decode prompts plainly, each alone, and with trees; compare the answers token by token.

    Args:
        params: settings of both; a seed of None counts as 0. Give a function that makes them if
            `logits_processors` have a state (keep `batch` at 1 then: they are shared by a call).
        policy, budget: of the tree decoding; None is the engine's own.
        raw: continue texts without a chat template.
        batch: prompts that the tree decoding takes in one call; the noise of prompt i is that of
            row i % batch.
        progress: called after each prompt.

    Raises:
        ValueError: for prompts and settings that are not supported.
    """
    ids = [encode(p, engine.tokenizer, raw=raw) for p in as_prompts(prompts)[0]]
    pair = _Pair(engine, params, policy, budget)
    done: list[PromptComparison] = []
    for start in range(0, len(ids), batch):
        for answer in pair.answers(ids[start : start + batch], start):
            done.append(answer)
            if progress is not None:
                progress(answer)
    return Comparison(precision_of(engine), tuple(done))


def precision_of(engine: Engine) -> Precision:
    """What rounding excuses in the dtype that the engine's model computes in."""
    model = getattr(engine.target, "model", None)
    return PRECISIONS[getattr(model, "dtype", torch.float32)]


def sampler_of(engine: Engine, params: SamplingParams, prompt: int, row: int) -> Sampler:
    """The draws of one request: its prompt has `prompt` tokens, its noise is that of `row`."""
    ends = () if params.ignore_eos else engine.eos_token_ids
    stops = tuple({*ends, *params.stop_token_ids})
    request = SampleRequest(params, params.seed or 0, row, prompt, stops)
    target = engine.target
    return Sampler([request], target.vocab_size, engine.token_count, target.device)


def first_difference(
    engine: Engine,
    params: SamplingParams,
    prompt: list[int],
    plain: list[int],
    other: list[int],
    *,
    index: int = 0,
    row: int = 0,
) -> Difference | None:
    """Where an answer first leaves that of plain decoding, and whether rounding explains it.

    For answers that are there already, of any decoder; comparison ends at that place.

    Args:
        index: number of the prompt, for the report. row: that keyed the noise.
    """
    place = _first_difference(plain, other, 0)
    if place is None:
        return None
    return _Pair(engine, params, None, None)._judge(index, prompt, row, plain, other, place)


class _Pair:
    """The two decoders, with settings that are the same for both."""

    def __init__(
        self, engine: Engine, params: Settings, policy: str | None, budget: int | None
    ) -> None:
        self._engine = engine
        self._settings = params if callable(params) else lambda: params
        self._policy = policy
        self._budget = budget

    def answers(self, group: Sequence[list[int]], first: int) -> Iterator[PromptComparison]:
        """Compare the answers to prompts that the tree decoding takes in one call."""
        trees: list[Result] = self._engine.generate(
            list(group), self._fresh(), policy=self._policy, budget=self._budget
        )
        for row, (prompt, tree) in enumerate(zip(group, trees, strict=True)):
            yield self._follow(first + row, prompt, row, tree)

    def _follow(self, index: int, prompt: list[int], row: int, tree: Result) -> PromptComparison:
        plain = self._plain(prompt, row)
        found: list[Difference] = []
        runs, start, other = [tree], 0, tree.token_ids
        while (place := _first_difference(plain, other, start)) is not None:
            found.append(self._judge(index, prompt, row, plain, other, place))
            start = place + 1
            # A user's processors may have a state, which cannot be set to the middle of an answer.
            lost = found[-1].excuse is None or bool(self._fresh().logits_processors)
            if lost or start == len(plain):
                break
            runs.append(self._tree(prompt, row, plain[:start]))
            other = [*plain[:start], *runs[-1].token_ids]
        else:
            start = len(plain)
        records = [record for run in runs for record in run.stats.round_records]
        accepted = sum(record.accepted for record in records)
        return PromptComparison(start, len(records), accepted, tuple(found))

    def _plain(self, prompt: list[int], row: int) -> list[int]:
        params = self._fresh()
        return self._engine.continue_ids(prompt, params, row=row, policy="plain").token_ids

    def _tree(self, prompt: list[int], row: int, forced: list[int]) -> Result:
        return self._engine.continue_ids(
            prompt,
            self._fresh(),
            forced=forced,
            row=row,
            policy=self._policy,
            budget=self._budget,
        )

    def _fresh(self) -> SamplingParams:
        params = self._settings()
        return replace(params, seed=0) if params.seed is None else params

    def _judge(
        self, index: int, prompt: list[int], row: int, plain: list[int], other: list[int], at: int
    ) -> Difference:
        """What plain decoding's own margin says about a difference."""
        margin = router = float("inf")
        ours, theirs = (ids[at] if at < len(ids) else None for ids in (plain, other))
        rounding, temperature = precision_of(self._engine).margin, self._fresh().temperature
        limit = rounding / temperature if temperature else rounding
        excuse: Literal["near-tie", "router"] | None = None
        if ours is not None and theirs is not None:  # no rounding ends an answer
            margin, router = self._margins(prompt, row, plain[:at])
            if margin <= limit:
                excuse = "near-tie"
            elif router <= rounding:
                excuse = "router"
        return Difference(index, at, ours, theirs, margin, limit, router, excuse)

    def _margins(self, prompt: list[int], row: int, answer: list[int]) -> tuple[float, float]:
        """Margin of the choice after `answer`, and the least one of a router on the way there.

        All of the answer counts for the routers, since a token's cached rows last, and those of
        the two decoders came from forwards of different shapes.
        """
        engine, params, text = self._engine, self._fresh(), [*prompt, *answer]
        with watch_routers(engine.target) as routers:
            logits = engine.logits_of(text, len(answer) + 1)
        sampler = sampler_of(engine, params, len(prompt), row)
        device = logits.device
        history, alive = torch.tensor([text], device=device), torch.ones(1, device=device) > 0
        # Processors with a state must see every position once, in order.
        first = 0 if params.logits_processors else len(answer)
        margin = torch.zeros(1)
        for at in range(first, len(answer) + 1):
            length = torch.tensor([len(prompt) + at], device=device)
            margin = sampler.margin(logits[at : at + 1], history, length, alive)
        return float(margin), routers.least(last=len(answer) + 1)


def _first_difference(first: list[int], second: list[int], start: int) -> int | None:
    """The first place from `start` on where two answers differ, or one of them has ended."""
    shared = min(len(first), len(second))
    for place in range(start, shared):
        if first[place] != second[place]:
            return place
    return None if len(first) == len(second) else max(start, shared)
