"""The report: every number in its tables again, from the measurements, in plain Python."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest

from graft.bench.measurement import Measurement
from graft.bench.report import report
from graft.bench.results import Results
from tests.bench.factory import (
    ENVIRONMENT,
    make_measurement,
    make_plain,
    make_results,
    synthetic,
    tables_of,
)

SECTIONS = [
    "## What was run",
    "## Speed-up / tau",
    "## Without looping answers",
    "## The same tokens as plain decoding",
    "## Work per token",
    "## Time split of the rounds",
    "## Where drafting stopped",
    "## Accepted by source",
    "## Latency in milliseconds",
    "## Words",
]
GRAFT = "graft K=4 warm"


def _run(seed: int = 0) -> tuple[list[Measurement], list[Measurement]]:
    plain, graft = synthetic(speed_up=1.5, items=12, seed=seed)
    other = [replace(m, round_tokens=[1, 2, 3, 4, 1], draft_steps=3) for m in graft[::3]]
    changed = {m.key: m for m in other}
    return plain, [changed.get(m.key, m) for m in graft]


def _rate(answers: Sequence[Measurement]) -> float:
    return sum(m.completion_tokens - 1 for m in answers) / sum(m.decode_seconds for m in answers)


def _tau(answers: Sequence[Measurement]) -> float:
    return sum(sum(m.round_tokens) for m in answers) / sum(len(m.round_tokens) for m in answers)


def _of(answers: Sequence[Measurement], task: str) -> list[Measurement]:
    return [m for m in answers if m.task == task]


def _cell(plain: Sequence[Measurement], own: Sequence[Measurement]) -> str:
    return f"{_rate(own) / _rate(plain):.2f} / {_tau(own):.2f}"


class TestStructure:
    def test_sections_in_order(self) -> None:
        plain, graft = _run()
        text = report(make_results(plain + graft))
        assert [line for line in text.splitlines() if line.startswith("## ")] == SECTIONS

    def test_columns_line_up(self) -> None:
        plain, graft = _run()
        text = report(make_results(plain + graft))
        for block in text.split("\n\n"):
            widths = {len(line) for line in block.splitlines() if line.startswith("|")}
            assert len(widths) <= 1, block

    def test_lines_of_a_usual_run_fit_a_terminal(self) -> None:
        # Three cases. The values of "What was run" are as long as they are.
        plain, graft = _run()
        others = [replace(m, method="graft-unpruned") for m in graft]
        text = report(make_results([*plain, *graft, *others]))
        tables = text.partition("## Speed-up")[2]
        assert max(len(line) for line in tables.splitlines() if line.startswith("|")) <= 160
        overview = text.partition("### temperature")[2].partition("With 95 %")[0]
        assert max(len(line) for line in overview.splitlines()) <= 100

    def test_a_value_cannot_break_a_table(self) -> None:
        text = report(make_results([make_plain()], command="graft bench a|b\n# c"))
        assert "| command " in text
        assert re.search(r"\| graft bench a\\\|b # c +\|\n", text)

    def test_nothing_measured(self) -> None:
        with pytest.raises(ValueError, match="no measurements"):
            report(make_results([]))


class TestWhatWasRun:
    def test_everything_of_the_environment_is_told(self) -> None:
        text = report(make_results([make_plain(), make_measurement()]))
        (rows,) = tables_of(text, "## What was run")
        found = {row["what"]: row["value"] for row in rows}
        assert found.keys() == {*ENVIRONMENT, "matrix"}
        assert found["versions"] == "torch 2.13.0"
        assert found["drafters"] == "model small 4567"
        assert "warm: " in found["matrix"]
        assert "cold: " not in found["matrix"]
        assert "Answers: 2. Prompts: 1. Tasks: 1 (maths)." in text

    def test_a_run_that_was_killed_and_one_that_changed(self) -> None:
        runs = (ENVIRONMENT, {**ENVIRONMENT, "threads": 4})
        text = report(Results((make_plain(),), runs, broken=7))
        assert "Line 7 was half written" in text
        assert "under other settings: threads 2, then 4." in text
        assert "half written" not in report(make_results([make_plain()]))
        assert "other settings" not in report(make_results([make_plain()]))

    def test_few_prompts_are_pointed_at(self) -> None:
        many = [make_plain(id=f"maths/{i}") for i in range(10)]
        few = [make_plain(task="code", id=f"code/{i}", turn=t) for i in range(9) for t in (0, 1)]
        text = report(make_results(many + few))
        assert "intervals are rough: code." in text

    def test_names_have_no_meaning_in_markdown(self) -> None:
        m = make_plain(task="a*b*\nc|d", id="`x`")
        other = make_measurement(task=m.task, id=m.id, token_ids=[1])
        text = report(make_results([m, other], command="graft bench --suite '*'"))
        assert "| a\\*b\\* c\\|d " in text
        assert "(a\\*b\\* c|d)" in text
        assert "- a\\*b\\* c|d \\`x\\` turn 0" in text
        assert "--suite '\\*'" in text

    @pytest.mark.parametrize(
        ("methods", "weights", "told"),
        [
            (("hf", "hf-lookup"), "210 linears packed in fp16", True),
            (("lookup",), "210 linears packed in fp16", False),
            (("hf",), "as loaded", False),
        ],
    )
    def test_other_weights_than_transformers(
        self, methods: tuple[str, ...], weights: str, told: bool
    ) -> None:
        found = [make_plain(method=name) for name in ("plain", *methods)]
        text = report(make_results(found, weights=weights))
        line = (
            "Plain decoding and Graft's policies run with 210 linears packed in fp16, hf and "
            "hf-lookup with Transformers' own modules in float32."
        )
        assert (line in text) == told


class TestMain:
    def test_tasks_and_the_two_rows_over_all(self) -> None:
        plain, graft = _run()
        text = report(make_results(graft + plain))
        overview, _ = tables_of(text, "## Speed-up / tau")
        found = {row["task"]: row for row in overview}
        assert list(found) == ["maths", "code", "all", "pooled"]
        for task in ("maths", "code"):
            assert found[task][GRAFT] == _cell(_of(plain, task), _of(graft, task))
            assert float(found[task]["plain tok/s"]) == pytest.approx(
                _rate(_of(plain, task)), abs=0.05
            )
            assert found[task]["prompts"] == "12"
        both = [(_of(plain, task), _of(graft, task)) for task in ("maths", "code")]
        faster = statistics.mean(_rate(g) / _rate(p) for p, g in both)
        tau = statistics.mean(_tau(g) for _, g in both)
        assert found["all"][GRAFT] == f"{faster:.2f} / {tau:.2f}"
        assert found["pooled"][GRAFT] == _cell(plain, graft)

    def test_intervals_stand_around_their_numbers(self) -> None:
        plain, graft = _run()
        _, rows = tables_of(report(make_results(plain + graft)), "## Speed-up / tau")
        assert [row["task"] for row in rows] == ["maths", "code", "all", "pooled"]
        for row in rows:
            for name, bounds in (("speed-up", "95 %"), ("tau", "95 %1")):
                low, high = map(float, re.findall(r"[\d.]+", row[bounds]))
                assert low < float(row[name]) < high

    def test_only_common_prompts_and_how_many_are_left_out(self) -> None:
        plain, graft = _run()
        text = report(make_results(plain[3:] + graft[:-1]))
        overview, _ = tables_of(text, "## Speed-up / tau")
        assert overview[-1][GRAFT] == _cell(plain[3:-1], graft[3:-1])
        assert f"compared on {len(plain) - 4} answers; left out: 3 that plain decoding" in text
        assert "; left out: " not in report(make_results(plain + graft))

    def test_without_plain_decoding(self) -> None:
        _, graft = _run()
        text = report(make_results(graft))
        overview, _ = tables_of(text, "## Speed-up / tau")
        assert overview[-1][GRAFT] == f"- / {_tau(graft):.2f}"
        assert "Plain decoding was not run here, so there is no speed-up." in text
        assert "Nothing was compared." in text

    @pytest.mark.parametrize(("rounds", "told"), [(0, "-"), (5, "2.00")])
    def test_methods_from_outside_tell_tau_alone(self, rounds: int, told: str) -> None:
        lists = ("round_tokens", "round_stages", "round_draft", "round_retrieved")
        hf = make_plain(method="hf", rounds=rounds, tau=2.0, decode_seconds=2.0,
                        **{name: [] for name in lists})  # fmt: skip
        text = report(make_results([make_plain(), hf]))
        overview, _ = tables_of(text, "## Speed-up / tau")
        assert overview[-1]["hf"] == f"0.50 / {told}"
        ((_, row),) = tables_of(text, "## Work per token")
        assert (row["case"], row["rows/token"], row["draft steps/token"]) == ("hf", "-", "-")


class TestLooping:
    def test_prompts_whose_plain_answer_loops_are_left_out(self) -> None:
        plain, graft = _run()
        # Those that loop are fast, so that leaving them out shows.
        loops = {m.key[:3] for m in plain[::4]}
        plain = [replace(m, repeated_8grams=0.5 * (m.key[:3] in loops)) for m in plain]
        graft = [replace(m, decode_seconds=m.decode_seconds / (1 + 9 * (m.key[:3] in loops)))
                 for m in graft]  # fmt: skip
        text = report(make_results(plain + graft))
        (rows,) = tables_of(text, "## Without looping answers")
        kept = [[m for m in some if m.key[:3] not in loops] for some in (plain, graft)]
        assert rows[-1][GRAFT] == _cell(*kept)
        assert rows[-1][GRAFT] != _cell(plain, graft)
        assert f"Answers of plain decoding that loop: {len(loops)} of {len(plain)}." in text

    def test_it_is_plain_decodings_answer_that_counts(self) -> None:
        plain, graft = _run()
        graft = [replace(m, repeated_8grams=0.9) for m in graft]
        text = report(make_results(plain + graft))
        assert f"No answer of plain decoding loops, of {len(plain)}." in text
        assert tables_of(text, "## Without looping answers") == []

    def test_all_loop(self) -> None:
        plain, graft = _run()
        text = report(make_results([replace(m, repeated_8grams=0.9) for m in plain] + graft))
        assert "All do." in text


class TestSettings:
    def _results(self) -> tuple[Results, dict[tuple[float, int], str]]:
        found: list[Measurement] = []
        cells: dict[tuple[float, int], str] = {}
        # Batch 4 is slower than plain decoding.
        for seed, (temperature, batch) in enumerate([(1.0, 1), (0.0, 4), (0.0, 1), (1.0, 4)]):
            plain, graft = synthetic(
                speed_up=1.5 if batch == 1 else 0.8, items=10, seed=seed, tasks=["maths"]
            )
            some = [
                [replace(m, temperature=temperature, batch=batch) for m in answers]
                for answers in (plain, graft)
            ]
            cells[temperature, batch] = _cell(*some)
            found += [m for answers in some for m in answers]
        return make_results(found), cells

    def test_each_setting_has_its_own_table(self) -> None:
        results, cells = self._results()
        text = report(results)
        for (temperature, batch), cell in cells.items():
            part = text.partition("## Speed-up / tau")[2].partition("## Without")[0]
            overview = tables_of(part, f"### temperature {temperature:g}, batch {batch}")[0]
            assert overview[-1][GRAFT] == cell

    def test_by_temperature_and_by_batch(self) -> None:
        results, cells = self._results()
        text = report(results)
        for batch, table in zip((1, 4), tables_of(text, "## By temperature"), strict=True):
            for temperature, row in zip((0.0, 1.0), table, strict=True):
                assert row[f"temperature (batch {batch})"] == f"{temperature:g}"
                assert row[GRAFT] == cells[temperature, batch]
        for temperature, table in zip((0.0, 1.0), tables_of(text, "## By batch"), strict=True):
            for batch, row in zip((1, 4), table, strict=True):
                assert row[GRAFT] == cells[temperature, batch]
        assert text.count(f"- {GRAFT}: slower than plain decoding at batch 4\n") == 2

    @pytest.mark.parametrize(
        ("speeds", "told"),
        [
            ({1: 1.5, 2: 0.8, 4: 0.7}, "at every batch from 2 on, of those measured"),
            ({1: 0.8, 2: 1.5, 4: 0.7}, "at batch 1, 4"),
            ({1: 0.8, 2: 0.8, 4: 1.5}, "at batch 1, 2"),
            ({1: 1.5, 4: 0.999}, ""),  # below 1, but its interval is not
        ],
    )
    def test_from_which_batch_on_a_case_is_slower(
        self, speeds: dict[int, float], told: str
    ) -> None:
        found: list[Measurement] = []
        for batch, speed in speeds.items():
            for answers in synthetic(speed_up=speed, items=10, seed=1, tasks=["maths"]):
                found += [replace(m, batch=batch) for m in answers]
        lines = report(make_results(found)).splitlines()
        expected = [f"- {GRAFT}: slower than plain decoding {told}"] if told else []
        assert [line for line in lines if "slower than" in line] == expected

    def test_seeds_are_answers_more(self) -> None:
        plain = [make_plain(seed=s, temperature=1.0) for s in (0, 1)]
        graft = [make_measurement(seed=s, temperature=1.0) for s in (0, 1)]
        text = report(make_results(plain + graft))
        assert "## By temperature" not in text
        assert text.count("### temperature 1, batch 1") == 2
        overview, _ = tables_of(text, "## Speed-up / tau")
        assert overview[-1]["prompts"] == "1"


class TestLengths:
    def test_answers_of_each_bucket_as_one(self) -> None:
        plain, graft = _run()

        def longer(m: Measurement) -> Measurement:
            return replace(m, prompt_tokens=700 if int(m.id.rpartition("/")[2]) % 3 else 100)

        plain, graft = [longer(m) for m in plain], [longer(m) for m in graft]
        (found,) = tables_of(report(make_results(graft + plain)), "## By prompt length")
        assert [row["prompt tokens"] for row in found] == ["0-511", "512-1023"]
        for row, tokens in zip(found, (100, 700), strict=True):
            some = [[m for m in ms if m.prompt_tokens == tokens] for ms in (plain, graft)]
            assert row[GRAFT] == _cell(*some)
            assert row["prompts"] == str(len({m.id for m in some[0]}))
            assert float(row["plain tok/s"]) == pytest.approx(_rate(some[0]), abs=0.05)

    def test_one_bucket_is_no_table(self) -> None:
        plain, graft = _run()
        assert "## By prompt length" not in report(make_results(graft + plain))
