"""Running a benchmark: every case answers every prompt, side by side in one process.

Cases take turns prompt by prompt, in an order that rotates, so that a machine that slows down or
speeds up does so for all alike. All of them see the same conversation: the answers of plain
decoding. After a group of prompts its lines and what was learnt go to the journal, then the lines
to the results, so that a run that was broken off goes on as if it had not been.

It knows engines, suites and measurements; what the numbers say is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from graft.bench.answers import of_outside, of_result
from graft.bench.conversation import told, turn_ids
from graft.bench.item import Item
from graft.bench.journal import Entry, Journal
from graft.bench.judging import judged
from graft.bench.measurement import Measurement
from graft.bench.memories import Memories
from graft.bench.methods import Case
from graft.bench.outside import Answer, Asked, Outside
from graft.bench.results import read_results
from graft.bench.results_writer import ResultsWriter
from graft.engine import Engine
from graft.fingerprint import tokenizer_fingerprint
from graft.prompts import encode
from graft.request import Result
from graft.sampling_params import SamplingParams
from graft.settings import RETRIEVING

WARM_UP = "Name the days of the week."
WARM_UP_TOKENS = 8

MatrixState = Literal["cold", "warm"]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        matrix: "warm" keeps a matrix per case over the run. Under "cold" each answer begins with
            an empty one; the engines see to that (matrix_scope "request").
    """

    items: Sequence[Item]
    cases: Sequence[Case]
    max_new_tokens: int
    seed: int
    matrix: MatrixState


