"""The floor: what must be read and done, and the table that says so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from graft.bench.floor import Machine, Work, floor_table, lines_of, measure_machine, work_of
from graft.costs import Costs
from graft.linear import pack_linears
from tests.tiny_models import tiny_model


def test_work_is_that_of_the_linears() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.Embedding(90, 8), nn.ModuleList([nn.Linear(6, 2)]))
    assert work_of(model) == Work(4 * (48 + 12), 2 * (48 + 12))
    assert work_of(model[0], model[2]) == work_of(model)


def test_packed_weights_are_half_as_many_bytes() -> None:
    model = tiny_model("llama")
    whole = work_of(model)
    report = pack_linears(model, "fp16")
    packed = work_of(model)
    assert packed.per_row == whole.per_row
    assert packed.bytes == (whole.bytes // 2 if report.packed else whole.bytes)


def test_the_floor_is_what_takes_longer() -> None:
    work, machine = Work(1000, 10), Machine(bandwidth=100.0, rate=2.0)
    assert work.floor(1, machine) == 10.0  # reading
    assert work.floor(4, machine) == 20.0  # computing


def test_a_machine_is_measured() -> None:
    found = measure_machine(tiny_model("llama"), torch.device("cpu"))
    assert found.bandwidth > 1e8
    assert found.rate > 1e8


@pytest.mark.parametrize("head", [None, Work(500, 8)])
def test_the_table_has_a_line_for_every_forward(head: Work | None) -> None:
    costs = Costs((1, 4), (12.0, 30.0), step=7.0)
    text = floor_table(lines_of(costs, Work(1000, 10), head, 2), Machine(100.0, 2.0))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[4:]]
    assert [row[0] for row in rows] == ["plain step", "verify 4 rows", "head step"][: len(rows)]
    assert len(rows) == (2 if head is None else 3)
    assert float(rows[0][-1]) == pytest.approx(1.2)
    assert float(rows[1][-1]) == pytest.approx(1.5)
    if head is not None:
        assert float(rows[2][-1]) == pytest.approx(7 / 8, abs=0.01)
