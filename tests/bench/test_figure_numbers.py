"""Figures: the numbers that are drawn are those of the measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from graft.bench.buckets import bucket, bucket_name, bucket_range
from graft.bench.figures import batches, components, conditions, kinds, speedup, stages
from graft.bench.figures.data import Data, Missing
from graft.bench.figures.style import rc_context
from graft.bench.measurement import Measurement
from graft.bench.statistics import interval, pair, quantiles, speed_up

from .figure_data import KINDS, METHODS, make_measurement, make_run


@pytest.fixture(autouse=True)
def _rc() -> Iterator[None]:
    with rc_context():
        yield


@pytest.fixture(scope="module")
def run() -> list[Measurement]:
    return make_run(tasks=("chat", "code"), prompts=3, temperatures=(0.0, 1.0), batches=(1, 4))


def xy(line: Line2D) -> list[tuple[float, float]]:
    rows = np.asarray(line.get_xydata(), dtype=float)
    return [(float(x), float(y)) for x, y in rows]


def points(ax: Axes) -> dict[str, list[tuple[float, float]]]:
    """Of each labelled line."""
    labels = {str(line.get_label()): line for line in ax.lines}
    return {label: xy(line) for label, line in labels.items() if not label.startswith("_")}


def bar_lengths(ax: Axes, *, across: bool = False) -> dict[str, list[float]]:
    """Of each label's bars, in the order in which they were drawn."""
    found: dict[str, list[float]] = {}
    for container in ax.containers:
        lengths = [bar.get_width() if across else bar.get_height() for bar in container]
        found.setdefault(str(container.get_label()), []).extend(lengths)
    return found


def chosen(
    run: Sequence[Measurement], method: str, temperature: float = 0.0, batch: int = 1
) -> list[Measurement]:
    wanted = (method, temperature, batch)
    return [m for m in run if (m.method, m.temperature, m.batch) == wanted]


def rate(answers: Sequence[Measurement]) -> float:
    return sum(m.completion_tokens - 1 for m in answers) / sum(m.decode_seconds for m in answers)


def tau(answers: Sequence[Measurement]) -> float:
    rounds = [n for m in answers for n in m.round_tokens]
    return sum(rounds) / len(rounds)


def of(answers: Sequence[Measurement], task: str) -> list[Measurement]:
    return [m for m in answers if m.task == task]


# ---- speed-up against tau


def test_speedup_and_tau_are_those_of_the_answers(run: list[Measurement]) -> None:
    axes = speedup.draw(Data(run)).axes
    assert [ax.get_title("left") for ax in axes if ax.axison] == [
        f"temperature {t}, batch {b}" for t in (0, 1) for b in (1, 4)
    ]
    for ax, (t, b) in zip(axes, [(0.0, 1), (0.0, 4), (1.0, 1), (1.0, 4)], strict=False):
        plain, graft = chosen(run, "plain", t, b), chosen(run, "graft", t, b)
        each = [
            (tau(of(graft, k)), rate(of(graft, k)) / rate(of(plain, k))) for k in ("chat", "code")
        ]
        mean = tuple(sum(v) / 2 for v in zip(*each, strict=True))
        assert points(ax)["graft"] == [pytest.approx(mean)]
        assert points(ax)["plain"] == [pytest.approx((1.0, 1.0))]
        assert [pytest.approx(p) for p in each] in [xy(line) for line in ax.lines]


def test_speedup_is_over_the_prompts_that_plain_decoding_answered() -> None:
    answers = make_run(("plain", "graft"), ("chat",), 4)
    some = [m for m in answers if m.method == "graft" or m.id in ("chat-0", "chat-1")]
    both = [m for m in answers if m.id in ("chat-0", "chat-1")]
    (found,) = points(speedup.draw(Data(some)).axes[0])["graft"]
    assert found == points(speedup.draw(Data(both)).axes[0])["graft"][0]
    assert found != points(speedup.draw(Data(answers)).axes[0])["graft"][0]


def test_a_method_without_rounds_is_a_line_at_its_speedup() -> None:
    answers = make_run(("plain", "graft", "hf-lookup"), ("chat",), 3)
    line = points(speedup.draw(Data(answers)).axes[0])["hf-lookup"]
    expected = rate(chosen(answers, "hf-lookup")) / rate(chosen(answers, "plain"))
    assert [y for _, y in line] == pytest.approx([expected, expected])


def test_variants_of_a_method_have_labels_of_their_own() -> None:
    answers = make_run(("plain", "graft"), ("chat",), 2, warm=("graft",))
    answers += [replace(m, budget=32) for m in answers if m.matrix == "cold"]
    expected = {"plain", "graft K=60 warm", "graft K=60 cold", "graft K=32 cold"}
    assert points(speedup.draw(Data(answers)).axes[0]).keys() == expected


# ---- components


