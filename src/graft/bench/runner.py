"""Running a benchmark: every case answers every prompt, side by side in one process.

Cases take turns prompt by prompt, in an order that rotates, so that a machine that slows down or
speeds up does so for all alike. Each case has a matrix of its own. After a group of prompts its
lines are written whole, and the matrices before them, so that a run that was broken off goes on as
if it had not been.

It knows engines, suites and measurements; what the numbers say is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedModel

from graft.bench.matrices import Matrices
from graft.bench.measurement import Measurement, repeated_8grams
from graft.bench.methods import Case
from graft.bench.outside import Outside, generate
from graft.bench.results import ResultsWriter
from graft.bench.suite import Item
from graft.engine import Engine
from graft.exactness import first_difference
from graft.metrics import LAPS
from graft.prompts import encode
from graft.request import Result
from graft.sampling_params import SamplingParams
from graft.settings import RETRIEVING

WARM_UP = "Name the days of the week."
WARM_UP_TOKENS = 8

MatrixState = Literal["cold", "warm"]


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        matrix: "cold" empties every case's matrix before each item, "warm" keeps it over the run.
    """

    items: Sequence[Item]
    cases: Sequence[Case]
    max_new_tokens: int
    seed: int
    matrix: MatrixState


class Runner:
    """Runs a plan.

    Args:
        engines: by drafter kind; None is the engine for methods without one.
        unpacked: makes the model for Transformers' own methods, when one is first needed.
        writer: where lines go; what it holds already is not run again.
        folder: of the run, for the matrices.
    """

    def __init__(
        self,
        plan: Plan,
        engines: Mapping[str | None, Engine],
        unpacked: Callable[[], PreTrainedModel],
        writer: ResultsWriter,
        folder: Path,
    ) -> None:
        self.plan = plan
        self.engines = engines
        self.writer = writer
        self._make_unpacked = unpacked
        self._unpacked: PreTrainedModel | None = None
        self._matrices = Matrices(folder, engines, plan.cases, keep=plan.matrix == "warm")

    def run(self) -> Iterator[list[Measurement]]:
        """Answer group by group; yields the lines of each group as they are written."""
        self._warm_up()
        for number, group in enumerate(self._groups()):
            if all(key in self.writer.done for key in self._keys(group)):
                continue
            self._matrices.begin(number)
            lines = [line for turn in self._turns(group, number) for line in turn]
            self._matrices.save(number)
            for line in lines:
                if line.key not in self.writer.done:  # some were there when a run was killed
                    self.writer.append(line)
            self._matrices.forget(number - 1)
            yield lines

    def _groups(self) -> list[list[Item]]:
        """Items that are asked together: as many of one task as the largest batch."""
        size = max(case.batch for case in self.plan.cases)
        by_task: dict[str, list[Item]] = {}
        for item in self.plan.items:
            by_task.setdefault(item.task, []).append(item)
        return [
            items[start : start + size]
            for items in by_task.values()
            for start in range(0, len(items), size)
        ]

    def _turns(self, group: Sequence[Item], number: int) -> Iterator[list[Measurement]]:
        """The conversations of a group, turn by turn; all cases see the same one."""
        said: list[list[str]] = [[] for _ in group]
        for turn in range(max(len(item.turns) for item in group)):
            here = [i for i, item in enumerate(group) if turn < len(item.turns)]
            prompts = [self._prompt(group[i], said[i]) for i in here]
            items = [group[i] for i in here]
            lines = self._ask_all(items, prompts, turn, number)
            for place, i in enumerate(here):
                answer = next(line for line in lines if line.id == items[place].id)
                said[i].append(self._decode(answer.token_ids))
            yield lines

    def _ask_all(
        self, items: Sequence[Item], prompts: Sequence[list[int]], turn: int, number: int
    ) -> list[Measurement]:
        """All cases on the same prompts, the first one another each time, plain's lines first."""
        cases = list(self.plan.cases)
        shift = (number + turn) % len(cases)
        lines = []
        for case in cases[shift:] + cases[:shift]:
            for start in range(0, len(items), case.batch):
                some = slice(start, start + case.batch)
                lines += self._ask(case, items[some], prompts[some], turn)
        return self._judge(lines, items, prompts)

    def _ask(
        self, case: Case, items: Sequence[Item], prompts: Sequence[list[int]], turn: int
    ) -> list[Measurement]:
        if case.method.policy is None:
            return [
                _of_outside(self._identity(case, item, turn), prompt, self._generate(case, prompt))
                for item, prompt in zip(items, prompts, strict=True)
            ]
        with self._matrices.of(case) as engine:
            results: list[Result] = engine.generate(
                [list(prompt) for prompt in prompts],
                self._params(case),
                policy=case.method.policy,
                budget=case.budget or None,
            )
        return [
            _of_result(self._identity(case, item, turn), result)
            for item, result in zip(items, results, strict=True)
        ]

    def _generate(self, case: Case, prompt: Sequence[int]) -> Outside:
        if self._unpacked is None:
            self._unpacked = self._make_unpacked()
        engine = self.engines[None]
        return generate(
            self._unpacked,
            prompt,
            lookup=case.budget,
            max_new_tokens=self.plan.max_new_tokens,
            temperature=case.temperature,
            eos_token_ids=engine.eos_token_ids,
            seed=self.plan.seed,
        )

    def _judge(
        self, lines: list[Measurement], items: Sequence[Item], prompts: Sequence[list[int]]
    ) -> list[Measurement]:
        """Compare every answer with that of plain decoding under the same settings and noise."""
        number = {item.id: i for i, item in enumerate(items)}
        plain = {(m.id, m.temperature, m.batch): m for m in lines if m.method == "plain"}
        out = []
        for line in lines:
            known = plain.get((line.id, line.temperature, line.batch))
            # Transformers draws by another generator, so sampled answers of its are others.
            drawn_elsewhere = line.temperature > 0 and line.method.startswith("hf")
            if known is not None and known is not line and not drawn_elsewhere:
                place = number[line.id]
                line = self._compared(line, known, prompts[place], place % line.batch)
            out.append(line)
        return out

    def _compared(
        self, line: Measurement, plain: Measurement, prompt: list[int], row: int
    ) -> Measurement:
        params = self._sampling(line.temperature)
        found = first_difference(
            self.engines[None], params, prompt, plain.token_ids, line.token_ids, row=row
        )
        if found is None:
            return line
        if found.excuse is not None:
            return replace(line, excused=1)
        return replace(line, difference=found.position)

    def _warm_up(self) -> None:
        """Every case answers once, unmeasured, and forgets what it learnt."""
        prompt = encode(WARM_UP, self.engines[None].tokenizer, raw=True)
        for case in self.plan.cases:
            if case.method.policy is None:
                self._generate(case, prompt)
                continue
            with self._matrices.of(case) as engine:
                params = replace(self._params(case), max_new_tokens=WARM_UP_TOKENS)
                policy, budget = case.method.policy, case.budget or None
                engine.generate([prompt] * case.batch, params, policy=policy, budget=budget)
        self._matrices.restore()

    def _params(self, case: Case) -> SamplingParams:
        return self._sampling(case.temperature)

    def _sampling(self, temperature: float) -> SamplingParams:
        return SamplingParams(
            temperature=temperature, max_new_tokens=self.plan.max_new_tokens, seed=self.plan.seed
        )

    def _prompt(self, item: Item, said: Sequence[str]) -> list[int]:
        """Token ids of a conversation up to its next turn."""
        tokenizer = self.engines[None].tokenizer
        if item.raw or not getattr(tokenizer, "chat_template", None):
            texts = [text for pair in zip(item.turns, said, strict=False) for text in pair]
            return encode("\n\n".join([*texts, item.turns[len(said)]]), tokenizer, raw=True)
        messages = []
        for asked, answered in zip(item.turns, said, strict=False):
            messages.append({"role": "user", "content": asked})
            messages.append({"role": "assistant", "content": answered})
        messages.append({"role": "user", "content": item.turns[len(said)]})
        return encode(messages, tokenizer, raw=False)

    def _decode(self, ids: Sequence[int]) -> str:
        text = self.engines[None].tokenizer.decode(list(ids), skip_special_tokens=True)
        return str(text)

    def _keys(self, group: Sequence[Item]) -> Iterator[tuple[object, ...]]:
        for item in group:
            for turn in range(len(item.turns)):
                for case in self.plan.cases:
                    identity = self._identity(case, item, turn)
                    yield (
                        *(identity[name] for name in ("task", "id", "turn", "method", "budget")),
                        *(identity[name] for name in ("temperature", "batch", "seed", "matrix")),
                    )

    def _identity(self, case: Case, item: Item, turn: int) -> dict[str, object]:
        """The fields of a measurement that say what was asked of whom."""
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


