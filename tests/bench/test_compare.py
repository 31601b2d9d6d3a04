"""Comparisons: planted differences are named, absent ones are not, and nothing is left unsaid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from graft.bench.compare import compare
from graft.bench.measurement import Measurement
from graft.bench.results import Results
from tests.bench.factory import (
    ENVIRONMENT,
    make_measurement,
    make_plain,
    make_results,
    synthetic,
    tables_of,
)


def _runs(factor: float, seed: int = 0) -> tuple[list[Measurement], list[Measurement]]:
    """The same case twice, the second time faster by a factor in the middle."""
    plain, graft = synthetic(speed_up=factor, items=30, seed=seed, of_item=0.02)
    times = {m.key[:3]: (m.decode_seconds, m.latency_seconds) for m in plain}
    before = []
    for m in graft:
        decode, latency = times[m.key[:3]]
        before.append(replace(m, decode_seconds=decode, latency_seconds=latency))
    return before, graft


def _row(a: Sequence[Measurement], b: Sequence[Measurement]) -> dict[str, str]:
    ((row,),) = tables_of(compare(make_results(a), make_results(b)), "# B compared with A")
    return row


class TestVerdict:
    @pytest.mark.parametrize(
        ("factor", "verdict"), [(1.05, "B is faster"), (1 / 1.05, "B is slower")]
    )
    def test_five_per_cent_are_found(self, factor: float, verdict: str) -> None:
        assert sum(_row(*_runs(factor, s))["verdict"] == verdict for s in range(10)) >= 9

    def test_nothing_is_not_found(self) -> None:
        found = [_row(*_runs(1.0, s))["verdict"] for s in range(30)]
        assert found.count("no difference found") >= 26  # 1.5 of 30 are expected to be wrong

    def test_a_file_beside_itself(self) -> None:
        a, _ = _runs(1.0)
        row = _row(a, a)
        assert row["verdict"] == "no difference found"
        assert row["tokens/s B/A"] == row["tau B/A"] == "1.000 [1.000, 1.000]"

    def test_two_prompts_say_nothing(self) -> None:
        a = [make_measurement(id=str(i)) for i in range(2)]
        row = _row(a, [replace(m, decode_seconds=0.25) for m in a])
        assert (row["verdict"], row["tokens/s B/A"]) == ("cannot be said", "2.000")


class TestNumbers:
    def test_ratios(self) -> None:
        a, b = _runs(1.3)
        b = [replace(m, round_tokens=[3] * 5) for m in b]
        row = _row(a, b)

        def total(answers: Sequence[Measurement], name: str) -> float:
            return float(sum(getattr(m, name) for m in answers))

        expected = {
            "tokens/s B/A": total(a, "decode_seconds") / total(b, "decode_seconds"),
            "latency B/A": total(b, "latency_seconds") / total(a, "latency_seconds"),
            "tau B/A": 1.5,
        }
        for name, value in expected.items():
            numbers = [float(n) for n in re.findall(r"[\d.]+", row[name])]
            assert numbers[0] == pytest.approx(value, abs=0.0006)
            assert numbers[1] <= numbers[0] <= numbers[2]
        assert row["prompts"] == "60"
        assert row["same answers"] == f"{len(a)} of {len(a)}"

    def test_pairing_is_by_prompt(self) -> None:
        a, b = _runs(1.1)
        assert _row(a, b[::-1])["tokens/s B/A"] == _row(a, b)["tokens/s B/A"]

    def test_answers_that_are_not_the_same_are_pointed_at(self) -> None:
        a, b = _runs(1.0)
        text = compare(make_results(a), make_results([replace(b[0], token_ids=[7]), *b[1:]]))
        assert f"{len(a) - 1} of {len(a)}" in text
        assert "Some answers are not the same" in text
        assert "Some answers are not the same" not in compare(make_results(a), make_results(b))

    def test_where_most_are_not_the_same_it_is_said_first(self) -> None:
        a, b = _runs(1.0)
        half = len(b) // 2
        for changed in (half, half + 1):
            others = [replace(m, token_ids=[7]) for m in b[:changed]]
            text = compare(make_results(a), make_results(others + b[changed:]))
            before, _, _ = text.partition("| verdict")
            told = f"**Most answers are not the same ({changed} of {len(a)}): the verdicts are"
            assert (told in before) == (changed > half)

    def test_prompts_of_other_lengths_are_not_paired(self) -> None:
        a, b = _runs(1.0)
        others = [replace(m, prompt_tokens=9, decode_seconds=99.0) for m in b[:5]]
        text = compare(make_results(a), make_results(others + b[5:]))
        ((row,),) = tables_of(text, "# B compared with A")
        assert row["same answers"] == f"{len(a) - 5} of {len(a) - 5}"
        assert row["tokens/s B/A"] == _row(a[5:], b[5:])["tokens/s B/A"]
        assert "**Left out: 5 pairs of answers to prompts that share a name" in text
        assert "Left out" not in compare(make_results(a), make_results(b))
        with pytest.raises(ValueError, match=r"nothing to compare.*other lengths in the two"):
            compare(make_results(a[:1]), make_results(others[:1]))


class TestOnlyInOne:
    def test_prompts(self) -> None:
        a, b = _runs(1.0)
        text = compare(make_results(a[1:]), make_results(b[:-12]))
        assert "prompts only in A (12)" in text
        assert "prompts only in B (1):\n\n- maths maths/0 turn 0 seed 0" in text
        assert "and 2 more" in text
        ((row,),) = tables_of(text, "# B compared with A")
        assert row["same answers"].endswith(f" of {len(a) - 13}")

    def test_cases(self) -> None:
        a = [make_measurement(), make_plain()]
        b = [make_measurement(), make_measurement(budget=8)]
        text = compare(make_results(a), make_results(b))
        assert "Cases only in A: plain at temperature 0, batch 1." in text
        assert "Cases only in B: graft K=8 warm at temperature 0, batch 1." in text

    def test_nothing_in_common(self) -> None:
        with pytest.raises(ValueError, match=r"nothing to compare.*plain at .*graft K=4 warm at"):
            compare(make_results([make_plain()]), make_results([make_measurement()]))
        with pytest.raises(ValueError, match="nothing to compare"):
            compare(make_results([make_plain()]), make_results([make_plain(id="maths/1")]))
        with pytest.raises(ValueError, match=r"nothing to compare.*no case"):
            compare(make_results([make_plain()]), make_results([]))


class TestEnvironments:
    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"model_digest": "9999"}, "- model_digest: A 0123, B 9999"),
            ({"device": "gpu"}, "- device: A cpu, B gpu"),
            ({"prompts_hash": "p1"}, "- prompts_hash: A p0, B p1"),
            ({"settings": {"max_new_tokens": 8}}, "- settings max_new_tokens: A none, B 8"),
            ({"settings": {"matrix": "cold"}}, "- settings matrix: A none, B cold"),
            ({"settings": {"engine": {"k": 4}}}, "- settings engine k: A none, B 4"),
            ({"threads": 8}, "- threads: A 2, B 8"),
            ({"versions": {"torch": "2.14.0"}}, "- versions torch: A 2.13.0, B 2.14.0"),
            ({"dtype": "bfloat16"}, "- dtype: A float32, B bfloat16"),
        ],
    )
    def test_conditions_that_differ_are_told(self, change: dict[str, object], told: str) -> None:
        a, b = _runs(1.0)
        text = compare(make_results(a), make_results(b, **change))
        assert "not run under the same conditions" in text
        assert told in text
        assert ("not run on the same prompts" in text) == ("prompts_hash" in change)

    def test_others_are_not(self) -> None:
        a, b = _runs(1.0)
        text = compare(make_results(a), make_results(b, time="later", command="other"))
        assert "**" not in text

    def test_half_lines_and_changes_within_a_file(self) -> None:
        a, b = _runs(1.0)
        changed = Results(tuple(b), ({**ENVIRONMENT, "threads": 9}, ENVIRONMENT), broken=3)
        text = compare(make_results(a), changed)
        assert "Line 3 of B was half written" in text
        assert "B was added to under other settings" in text