class Runner:
    """Runs a plan. Lines that a killed run had not yet written are written at once.

    Args:
        engines: by drafter kind; None is the engine for methods without one.
        outside: gives what answers for a method of others, when it is first needed.
        writer: where lines go; what it holds already is not run again.
        folder: of the run.
    """

    def __init__(
        self,
        plan: Plan,
        engines: Mapping[str | None, Engine],
        outside: Callable[[str], Answer],
        writer: ResultsWriter,
        folder: Path,
    ) -> None:
        cold = plan.matrix == "cold"
        scopes = {engine.settings.matrix_scope for engine in engines.values()}
        assert ("request" in scopes) == cold, "cold matrices are made by the engines"
        self.plan = plan
        self.engines = engines
        self.writer = writer
        self._outside = outside
        keeping = [] if cold else [c for c in plan.cases if c.method.policy in RETRIEVING]
        self._memories = Memories(engines, keeping)
        engine = engines[None]
        fingerprint = tokenizer_fingerprint(engine.tokenizer, engine.token_count)
        self._journal = Journal(folder, fingerprint)
        entry = self._journal.read() or Entry([], {})
        self._learnt = entry.memories
        self._write(entry.lines)
        known = read_results(folder / "results.jsonl").measurements
        self._known = {line.key: line for line in known}

    @property
    def keys(self) -> list[Key]:
        """Of all lines that will be there at the end."""
        cases = self.plan.cases
        return [k for item in self.plan.items for case in cases for k in self._keys(case, item)]

    def run(self) -> Iterator[list[Measurement]]:
        """Answer group by group; yields the new lines of each group once they are written."""
        ready = False
        for number, group in enumerate(self._groups()):
            waiting = [case for case in self.plan.cases if not self._done(case, group)]
            if not waiting:
                continue
            if not ready:
                self._begin()
                ready = True
            lines = [line for turn in self._turns(group, waiting, number) for line in turn]
            fresh = [line for line in lines if line.key not in self.writer.done]
            self._journal.write(Entry(fresh, self._memories.learnt()))
            self._write(fresh)
            yield fresh

    def _begin(self) -> None:
        """Warm up, and go on with what an earlier start of the run had learnt."""
        self._warm_up(self.plan.cases)
        self._memories.restore()
        heard = {key[3:] for key in self._known}  # cases that have answered before
        for case in self._memories.missing(self._learnt):
            if self._key(case, self.plan.items[0], 0)[3:] in heard:
                raise ValueError(
                    f"what {case.name} had learnt is not in {self._journal.path}, so its matrix "
                    "cannot be gone on with: run into another folder"
                )
        self._memories.take(self._learnt)

    def _write(self, lines: Sequence[Measurement]) -> None:
        for line in lines:
            if line.key not in self.writer.done:
                self.writer.append(line)

    def _groups(self) -> list[list[Item]]:
        """Items that are asked together: of one task, as many as fill batches of every size."""
        size = math.lcm(*(case.batch for case in self.plan.cases))
        by_task: dict[str, list[Item]] = {}
        for item in self.plan.items:
            by_task.setdefault(item.task, []).append(item)
        return [
            items[start : start + size]
            for items in by_task.values()
            for start in range(0, len(items), size)
        ]

    def _turns(
        self, group: Sequence[Item], cases: Sequence[Case], number: int
    ) -> Iterator[list[Measurement]]:
        """The conversations of a group, turn by turn."""
        said: list[list[str]] = [[] for _ in group]
        for turn in range(max(len(item.turns) for item in group)):
            here = [i for i, item in enumerate(group) if turn < len(item.turns)]
            items = [group[i] for i in here]
            prompts = [self._prompt(group[i], said[i]) for i in here]
            lines = self._ask_all(items, prompts, cases, turn, number + turn)
            for i in here:
                said[i].append(self._said(group[i], turn, lines))
            yield lines

    def _said(self, item: Item, turn: int, lines: Sequence[Measurement]) -> str:
        """What the next turn follows on: plain decoding's answer, or else the first case's."""
        cases = self.plan.cases
        speaker = next((c for c in cases if c.method.policy == "plain"), cases[0])
        key = self._key(speaker, item, turn)
        line = next((line for line in lines if line.key == key), None) or self._known[key]
        ids = line.token_ids
        return str(self.engines[None].tokenizer.decode(ids, skip_special_tokens=True))

    def _ask_all(
        self,
        items: Sequence[Item],
        prompts: Sequence[list[int]],
        cases: Sequence[Case],
        turn: int,
        number: int,
    ) -> list[Measurement]:
        """All cases on the same prompts, the first one another each time."""
        shift = number % len(cases)
        lines = []
        for case in [*cases[shift:], *cases[:shift]]:
            for start in range(0, len(items), case.batch):
                some = slice(start, start + case.batch)
                lines += self._ask(case, items[some], prompts[some], turn)
        places = {item.id: (p, i) for i, (item, p) in enumerate(zip(items, prompts, strict=True))}
        return judged(self.engines[None], lines, places, self._known, self._sampling)

    def _ask(
        self, case: Case, items: Sequence[Item], prompts: Sequence[list[int]], turn: int
    ) -> list[Measurement]:
        asked = [self._identity(case, item, turn) for item in items]
        if case.method.policy is None:
            return [
                of_outside(identity, prompt, self._generate(case, prompt, self._limit(prompt)))
                for identity, prompt in zip(asked, prompts, strict=True)
            ]
        results = self._decode(case, prompts, self._sampling(case.temperature))
        return [of_result(who, result) for who, result in zip(asked, results, strict=True)]

    def _decode(
        self, case: Case, prompts: Sequence[list[int]], params: SamplingParams
    ) -> list[Result]:
        with self._memories.of(case) as engine:
            return engine.generate(
                [list(prompt) for prompt in prompts],
                params,
                policy=case.method.policy,
                budget=case.budget or None,
            )

    def _generate(self, case: Case, prompt: Sequence[int], limit: int) -> Outside:
        ends, heat = self.engines[None].eos_token_ids, case.temperature
        asked = Asked(prompt, case.budget, limit, heat, ends, self.plan.seed)
        return self._outside(case.method.name)(asked)

    def _warm_up(self, cases: Sequence[Case]) -> None:
        """Every case answers once, unmeasured."""
        engine = self.engines[None]
        room = engine.target.max_context
        prompt = encode(WARM_UP, engine.tokenizer, raw=True)[: room and room // 2]
        for case in cases:
            if case.method.policy is None:
                self._generate(case, prompt, WARM_UP_TOKENS)
            else:
                params = replace(self._sampling(case.temperature), max_new_tokens=WARM_UP_TOKENS)
                self._decode(case, [prompt] * case.batch, params)

    def _sampling(self, temperature: float) -> SamplingParams:
        return SamplingParams(
            temperature=temperature, max_new_tokens=self.plan.max_new_tokens, seed=self.plan.seed
        )

    def _prompt(self, item: Item, said: Sequence[str]) -> list[int]:
        engine = self.engines[None]
        prompt = turn_ids(item, said, engine.tokenizer)
        if self._limit(prompt) < 1:
            raise ValueError(
                f"turn {len(said) + 1} of {told(item)} has {len(prompt)} tokens by now, but "
                f"{engine.name} holds {engine.target.max_context}: leave it out, or lower "
                "--max-turns or --max-new-tokens"
            )
        return prompt

    def _limit(self, prompt: Sequence[int]) -> int:
        """Tokens that an answer may have."""
        room = self.engines[None].target.max_context
        wanted = self.plan.max_new_tokens
        return wanted if room is None else min(wanted, room - len(prompt))

    def _done(self, case: Case, group: Sequence[Item]) -> bool:
        return all(key in self.writer.done for item in group for key in self._keys(case, item))

    def _keys(self, case: Case, item: Item) -> list[Key]:
        return [self._key(case, item, turn) for turn in range(len(item.turns))]

    def _key(self, case: Case, item: Item, turn: int) -> Key:
        """As `Measurement.key`."""
        return tuple(self._identity(case, item, turn).values())

    def _identity(self, case: Case, item: Item, turn: int) -> dict[str, Any]:
        """The fields of a measurement that say what was asked of whom, in the order of its key."""
        return {
            "task": item.task,
            "id": item.id,
            "turn": turn,
            "method": case.method.name,
            "budget": case.budget,
            "temperature": case.temperature,
            "batch": case.batch,
            "seed": self.plan.seed,
            "matrix": self.plan.matrix if case.method.policy in RETRIEVING else "none",
        }
