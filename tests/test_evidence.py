"""Cells: like evidence shares one, other evidence has another."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from graft.evidence import VOICES, Cells

CPU = torch.device("cpu")


def test_contexts_have_rows_of_their_own() -> None:
    """By order, whether it is the longest found, times seen, share and age."""
    cells = Cells(2, CPU)
    rows: dict[int, set[tuple[object, ...]]] = {}
    for first, second in product(range(5), repeat=2):
        for same in product(range(1, 4), repeat=3):
            seen = torch.tensor([first, second])
            out = cells.of_contexts(torch.tensor([same, same]), seen)
            for order, times in enumerate((first, second)):
                for age in range(3):
                    if not times:
                        continue
                    held = min(times, 3)
                    share = 0 if same[age] == held else 1 if 2 * same[age] >= held else 2
                    longest = order == 0 or first == 0
                    what = (order, longest, held, share, age > 0)
                    rows.setdefault(int(out[order, age]), set()).add(what)
    assert all(len(whats) == 1 for whats in rows.values())
    assert len({what for whats in rows.values() for what in whats}) == len(rows)
    assert min(rows) >= 1
    assert max(rows) < 1 + 2 * 36


def test_the_matrix_has_rows_of_its_own() -> None:
    cells = Cells(3, CPU)
    chances = torch.tensor([[-1.0] * 8, [0.01] * 8, [0.1] * 8, [0.3] * 8, [0.9] * 8])
    for with_context in (False, True):
        flag = torch.full((5,), with_context)
        out = cells.of_matrix(chances, flag)
        assert len(out.unique()) == 5 * 4
        assert int(out.min()) >= 1 + 3 * 36
        assert out[:, 3].tolist() == out[:, 2].tolist()  # ranks that are alike
    both = [cells.of_matrix(chances, torch.full((5,), flag)) for flag in (False, True)]
    assert not set(both[0].flatten().tolist()) & set(both[1].flatten().tolist())
    assert cells.of_matrix(torch.full((12,), 0.5), torch.tensor(False)).shape == (12,)


def test_the_drafter_has_columns() -> None:
    cells = Cells(1, CPU)
    chance = torch.tensor([-1.0, 0.0, 0.02, 0.05, 0.1, 0.3, 0.5, 0.8, 0.99, 1.0])
    columns = [cells.of_drafter(chance, depth).tolist() for depth in (1, 2, 3, 4)]
    assert [c[0] for c in columns] == [0] * 4  # it says nothing
    assert columns[2] == columns[3] != columns[1] != columns[0]
    said = [c for depth in columns[:3] for c in depth[1:9]]
    assert len(set(said)) == 3 * 8
    assert all(c[8] == c[9] for c in columns)


def test_face_values() -> None:
    cells = Cells(2, CPU)
    values = cells.at_face_value()
    always, half = (
        cells.of_contexts(torch.tensor([[same, 1, 1]] * 2), torch.tensor([2, 0]))[0, 0]
        for same in (2, 1)
    )
    none = torch.tensor(0)
    sure = cells.of_drafter(torch.tensor(0.88), 3)
    assert float(values[cells.join(always, none)]) == pytest.approx(0.95)
    assert float(values[cells.join(half, none)]) == pytest.approx(0.6)
    assert float(values[cells.join(none, sure)]) == pytest.approx(0.85)
    assert float(values[cells.join(half, sure)]) == pytest.approx(0.85)
    assert float(values[0]) == 0.0
    matrix = cells.of_matrix(torch.tensor([0.9]), torch.tensor(False))[0]
    assert float(values[cells.join(matrix, none)]) == 0.0


def test_every_cell_says_who_speaks() -> None:
    cells = Cells(2, CPU)
    rows, columns = cells.parts()
    assert torch.equal(cells.join(rows, columns), torch.arange(cells.count))
    context, matrix = 1, 1 + 2 * 36
    wanted = {
        (context, 0): "context",
        (matrix - 1, 0): "context",
        (matrix, 0): "matrix",
        (0, 5): "drafter",
        (context, 5): "drafter+context",
        (matrix, 5): "drafter+matrix",
    }
    for (row, column), voice in wanted.items():
        cell = int(cells.join(torch.tensor(row), torch.tensor(column)))
        assert VOICES[int(cells.voice[cell])] == voice
