"""Statistics: ratios of totals over prompts, and how far chance among the prompts may move them.

Every figure but a quantile is a ratio of sums over answers. Its interval is a paired bootstrap:
prompt items, (task, id) with all their turns, are drawn with replacement, the same ones for a
method and for what it is compared with, and the ratio of the new sums is taken, 2,000 times. The
interval lies between two percentiles of these ratios: 2.5 and 97.5 for many items, further out for
few, because resamples of few items spread too little (Hesterberg 2015, "expanded percentile").
What luck does to a whole run at once (a busy machine) is in no interval.

Invariants: the same measurements and seed give the same interval; turns of an item are never
parted. It knows lines of results alone. The choice of method is ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import torch
from torch import Tensor

from graft.bench.grouping import by_prompt
from graft.bench.measurement import Measurement
from graft.metrics import LAPS

RESAMPLES: Final = 2000
CONFIDENCE: Final = 0.95
LEAST: Final = 3  # items that have an interval: fewer give the same few draws again and again
_NORMAL: Final = NormalDist()

_FIELDS: Final = (
    "decode_seconds",
    "latency_seconds",
    "rounds",
    "draft_steps",
    "proposed_draft",
    "proposed_retrieved",
    "accepted_draft",
    "accepted_retrieved",
    "lookups",
    "hits",
    "context_lookups",
    "context_hits",
)
NAMES: Final = (
    "answers",
    "later_tokens",
    "committed",
    "recorded",
    "recorded_rounds",
    *_FIELDS,
    *LAPS,
)

# Totals over answers by name (NAMES), each float64 [] or [resamples].
Sums = Mapping[str, Tensor]
Measure = Callable[[Sums], Tensor]
Statistic = Callable[[Sums, Sums], Tensor]  # of a method and of what it is compared with


@dataclass(frozen=True)
class Pairs:
    """Answers to the same prompts, added up per item.

    Attributes:
        own, base: totals of a method and of what it is compared with, float64 [items, NAMES].
        tasks: of each item.
        answers: pairs of answers.
        only_own, only_base: answers that have no partner and were left out.
    """

    own: Tensor
    base: Tensor
    tasks: tuple[str, ...]
    answers: int
    only_own: int = 0
    only_base: int = 0

    @property
    def items(self) -> int:
        return len(self.tasks)

    def of_task(self, task: str) -> Pairs:
        """The items of one task; what was left out is not known per task."""
        rows = [i for i, name in enumerate(self.tasks) if name == task]
        own = self.own[rows]
        return Pairs(own, self.base[rows], (task,) * len(rows), int(own[:, 0].sum()))


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Attributes:
        value: None where the denominator is zero, or there are no prompts.
        low, high: None where there is no value, with items below LEAST (of a task, where the mean
            over tasks is meant), or with resamples without a value.
        items: prompts behind it.
    """

    value: float | None
    low: float | None
    high: float | None
    items: int


def pair(own: Iterable[Measurement], base: Iterable[Measurement] | None = None) -> Pairs:
    """Pair the answers of one case with those of another; without `base`, with themselves.

    Raises:
        ValueError: for two answers of a case to one prompt.
    """
    mine = by_prompt(own)
    theirs = mine if base is None else by_prompt(base)
    # Sorted: the order of a file must not move an interval.
    common = sorted(key for key in mine if key in theirs)
    clusters: dict[tuple[str, str], list[tuple[str, str, int, int]]] = defaultdict(list)
    for key in common:
        clusters[key[:2]].append(key)
    return Pairs(
        own=_totals([[mine[key] for key in keys] for keys in clusters.values()]),
        base=_totals([[theirs[key] for key in keys] for keys in clusters.values()]),
        tasks=tuple(task for task, _ in clusters),
        answers=len(common),
        only_own=len(mine) - len(common),
        only_base=len(theirs) - len(common),
    )


def _totals(clusters: Sequence[Sequence[Measurement]]) -> Tensor:
    rows = [
        [sum(column) for column in zip(*map(_numbers, group), strict=True)] for group in clusters
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(NAMES))


def _numbers(m: Measurement) -> list[float]:
    """What adds up over answers, in the order of NAMES."""
    fields = [float(getattr(m, name)) for name in _FIELDS]
    parts = [m.seconds.get(part, 0.0) for part in LAPS]
    recorded = sum(m.round_tokens)
    # Methods from outside tell no single rounds; their tau is all there is. Their first forward
    # may bring several tokens, so those after it are what their rounds committed.
    committed = recorded if m.round_tokens else m.tau * m.rounds
    own = bool(m.round_tokens) or not m.rounds
    later = max(m.completion_tokens - 1, 0) if own else committed
    return [1.0, later, committed, recorded, len(m.round_tokens), *fields, *parts]