def _of_result(identity: dict[str, object], result: Result) -> Measurement:
    stats = result.stats
    records = stats.round_records
    counters = {
        name: getattr(stats, name)
        for name in (
            *("trimmed", "prefill_seconds", "decode_seconds", "time_to_first_token"),
            *("rounds", "draft_steps", "kept_draft", "released_slots", "redirected"),
            *("proposed_draft", "proposed_retrieved", "accepted_draft", "accepted_retrieved"),
            *("empty_slots", "rows_written", "lookup_seconds"),
        )
    }
    return _measurement(
        identity,
        result.usage.prompt_tokens,
        result.token_ids,
        **counters,
        sources="".join(source.name[0].lower() for source in result.sources),
        finish_reason=result.finish_reason,
        tau=stats.tau or 1.0,
        latency_seconds=stats.time_to_first_token + stats.decode_seconds,
        lookups=sum(r.lookups for r in records),
        hits=sum(r.hits for r in records),
        seconds={name: sum(getattr(r.times, name) for r in records) for name in LAPS},
        round_tokens=[r.accepted + 1 for r in records],
        round_stages=[r.stage for r in records],
        round_draft=[r.proposed_draft for r in records],
        round_retrieved=[r.proposed_retrieved for r in records],
    )


def _of_outside(identity: dict[str, object], prompt: Sequence[int], found: Outside) -> Measurement:
    numbers = ("trimmed", "draft_steps", "kept_draft", "released_slots", "redirected")
    nodes = ("proposed_draft", "proposed_retrieved", "accepted_draft", "accepted_retrieved")
    rest = ("empty_slots", "lookups", "hits", "rows_written")
    return _measurement(
        identity,
        len(prompt),
        found.token_ids,
        **dict.fromkeys((*numbers, *nodes, *rest), 0),
        sources="",
        finish_reason="",
        tau=found.tau,
        rounds=found.rounds,
        prefill_seconds=found.time_to_first_token,
        decode_seconds=found.latency_seconds - found.time_to_first_token,
        time_to_first_token=found.time_to_first_token,
        latency_seconds=found.latency_seconds,
        lookup_seconds=0.0,
        seconds={},
        round_tokens=[],
        round_stages=[],
        round_draft=[],
        round_retrieved=[],
    )


def _measurement(
    identity: dict[str, Any], prompt_tokens: int, answer: list[int], **fields: Any
) -> Measurement:
    return Measurement(
        **identity,
        prompt_tokens=prompt_tokens,
        completion_tokens=len(answer),
        token_ids=answer,
        repeated_8grams=repeated_8grams(answer),
        **fields,
    )