def test_components_are_bars_of_speedup_and_tau_with_their_intervals(
    run: list[Measurement],
) -> None:
    faster, per_round = components.draw(Data(run)).axes
    for method, label in (("graft", "graft (everything)"), ("dense", "dense (drafting alone)")):
        plain, own = chosen(run, "plain"), chosen(run, method)
        speeds = [rate(of(own, k)) / rate(of(plain, k)) for k in ("chat", "code")]
        taus = [tau(of(own, k)) for k in ("chat", "code")]
        for ax, values in ((faster, speeds), (per_round, taus)):
            expected = [*values, sum(values) / 2]
            assert bar_lengths(ax, across=True)[label] == pytest.approx(expected)
    assert [t.get_text() for t in faster.get_yticklabels()] == ["chat", "code", "all tasks"]
    ends = interval(
        pair(of(chosen(run, "graft"), "code"), of(chosen(run, "plain"), "code")), speed_up
    )
    lines = next(c for c in faster.collections if isinstance(c, LineCollection))
    assert lines.get_segments()[1][:, 0] == pytest.approx([ends.low, ends.high])


def test_components_of_another_drafter_stand_beside_retrieval() -> None:
    answers = make_run(("plain", "retrieval", "model:graft", "model:dense", "graft"), ("chat",), 2)
    found = bar_lengths(components.draw(Data(answers)).axes[0], across=True)
    assert [label.split()[0] for label in found] == ["model:graft", "model:dense", "retrieval"]


def test_components_without_plain_decoding_are_tau_alone() -> None:
    answers = make_run(METHODS[1:], ("chat",), 2)
    (ax,) = components.draw(Data(answers)).axes
    expected = tau(chosen(answers, "graft"))
    assert bar_lengths(ax, across=True)["graft (everything)"] == pytest.approx([expected])


# ---- stages and depth


def hand_made() -> Measurement:
    """Four rounds; the last is trimmed by one token."""
    return replace(
        make_measurement("graft"),
        sources="t" + "dt" + "t" + "drrt" + "dd",
        accepted_draft=4,
        accepted_retrieved=2,
        completion_tokens=10,
        trimmed=1,
        rounds=4,
        round_tokens=[2, 1, 4, 3],
        round_stages=["d0", "d0", "full", "d10"],
        round_draft=[4, 6, 8, 10],
        round_retrieved=[6, 4, 4, 0],
    )


def test_accepted_ratios_are_of_rounds_before_trimming_by_stage_and_source() -> None:
    answers = [hand_made()]
    assert stages.accepted_ratios(answers, "draft") == {"d0": 1 / 10, "full": 1 / 8, "d10": 2 / 10}
    assert stages.accepted_ratios(answers, "retrieved") == {"d0": 0.0, "full": 2 / 4}
    # Their sums are those of the report's table.
    found = [(r.accepted_draft, r.accepted_retrieved) for r in stages.rounds_of(answers[0])]
    assert [sum(n) for n in zip(*found, strict=True)] == [4, 2]
    assert stages.stage_shares(answers) == {"d0": 0.5, "full": 0.25, "d10": 0.25}
    draft, retrieved, rounds = stages.draw(Data(answers)).axes
    assert bar_lengths(draft)["graft"] == pytest.approx([10.0, 20.0, 12.5])
    assert bar_lengths(retrieved)["graft"] == pytest.approx([0.0, 50.0])
    assert bar_lengths(rounds)["graft"] == pytest.approx([50.0, 25.0, 25.0])
    assert [t.get_text() for t in rounds.get_xticklabels()] == ["d0", "d10", "full"]


def test_depth_counts_rounds_that_accepted_at_least_so_many() -> None:
    (ax,) = stages.draw_depth(Data([hand_made()])).axes
    assert points(ax)["graft"] == [(1, 75.0), (2, 50.0), (3, 25.0)]


def test_methods_that_do_not_draft_have_no_stages() -> None:
    none = replace(hand_made(), round_draft=[0] * len(hand_made().round_draft))
    with pytest.raises(Missing, match="no method drafts"):
        stages.draw(Data([none]))


def test_answers_without_sources_have_no_stages() -> None:
    with pytest.raises(Missing, match="source"):
        stages.draw(Data([replace(hand_made(), sources="")]))


# ---- conditions


def test_buckets_double_and_have_no_gaps() -> None:
    assert [bucket(n, 128) for n in (0, 127, 128, 255, 256, 1023, 1024)] == [
        *(0, 0, 128, 128, 256, 512, 1024)
    ]
    assert bucket_range([5, 600], 128) == [0, 128, 256, 512]
    assert [bucket_name(s, 128) for s in (0, 128, 512)] == ["0-127", "128-255", "512-1023"]