def interval(
    pairs: Pairs,
    statistic: Statistic,
    *,
    macro: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """A statistic of the pairs with its bootstrap interval.

    Args:
        statistic: see `alone` and `ratio`.
        macro: the mean over tasks of each task's statistic; items are drawn within their tasks.
            Else the statistic of all items together.
        seed: of the draws.
    """
    tasks = dict.fromkeys(pairs.tasks) if macro else {}
    groups = [pairs.of_task(task) for task in tasks] if macro else [pairs]
    if not pairs.items:
        return Estimate(None, None, None, 0)
    value = _mean([statistic(_named(g.own.sum(0)), _named(g.base.sum(0))) for g in groups])
    if not value.isfinite():
        return Estimate(None, None, None, pairs.items)
    if min(g.items for g in groups) < LEAST:
        return Estimate(float(value), None, None, pairs.items)
    # One generator over all tasks: draws of two tasks must not move together.
    generator = torch.Generator().manual_seed(seed)
    draws = _mean([_draws(g, statistic, resamples, generator) for g in groups])
    if not draws.isfinite().all():
        return Estimate(float(value), None, None, pairs.items)
    tail = _tail([g.items for g in groups])
    low, high = quantiles(draws, (tail, 1 - tail))
    return Estimate(float(value), low, high, pairs.items)


def _draws(pairs: Pairs, statistic: Statistic, resamples: int, rng: torch.Generator) -> Tensor:
    """The statistic of `resamples` draws of as many items as there are: [resamples]."""
    picks = torch.randint(pairs.items, (resamples, pairs.items), generator=rng)
    times = torch.zeros(resamples, pairs.items, dtype=torch.float64)
    times.scatter_add_(1, picks, torch.ones_like(times))  # how often each item was drawn
    return statistic(_named(times @ pairs.own), _named(times @ pairs.base))


def _tail(items: Sequence[int]) -> float:
    """Share of the resamples outside on each side, for groups of so many items.

    That of a normal distribution beyond t * sqrt(n / (n - 1)), with Student's t from its expansion
    in 1 / degrees of freedom (within 1 % from four on, 3 % for two).
    """
    z = _NORMAL.inv_cdf((1 + CONFIDENCE) / 2)
    free = sum(items) - len(items)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    t = z + first / free + second / free**2 + third / free**3
    few = min(items)
    return _NORMAL.cdf(-t * (few / (few - 1)) ** 0.5)


def _mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean(0)


def _named(totals: Tensor) -> Sums:
    return dict(zip(NAMES, totals.unbind(-1), strict=True))


def alone(measure: Measure) -> Statistic:
    """A measure of the method itself."""
    return lambda own, base: measure(own)


def ratio(measure: Measure) -> Statistic:
    """A measure of the method over the same measure of what it is compared with."""
    return lambda own, base: measure(own) / measure(base)


def tokens_per_second(sums: Sums) -> Tensor:
    """Tokens after the first over decode seconds, of one request."""
    return sums["later_tokens"] / sums["decode_seconds"]


def tau(sums: Sums) -> Tensor:
    """Tokens committed per round, before trimming."""
    return sums["committed"] / sums["rounds"]


def mean_latency(sums: Sums) -> Tensor:
    """Seconds per answer."""
    return sums["latency_seconds"] / sums["answers"]


def draft_steps_per_token(sums: Sums) -> Tensor:
    """Expanding forwards of the draft model per committed token."""
    return sums["draft_steps"] / sums["recorded"]


def verified_rows_per_token(sums: Sums) -> Tensor:
    """Rows in the target's forwards, the root of each round included, per committed token."""
    return (_proposed(sums) + sums["recorded_rounds"]) / sums["recorded"]


def draft_accept_ratio(sums: Sums) -> Tensor:
    """Accepted over proposed draft nodes."""
    return sums["accepted_draft"] / sums["proposed_draft"]


def retrieved_accept_ratio(sums: Sums) -> Tensor:
    """Accepted over proposed retrieved nodes."""
    return sums["accepted_retrieved"] / sums["proposed_retrieved"]


def waste(sums: Sums) -> Tensor:
    """Share of the proposed nodes that were not accepted."""
    return 1 - (sums["accepted_draft"] + sums["accepted_retrieved"]) / _proposed(sums)


def hit_rate(sums: Sums) -> Tensor:
    """Share of the matrix lookups that found a written entry."""
    return sums["hits"] / sums["lookups"]


def context_hit_rate(sums: Sums) -> Tensor:
    """Share of the nodes, of those whose longer contexts were looked up, that had any."""
    return sums["context_hits"] / sums["context_lookups"]


def time_share(part: str) -> Measure:
    """Share of the rounds' time that went into one part, a name of `graft.metrics.LAPS`."""
    return lambda sums: sums[part] / torch.stack([sums[name] for name in LAPS]).sum(0)


def _proposed(sums: Sums) -> Tensor:
    return sums["proposed_draft"] + sums["proposed_retrieved"]


speed_up: Final = ratio(tokens_per_second)


def quantiles(values: Sequence[float] | Tensor, at: Sequence[float]) -> list[float | None]:
    """Quantiles with linear interpolation; None where there are no values."""
    numbers = torch.as_tensor(values, dtype=torch.float64)
    if not len(numbers):
        return [None] * len(at)
    found: list[float | None] = list(
        torch.quantile(numbers, torch.tensor(at, dtype=torch.float64)).tolist()
    )
    return found


def token_intervals(answers: Iterable[Measurement]) -> list[float]:
    """Mean seconds per token after the first, of each answer that has any."""
    return [
        m.decode_seconds / (m.completion_tokens - 1) for m in answers if m.completion_tokens > 1
    ]
