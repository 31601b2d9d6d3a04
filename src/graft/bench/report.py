"""report.md: what a file of results says, as Markdown tables that read well in a terminal.

Its first table is the one that is asked for, tasks x cases with speed-up / tau; then come the
same with intervals, the same without looping answers, and what explains it. Every name is defined
in docs/bench.md.

Invariant: a report says nothing that its results do not hold, and names what it left out. It
measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from graft.bench import report_equality, report_rounds
from graft.bench.buckets import bucket, bucket_name, bucket_range
from graft.bench.grouping import (
    PLAIN,
    Column,
    Group,
    Setting,
    grouped,
    plain_of,
    tasks_of,
    without_looping,
)
from graft.bench.methods import OTHER_WEIGHTS, OUTSIDE
from graft.bench.results import Results, differences
from graft.bench.statistics import (
    Estimate,
    Pairs,
    alone,
    interval,
    pair,
    speed_up,
    tau,
    tokens_per_second,
)
from graft.bench.tables import NOTHING, counted, escaped, figures, interval_of, number, table
from graft.looping import LOOPING

HEADING: Final = "# Graft bench"
SHORT: Final = 512  # tokens of a prompt below which no lengths are told apart
FEW: Final = 10  # prompts below which bootstrap intervals miss the truth too often

_MATRIX: Final = {
    "cold": "cold: the matrix is empty at the start of every answer and learns within it",
    "warm": "warm: the matrix is kept over the run, so later prompts profit from earlier ones",
    "none": "none: no matrix of our own",
}

_WORDS: Final = """## Words

- case: a method, its budget K (nodes in a tree without the root) and its matrix.
- speed-up: tokens per second over those of plain decoding, on the same prompts.
- tau: mean tokens committed per round, before trimming; nothing accepted is 1.
- [low, high]: 95 % bootstrap interval over prompts, the turns of one together.
- all: mean over tasks, each counts the same. pooled: all answers as one.
- row: a token the target verified, the root of each round included.
- waste: proposed nodes that were not accepted. hit rate: matrix lookups that found an entry.
- -: there is no such number: nothing to divide by, or fewer than 3 prompts for an interval.