def test_tau_by_prompt_length(run: list[Measurement]) -> None:
    (ax,) = conditions.draw_context(Data(run)).axes
    graft = chosen(run, "graft")
    lengths = ((0, 127), (128, 255), (512, 1023))
    groups = [[m for m in graft if low <= m.prompt_tokens <= high] for low, high in lengths]
    assert [y for _, y in points(ax)["graft"]] == pytest.approx([tau(g) for g in groups])
    assert [round(x) for x, _ in points(ax)["graft"]] == [0, 1, 3]
    assert "plain" not in points(ax)
    under = [t.get_text().partition("\n")[2] for t in ax.get_xticklabels()]
    assert under == ["2 prompts", "2 prompts", "0 prompts", "2 prompts"]


def test_tau_and_slowest_answers_by_temperature(run: list[Measurement]) -> None:
    left, right = conditions.draw_temperature(Data(run)).axes
    groups = [chosen(run, "graft", t) for t in (0.0, 1.0)]
    assert [y for _, y in points(left)["graft"]] == pytest.approx([tau(g) for g in groups])
    slow = [max(m.latency_seconds for m in g) for g in groups]
    assert [y for _, y in points(right)["graft"]] == pytest.approx(slow)
    assert right.get_title("left") == "Slowest answer"
    for line in left.lines:  # far from the next temperature
        assert np.asarray(line.get_xdata()) == pytest.approx([0, 1], abs=0.1)
    assert "plain" in points(right)
    spread = [quantiles([m.tau for m in g], [0.1, 0.9]) for g in groups]
    segments = next(c for c in left.collections if isinstance(c, LineCollection)).get_segments()
    assert [list(s[:, 1]) for s in segments] == [pytest.approx(ends) for ends in spread]


def test_of_a_hundred_answers_the_slowest_hundredth_is_drawn() -> None:
    answers = make_run(("graft",), ("chat",), 100, temperatures=(0.0, 1.0))
    _, right = conditions.draw_temperature(Data(answers)).axes
    groups = [chosen(answers, "graft", t) for t in (0.0, 1.0)]
    slow = [quantiles([m.latency_seconds for m in g], [0.99])[0] for g in groups]
    assert [y for _, y in points(right)["graft"]] == pytest.approx(slow)
    assert right.get_title("left") == "Slowest 1 % of answers"


def test_tau_over_an_answer_counts_a_round_where_it_begins() -> None:
    answer = replace(make_measurement("graft"), round_tokens=[10, 5, 1, 20, 3])
    # They begin at 1, 11, 16, 17 and 37.
    assert conditions.tau_by_position([answer]) == {0: 7.5, 16: 10.5, 32: 3.0}
    (ax,) = conditions.draw_course(Data([answer])).axes
    assert points(ax)["graft"] == [(0, 7.5), (1, 10.5), (2, 3.0)]


def test_the_course_shows_cold_and_warm_and_no_method_without_a_matrix() -> None:
    answers = make_run(("plain", "dense", "graft"), ("chat",), 2, warm=("graft",))
    (ax,) = conditions.draw_course(Data(answers)).axes
    assert points(ax).keys() == {"graft warm", "graft cold"}


# ---- batches


def test_latency_and_cost_of_grafting_by_batch(run: list[Measurement]) -> None:
    left, right = batches.draw(Data(run)).axes
    groups = [chosen(run, "graft", batch=b) for b in (1, 4)]
    means = [sum(m.latency_seconds for m in g) / len(g) for g in groups]
    assert [y for _, y in points(left)["graft"]] == pytest.approx(means)
    rounds = [sum(m.rounds for m in g) for g in groups]
    cost = [
        1e3 * sum(m.seconds["graft"] for m in g) / n for g, n in zip(groups, rounds, strict=True)
    ]
    lookup = [
        1e3 * sum(m.lookup_seconds for m in g) / n for g, n in zip(groups, rounds, strict=True)
    ]
    drawn = [[y for _, y in xy(line)] for line in right.lines]
    assert pytest.approx(cost) in drawn
    assert pytest.approx(lookup) in drawn
    assert len(drawn) == 6  # retrieval, graft-unpruned and graft; no lookup elsewhere


# ---- kinds of tokens


def test_kinds_are_shares_of_each_case_most_frequent_first() -> None:
    (ax,) = kinds.draw(Data([]), KINDS).axes
    found = bar_lengths(ax, across=True)
    assert found["graft (100 tokens)"] == pytest.approx([60, 30 + 0, 10])
    assert found["retrieval (5 tokens)"] == pytest.approx([0, 100, 0])
    assert [t.get_text() for t in ax.get_yticklabels()] == ["punctuation", "name", "api"]
    assert "code tasks" in ax.figure.get_suptitle()
    assert "all of them: 100 %" in ax.get_xlabel()


def test_intervals_need_three_prompts() -> None:
    answers = [make_measurement(name, number=i) for name in ("graft", "dense") for i in range(2)]
    (ax,) = components.draw(Data(answers)).axes
    assert not [c for c in ax.collections if isinstance(c, LineCollection)]
