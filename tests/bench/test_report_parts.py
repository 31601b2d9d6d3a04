"""The report's parts on equality and on rounds: every number again, in plain Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from graft.bench.report import report
from tests.bench.factory import make_measurement, make_plain, make_results, synthetic, tables_of

GRAFT = "graft K=4 warm"


class TestEquality:
    PLAIN = tuple(make_plain(id=f"maths/{i}") for i in range(5))
    OTHER = (*range(7), 99, *range(8, 11))

    def _row(self, *changes: dict[str, object]) -> tuple[dict[str, str], str]:
        answers = [make_measurement(id=f"maths/{i}", **c) for i, c in enumerate(changes)]
        text = report(make_results([*self.PLAIN, *answers]))
        ((row,),) = tables_of(text, "## The same tokens as plain decoding")
        return row, text

    def test_all_the_same(self) -> None:
        row, text = self._row({}, {}, {})
        assert (row["answers"], row["same"], row["excused"], row["different"]) == tuple("3300")
        assert (row["tokens"], row["near-ties"], row["allowed"]) == ("33", "0", "1")
        assert "**No answer differs.**" in text

    def test_excused_and_different_answers(self) -> None:
        other = list(self.OTHER)
        row, text = self._row(
            {},
            {"token_ids": other, "excused": 1},
            {"token_ids": other, "difference": 7},
            {"token_ids": other},  # nobody judged it
            {"token_ids": list(range(9)), "completion_tokens": 9},
        )
        assert (row["answers"], row["same"], row["excused"], row["different"]) == tuple("5113")
        assert int(row["tokens"]) == 11 + 8 + 8 + 8 + 10
        assert "different answers (3):" in text
        assert "maths maths/2 turn 0 at token 7" in text
        assert "maths maths/4 turn 0 at token 9" in text
        assert "No answer differs" not in text

    def test_a_difference_is_one_even_where_the_tokens_are_the_same(self) -> None:
        assert self._row({"difference": 7})[0]["different"] == "1"

    def test_too_many_near_ties(self) -> None:
        changed = {"token_ids": list(self.OTHER), "excused": 1}
        assert "more near-ties than allowed" not in self._row({}, changed)[1]
        assert "more near-ties than allowed" in self._row(changed, changed)[1]

    def test_a_dtype_that_is_not_known(self) -> None:
        text = report(make_results([make_plain(), make_measurement()], dtype="int3"))
        assert "is not known" in text

    def test_transformers_own_sampling_is_not_compared(self) -> None:
        for temperature, compared in ((0.0, True), (1.0, False)):
            plain = make_plain(temperature=temperature)
            hf = make_plain(method="hf", temperature=temperature, token_ids=[1])
            text = report(make_results([plain, hf]))
            assert ("Nothing was compared." not in text) == compared


class TestRounds:
    def test_stages_by_hand(self) -> None:
        answers = [
            make_measurement(
                round_tokens=[2, 1, 5, 3],
                round_stages=["d0", "full", "d10", "d0"],
                round_draft=[1, 4, 4, 1],
                round_retrieved=[3, 0, 2, 2],
            )
        ]
        (rows,) = tables_of(report(make_results(answers)), "## Where drafting stopped")
        assert [list(row.values())[3:] for row in rows] == [
            ["d0", "2", "50.0 %", "3.50", "1.50", "42.9 %"],  # 3 of 7
            ["d10", "1", "25.0 %", "6.00", "4.00", "66.7 %"],
            ["full", "1", "25.0 %", "4.00", "0.00", "0.0 %"],
        ]

    def test_plain_decoding_proposes_nothing(self) -> None:
        (rows,) = tables_of(report(make_results([make_plain()])), "## Where drafting stopped")
        assert rows[0]["accepted ratio"] == "-"

    @pytest.mark.parametrize(
        ("heading", "column", "expected"),
        [
            ("## Work per token", "tokens/s", lambda s: s("later") / s("decode_seconds")),
            ("## Work per token", "draft steps/token", lambda s: s("draft_steps") / s("committed")),
            (
                "## Work per token",
                "rows/token",
                lambda s: (
                    (s("proposed_draft") + s("proposed_retrieved") + s("rounds")) / s("committed")
                ),
            ),
            ("## Time split of the rounds", "verify", lambda s: 100 * s("verify") / s("all")),
            (
                "## Accepted by source",
                "draft",
                lambda s: 100 * s("accepted_draft") / s("proposed_draft"),
            ),
            (
                "## Accepted by source",
                "waste",
                lambda s: (
                    100
                    - 100
                    * (s("accepted_draft") + s("accepted_retrieved"))
                    / (s("proposed_draft") + s("proposed_retrieved"))
                ),
            ),
            ("## Accepted by source", "hit rate", lambda s: 100 * s("hits") / s("lookups")),
        ],
    )
    def test_numbers_with_intervals(
        self, heading: str, column: str, expected: Callable[[Callable[[str], float]], float]
    ) -> None:
        plain, graft = synthetic(speed_up=1.5, items=12)
        graft = [
            replace(
                m,
                hits=i % 30,
                accepted_draft=i % 5,
                draft_steps=i % 7,
                proposed_retrieved=i,
                seconds={"verify": i + 1.0, "draft": 3.0},
            )
            for i, m in enumerate(graft)
        ]

        def total(name: str) -> float:
            special = {
                "later": lambda m: m.completion_tokens - 1,
                "committed": lambda m: sum(m.round_tokens),
                "verify": lambda m: m.seconds["verify"],
                "all": lambda m: sum(m.seconds.values()),
            }
            return float(sum(special.get(name, lambda m: getattr(m, name))(m) for m in graft))

        rows = tables_of(report(make_results(plain + graft)), heading)[0]
        cell = next(row for row in rows if row["case"] == GRAFT)[column]
        value, low, high = map(float, re.findall(r"[\d.]+", cell))
        assert value == pytest.approx(expected(total), abs=0.051 if "%" in cell else 0.0051)
        assert low < value < high

    def test_counts(self) -> None:
        _, graft = synthetic(speed_up=1.5, items=12)
        _, (nodes,), (slots,) = tables_of(report(make_results(graft)), "## Accepted by source")
        assert nodes["accepted draft"] == str(4 * len(graft))
        assert slots["released slots"] == str(10 * len(graft))

    def test_latency(self) -> None:
        answers = [
            make_measurement(id=str(i), latency_seconds=0.1 * (i + 1), time_to_first_token=0.01 * i)
            for i in range(101)
        ]
        ((row,),) = tables_of(report(make_results(answers)), "## Latency in milliseconds")
        assert (row["answer P50"], row["answer P99"]) == ("5100", "10000")
        assert (row["first token P50"], row["first token P99"]) == ("500", "990")
        assert (row["token P50"], row["token P99"]) == ("50.0", "50.0")
