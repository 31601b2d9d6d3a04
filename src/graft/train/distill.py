"""Self-distillation: the target answers prompts, and its answers are what a head learns from.

All prompts are answered turn by turn, longest first, as many at a time as the engine takes; each
answer goes to the data folder as soon as it is there, and what is there is not asked again. The
draw of an answer is keyed by its prompt, so order and interruptions change nothing about it.

It knows the engine and suites of prompts; not heads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from graft.bench.conversation import turn_ids
from graft.bench.item import Item
from graft.engine import Engine
from graft.sampling_params import SamplingParams
from graft.train.answers import Answer
from graft.train.data_folder import DataWriter

BLOCK = 4096  # prompts that are put into words at a time
ROOM = 1 << 17  # tokens that the target's cache holds at most, of all requests together


@dataclass(frozen=True)
class DistillSettings:
    """How prompts are answered.

    Attributes:
        max_new_tokens: of an answer.
        sampled: share of prompts that are answered at `temperature`; the others greedily.
        max_prompt_tokens: longer prompts are left out; None takes all that leave room.
        seed: which prompts are sampled, and their draws.

    Raises:
        ValueError: naming the setting, what was found and what is supported.
    """

    max_new_tokens: int = 256
    sampled: float = 0.33
    temperature: float = 0.7
    max_prompt_tokens: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 2:
            raise ValueError(f"max_new_tokens={self.max_new_tokens}: 2 or more is supported")
        if not 0 <= self.sampled <= 1:
            raise ValueError(f"sampled={self.sampled}: a share from 0 to 1 is supported")
        if not 0 < self.temperature <= 10:
            raise ValueError(f"temperature={self.temperature}: above 0, to 10, is supported")


class Told(NamedTuple):
    """After an answer: it, and how many of how many there are; left out are prompts too long."""

    answer: Answer | None
    done: int
    total: int
    left_out: int


def distill(
    engine: Engine, items: Sequence[Item], writer: DataWriter, settings: DistillSettings
) -> Iterator[Told]:
    """Answer all turns of all items that are not answered yet.

    Args:
        engine: with room for as many requests as are to run together (max_batch).
        writer: where the answers go; the caller finishes it.
    """
    known = {answer.key: answer for answer in writer.done}
    total = sum(len(item.turns) for item in items)
    done, left_out = len(known), 0
    yield Told(None, done, total, 0)
    for turn in range(max(len(item.turns) for item in items)):
        wave = [i for i in items if turn < len(i.turns) and (i.task, i.id, turn) not in known]
        # A mix of all tasks, so that a run that is stopped early has some of each.
        wave.sort(key=lambda item: _number(item, turn, settings.seed))
        for start in range(0, len(wave), BLOCK):
            asked = _ask(engine, wave[start : start + BLOCK], turn, known, settings)
            left_out += len(wave[start : start + BLOCK]) - len(asked)
            for answer in _answers(engine, asked):
                known[answer.key] = answer
                writer.append(answer)
                done += 1
                yield Told(answer, done, total, left_out)


class _Asked(NamedTuple):
    item: Item
    turn: int
    prompt: list[int]
    params: SamplingParams


def _ask(
    engine: Engine,
    items: Sequence[Item],
    turn: int,
    known: dict[tuple[str, str, int], Answer],
    settings: DistillSettings,
) -> list[_Asked]:
    """What to ask, longest prompts first; not items without room, or without an answer before."""
    prompts = []
    for item in items:
        before = [known.get((item.task, item.id, t)) for t in range(turn)]
        if None not in before:
            said = [_text(engine, a.answer_ids) for a in before if a is not None]
            prompts.append((item, turn_ids(item, said, engine.tokenizer)))
    room = engine.target.max_context
    longest = room - settings.max_new_tokens if room is not None else None
    limits = [n for n in (longest, settings.max_prompt_tokens) if n is not None]
    fitting = [(i, p) for i, p in prompts if all(len(p) <= limit for limit in limits)]
    fitting.sort(key=lambda pair: -len(pair[1]))
    asked = []
    for item, prompt in fitting:
        number = _number(item, turn, settings.seed)
        temperature = settings.temperature if number % 10_000 < 10_000 * settings.sampled else 0.0
        params = SamplingParams(
            temperature=temperature, max_new_tokens=settings.max_new_tokens, seed=number >> 16
        )
        asked.append(_Asked(item, turn, prompt, params))
    return asked


def _answers(engine: Engine, asked: Sequence[_Asked]) -> Iterator[Answer]:
    """Answers as they end."""
    for some in _together(asked, engine.settings.max_batch):
        made = (engine.request(i, one.prompt, one.params, row=0) for i, one in enumerate(some))
        requests = [replace(request, decode=lambda ids: "") for request in made]  # nobody reads it
        for token in engine.run(requests, policy="plain"):
            if token.finish_reason is not None:
                one = some[token.request]
                ids = [drawn.token for drawn in requests[token.request].drawn]
                heat = one.params.temperature
                yield Answer(one.item.task, one.item.id, one.turn, heat, one.prompt, ids)


def _together(asked: Sequence[_Asked], batch: int) -> Iterator[list[_Asked]]:
    """Prompts of like length, so that the cache has no more room than they need."""
    buckets: dict[int, list[_Asked]] = {}
    for one in asked:
        length = len(one.prompt) + one.params.max_new_tokens
        buckets.setdefault(length.bit_length(), []).append(one)
    for size, bucket in buckets.items():
        fits = ROOM >> size
        count = len(bucket) if fits >= batch else max(fits, 1)
        for start in range(0, len(bucket), count):
            yield bucket[start : start + count]


def _text(engine: Engine, ids: Sequence[int]) -> str:
    return str(engine.tokenizer.decode(list(ids), skip_special_tokens=True))


def _number(item: Item, turn: int, seed: int) -> int:
    """63 bits that stand for a turn of an item."""
    text = repr((seed, item.task, item.id, turn)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8]) >> 1