All of them are defined in docs/bench.md."""

# Tasks, and the two rows over all of them, with the pairs and whether to average over tasks.
_Rows = list[tuple[str, Callable[[Pairs], Pairs], bool]]


def report(results: Results) -> str:
    """The report of a file of results, as Markdown.

    Raises:
        ValueError: if there is no measurement in it.
    """
    if not results.measurements:
        raise ValueError(
            "there are no measurements to report on: the run was ended before its first"
        )
    groups = grouped(results.measurements)
    parts = [
        HEADING,
        _what_was_run(results),
        *_main(groups, results.environment),
        *_without_looping(groups),
        *_across(groups),
        *_by_length(groups),
        *report_equality.sections(groups, results.environment),
        *report_rounds.sections(groups),
        _WORDS,
    ]
    return "\n\n".join(parts) + "\n"


def _what_was_run(results: Results) -> str:
    found = results.measurements
    facts = [(n, escaped(_told(v))) for n, v in results.environment.items() if v != {}]
    prompts = len({(m.task, m.id) for m in found})
    tasks = [escaped(task) for task in tasks_of(found)]
    kinds = [words for name, words in _MATRIX.items() if name in {m.matrix for m in found}]
    lines = [
        "## What was run",
        table(["what", "value"], [*facts, ("matrix", "; ".join(kinds))], left=2),
        f"Answers: {len(found)}. Prompts: {prompts}. Tasks: {len(tasks)} ({', '.join(tasks)}).",
        *_warnings(results),
    ]
    return "\n\n".join(lines)


def _told(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_told(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_told, value))
    return "none" if value is None else str(value)


def _warnings(results: Results) -> list[str]:
    out = []
    if results.broken is not None:
        out.append(f"Line {results.broken} was half written when its run was ended; left out.")
    first, *others = results.environments
    for environment in others:
        changed = differences(first, environment)
        if changed:
            told = "; ".join(f"{n} {_told(a)}, then {_told(b)}" for n, (a, b) in changed.items())
            out.append(f"**The file was added to under other settings: {escaped(told)}.**")
    items = {(m.task, m.id) for m in results.measurements}
    tasks = tasks_of(results.measurements)
    few = [t for t in tasks if sum(task == t for task, _ in items) < FEW]
    if few:
        told = f"fewer than {FEW} prompts, so their intervals are rough"
        out.append(f"Tasks with {told}: {', '.join(map(escaped, few))}.")
    return out


def _main(groups: Mapping[Setting, Group], environment: Mapping[str, Any]) -> list[str]:
    parts = ["## Speed-up / tau", *_other_weights(groups, environment)]
    for setting, group in groups.items():
        parts += [f"### {setting}", _overview(group), *_left_out(group)]
        if len(group) > 1 or not plain_of(group):
            parts += ["With 95 % intervals:", _intervals(group)]
    return parts


def _other_weights(groups: Mapping[Setting, Group], environment: Mapping[str, Any]) -> list[str]:
    """What methods of others do not share: packed weights, and the weights themselves."""
    columns = [column for group in groups.values() for column in group]
    foreign = dict.fromkeys(c.method for c in columns if c.method in OTHER_WEIGHTS)
    settings = environment.get("settings", {})
    out = [
        f"{name} runs other weights, so its answers are others: {_told(settings.get(name))}."
        for name in foreign
    ]
    names = dict.fromkeys(
        c.method for c in columns if c.method in OUTSIDE and c.method not in foreign
    )
    weights = str(environment.get("weights"))
    if not names or "packed" not in weights:
        return out
    return [
        *out,
        f"Plain decoding and Graft's policies run with {weights}, {' and '.join(names)} with "
        f"Transformers' own modules in {environment.get('dtype')}.",
    ]


def _rows(group: Group) -> _Rows:
    tasks = tasks_of(m for answers in group.values() for m in answers)
    rows: _Rows = [(escaped(task), partial(Pairs.of_task, task=task), False) for task in tasks]
    return [*rows, ("all", lambda p: p, True), ("pooled", lambda p: p, False)]


def _pairs(group: Group) -> dict[Column, Pairs]:
    """Each case beside plain decoding, on the prompts of both; alone where plain was not run."""
    base = plain_of(group) or None
    return {c: pair(answers, base) for c, answers in group.items() if c.method != PLAIN}


def _overview(group: Group) -> str:
    """Tasks x cases, `speed-up / tau` in each cell."""
    plain, pairs = pair(plain_of(group)), _pairs(group)
    rows = []
    for name, part, macro in _rows(group):
        own = part(plain)
        rate = interval(own, alone(tokens_per_second), macro=macro)
        items = max(part(p).items for p in (plain, *pairs.values()))
        cells = [_cell(part(p), macro, bool(plain.items)) for p in pairs.values()]
        rows.append([name, str(items), figures(rate.value), *cells])
    return table(["task", "prompts", "plain tok/s", *map(str, pairs)], rows)


def _cell(pairs: Pairs, macro: bool, against_plain: bool) -> str:
    faster, per_round = _two(pairs, macro, against_plain)
    return f"{number(faster.value)} / {number(per_round.value)}"


def _two(pairs: Pairs, macro: bool, against_plain: bool) -> tuple[Estimate, Estimate]:
    """Speed-up, which needs plain decoding, and tau."""
    nothing = Estimate(None, None, None, pairs.items)
    faster = interval(pairs, speed_up, macro=macro) if against_plain else nothing
    return faster, interval(pairs, alone(tau), macro=macro)


def _intervals(group: Group) -> str:
    rows = []
    against_plain = bool(plain_of(group))
    for column, pairs in _pairs(group).items():
        for name, part, macro in _rows(group):
            own = part(pairs)
            faster, per_round = _two(own, macro, against_plain)
            numbers = [t for e in (faster, per_round) for t in (number(e.value), interval_of(e))]
            rows.append([str(column), name, str(own.items), *numbers])
    return table(["case", "task", "prompts", "speed-up", "95 %", "tau", "95 %"], rows, left=2)


def _left_out(group: Group) -> list[str]:
    if not plain_of(group):
        return ["Plain decoding was not run here, so there is no speed-up."]
    out = []
    for column, pairs in _pairs(group).items():
        if pairs.only_own or pairs.only_base:
            out.append(
                f"- {column}: compared on {counted(pairs.answers, 'answer')}; left out: "
                f"{pairs.only_own} that plain decoding lacks, {pairs.only_base} that only plain "
                "decoding has."
            )
    return ["\n".join(out)] if out else []


def _without_looping(groups: Mapping[Setting, Group]) -> list[str]:
    limit = f"more than {LOOPING:.0%} of its 8-grams repeat earlier ones".replace("%", " %")
    parts = [
        "## Without looping answers",
        f"Prompts whose plain answer loops ({limit}) are left out: repetition is easy to draft.",
    ]
    for setting, group in groups.items():
        plain = plain_of(group)
        looping = sum(m.looping for m in plain)
        parts += [f"### {setting}"]
        if not plain:
            parts.append("Plain decoding was not run here, so which prompts loop is not known.")
        elif looping:
            parts.append(f"Answers of plain decoding that loop: {looping} of {len(plain)}.")
            parts.append(_overview(without_looping(group)) if looping < len(plain) else "All do.")
        else:
            parts.append(f"No answer of plain decoding loops, of {len(plain)}.")
    return parts


def _by_length(groups: Mapping[Setting, Group]) -> list[str]:
    """Settings whose prompts are of several lengths, bucket by bucket."""
    parts: list[str] = []
    for setting, group in groups.items():
        lengths = [m.prompt_tokens for answers in group.values() for m in answers]
        starts = bucket_range(lengths, SHORT)
        if len(starts) > 1:
            parts += [f"### {setting}", _lengths(group, starts)]
    told = "## By prompt length\n\nTokens of the prompt; all answers as one, speed-up / tau."
    return [told, *parts] if parts else []


def _lengths(group: Group, starts: Sequence[int]) -> str:
    rows = []
    for start in starts:
        some = {c: [m for m in ms if bucket(m.prompt_tokens, SHORT) == start]
                for c, ms in group.items()}  # fmt: skip
        plain = plain_of(some)
        rate = interval(pair(plain), alone(tokens_per_second)).value
        cells = [_cell(pairs, False, bool(plain)) for pairs in _pairs(some).values()]
        prompts = str(len({(m.task, m.id) for ms in some.values() for m in ms}))
        rows.append([bucket_name(start, SHORT), prompts, figures(rate), *cells])
    cases = [str(column) for column in group if column.method != PLAIN]
    return table(["prompt tokens", "prompts", "plain tok/s", *cases], rows)


def _across(groups: Mapping[Setting, Group]) -> list[str]:
    """The row "all" of every setting side by side, where there are several."""
    parts = []
    batches = sorted({s.batch for s in groups})
    temperatures = sorted({s.temperature for s in groups})
    if len(temperatures) > 1:
        parts.append("## By temperature\n\nMean over tasks, speed-up / tau.")
        for batch in batches:
            some = [s for s in groups if s.batch == batch]
            parts.append(_side_by_side(groups, some, f"temperature (batch {batch})"))
    if len(batches) > 1:
        parts.append(
            "## By batch\n\nMean over tasks, speed-up / tau. A case is called slower where the "
            "95 % interval of its speed-up lies below 1."
        )
        for temperature in temperatures:
            some = [s for s in groups if s.temperature == temperature]
            name = f"batch (temperature {temperature:g})"
            parts += [_side_by_side(groups, some, name), *_slower(groups, some)]
    return parts


def _side_by_side(groups: Mapping[Setting, Group], settings: Sequence[Setting], name: str) -> str:
    columns = list(dict.fromkeys(c for s in settings for c in groups[s] if c.method != PLAIN))
    rows = []
    for setting in settings:
        pairs, known = _pairs(groups[setting]), bool(plain_of(groups[setting]))
        cells = [_cell(pairs[c], True, known) if c in pairs else NOTHING for c in columns]
        value = setting.batch if name.startswith("batch") else setting.temperature
        rows.append([f"{value:g}", *cells])
    return table([name, *map(str, columns)], rows)


def _slower(groups: Mapping[Setting, Group], settings: Sequence[Setting]) -> list[str]:
    """The batches at which a case is slower than plain decoding, by its mean over tasks."""
    found: dict[Column, list[tuple[int, bool]]] = {}
    for setting in settings:
        if plain_of(groups[setting]):
            for column, pairs in _pairs(groups[setting]).items():
                high = interval(pairs, speed_up, macro=True).high
                slow = high is not None and high < 1
                found.setdefault(column, []).append((setting.batch, slow))
    lines = [f"- {column}: slower than plain decoding at {where}"
             for column, batches in found.items() if (where := _where(batches))]  # fmt: skip
    return ["\n".join(lines)] if lines else []


def _where(batches: Sequence[tuple[int, bool]]) -> str:
    """Batches in order, and whether a case was slower: where it was; "" for nowhere."""
    slow = [batch for batch, slower in batches if slower]
    if len(slow) > 1 and all(slower for batch, slower in batches if batch >= slow[0]):
        return f"every batch from {slow[0]} on, of those measured"
    return f"batch {', '.join(map(str, slow))}" if slow else ""
