"""Selection: which items of a suite are run.

Settings apply in this order: tasks, turns, prompt tokens, limit. Invariant: items stay in their
order, and a selection that leaves nothing is an error that says what removed how many. It does not
know files or tokenizers; lengths are what a function passed in counts.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from graft.bench.item import Item

__all__ = ["select_items"]


def select_items(
    items: Sequence[Item],
    *,
    tasks: Sequence[str] = (),
    limit: int | None = None,
    max_prompt_tokens: int | None = None,
    min_prompt_tokens: int | None = None,
    max_turns: int | None = None,
    count: Callable[[str], int] | None = None,
) -> list[Item]:
    """The items to run, in their order.

    Args:
        tasks: those to keep; all if there are none.
        max_turns: later turns of an item are dropped; the item stays.
        min_prompt_tokens, max_prompt_tokens: length of all remaining turns together, without chat
            template, inclusive.
        count: tokens of a text; needed for these lengths alone.
        limit: the first so many per task of what the other settings leave.

    Raises:
        ValueError: for an unknown task, a setting out of range, or if nothing is left.
    """
    _check("limit", limit, 1)
    _check("max turns", max_turns, 1)
    _check("min prompt tokens", min_prompt_tokens, 0)
    _check("max prompt tokens", max_prompt_tokens, max(1, min_prompt_tokens or 0))
    kept = _of_tasks(items, tasks)
    removed = {f"the tasks {', '.join(tasks)}": len(items) - len(kept)} if tasks else {}
    if max_turns is not None:
        kept = [replace(item, turns=item.turns[:max_turns]) for item in kept]
    if min_prompt_tokens is not None or max_prompt_tokens is not None:
        kept = _of_length(kept, min_prompt_tokens, max_prompt_tokens, count, removed)
    return kept if limit is None else _first(kept, limit)


def _check(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise ValueError(f"{name} is {value}: {least} or more is supported")


def _of_tasks(items: Sequence[Item], tasks: Sequence[str]) -> list[Item]:
    known = list(dict.fromkeys(item.task for item in items))
    for task in tasks:
        if task not in known:
            near = difflib.get_close_matches(task, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"no task {task!r} here: there are {', '.join(known)}{hint}")
    return [item for item in items if not tasks or item.task in tasks]


def _of_length(
    items: Sequence[Item],
    least: int | None,
    most: int | None,
    count: Callable[[str], int] | None,
    removed: dict[str, int],
) -> list[Item]:
    if count is None:
        raise ValueError("prompts are chosen by tokens: pass a function that counts them")
    sizes = [sum(map(count, item.turns)) for item in items]
    low, high = least or 0, max(sizes, default=0) if most is None else most
    kept = [item for item, size in zip(items, sizes, strict=True) if low <= size <= high]
    if kept or not sizes:
        return kept
    if least is not None:
        removed[f"min prompt tokens {least}"] = sum(size < low for size in sizes)
    if most is not None:
        removed[f"max prompt tokens {most}"] = sum(size > high for size in sizes)
    parts = ", ".join(f"{name} removed {number}" for name, number in removed.items())
    raise ValueError(
        f"no prompt is left: {parts}; those that were measured have {min(sizes)} to {max(sizes)} "
        "tokens (of their turns, without chat template), so choose limits that some of them meet"
    )


def _first(items: Sequence[Item], limit: int) -> list[Item]:
    taken: Counter[str] = Counter()
    kept = []
    for item in items:
        taken[item.task] += 1
        if taken[item.task] <= limit:
            kept.append(item)
    return kept
