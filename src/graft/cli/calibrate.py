"""`graft calibrate`: find the settings that make most tokens per second here, and keep them.

stdout holds what was found and where it is kept. What is measured and tried is not known here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from graft.cli import options as o
from graft.cli.bars import bar
from graft.cli.loading import load_engine, numbers
from graft.cli.screen import Screen
from graft.cli.shared import ENGINE, MODEL, shares

if TYPE_CHECKING:
    from graft.calibrate import Calibration
    from graft.prompts import Prompt

__all__ = ["calibrate_command"]

_DRAFTER: Final = {n: ENGINE[n] for n in ("drafter", "head", "draft_model", "head_window")}
# Prompts per task, and tokens of an answer.
_WHOLE, _QUICK = (8, 96), (3, 48)


@shares(MODEL, _DRAFTER)
def calibrate_command(
    context: typer.Context,
    suite: Annotated[
        list[Path] | None,
        typer.Option("--suite", help="Prompts as graft bench takes them. Some are built in."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Prompts per task at most.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", "-n", min=8, help="Tokens of an answer.")
    ] = None,
    budgets: Annotated[
        str, typer.Option("--budgets", metavar="K,K,...", help="To choose from. [default: many]")
    ] = "",
    temperatures: Annotated[
        str, typer.Option("--temperatures", metavar="T,T,...", help="Of the answers, in turn.")
    ] = "0,0.7",
    quick: Annotated[
        bool, typer.Option("--quick", help="Few prompts, and no look at other tasks.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="The profile. [default: in Graft's cache]")
    ] = None,
    quiet: o.Quiet = False,
) -> None:
    """Find the fastest settings for a model, a drafter and this machine."""
    from graft.bench.suite import builtin_suite, read_suite, select_items
    from graft.settings import MAX_BUDGET

    most, tokens = _QUICK if quick else _WHOLE
    chosen = numbers("budgets", budgets, int) if budgets else ()
    if bad := [k for k in chosen if not 1 <= k <= MAX_BUDGET]:
        raise ValueError(f"--budgets {bad[0]}: numbers from 1 to {MAX_BUDGET} are supported")
    items = select_items(read_suite(suite) if suite else builtin_suite(), limit=limit or most)
    prompts: list[tuple[str, Prompt]] = [(item.task, item.turns[0]) for item in items]
    engine = load_engine({**context.params, "profile": "none"}, quiet=quiet)
    from graft.calibrate import calibrate
    from graft.profile import save_profile
    from graft.profiles import own_place

    with bar("steps", quiet=quiet) as show:
        found = calibrate(
            engine,
            prompts,
            tokens=max_new_tokens or tokens,
            temperatures=numbers("temperatures", temperatures, float),
            budgets=chosen,
            transfer=not quick,
            progress=show,
        )
    assert engine.made_for is not None, "the loader says it"
    here = engine.made_for()
    place = out or own_place(here)
    save_profile(place, found.profile(here))
    _report(Screen(sys.stdout), found, place)


def _report(screen: Screen, found: Calibration, place: Path) -> None:
    from graft.bench.tables import number, table

    plain = found.plain.tokens_per_second
    rows = [["plain", "", "1.00", number(plain, 1), "1.00", "1.00", ""]]
    for policy, choice in found.choices.items():
        rate = choice.score.tokens_per_second
        usual = found.preset[policy].score.tokens_per_second
        rows.append(
            [
                policy,
                str(choice.settings.budget),
                number(choice.score.whole.tau),
                number(rate, 1),
                number(rate / plain),
                number(found.least_gain(choice.score)),
                f"{rate / usual - 1:+.1%}",
            ]
        )
    header = ["policy", "K", "tau", "tokens/s", "x plain", "least task", "over the preset"]
    for line in table(header, rows).splitlines():
        screen.line(line)
    screen.line("")
    for policy, choice in found.choices.items():
        screen.line(f"{policy}: {_told(choice.settings)}")
    if found.transfer:
        screen.line("")
        mean = sum(b / a - 1 for a, b in found.transfer.values()) / len(found.transfer)
        rows = [
            [task, number(a, 1), number(b, 1), f"{b / a - 1:+.1%}"]
            for task, (a, b) in found.transfer.items()
        ]
        rows.append(["mean", "", "", f"{mean:+.1%}"])
        header = [f"{found.best}, tokens/s on", "tuned on all", "on the others", "change"]
        for line in table(header, rows).splitlines():
            screen.line(line)
    left = f", {found.looping} answers that loop left out" if found.looping else ""
    screen.line("")
    screen.line(
        f"Played over {len(found.player.recordings)} recorded answers{left}; seconds are those of "
        "the costs measured here."
    )
    screen.line(f"{found.best} is taken where no policy is named. The profile is {place}")


def _told(settings: Any) -> str:
    from graft.profile import TUNED

    values = {name: getattr(settings, name) for name in TUNED}
    return ", ".join(f"{n} {v}" for n, v in values.items() if v is not None)
