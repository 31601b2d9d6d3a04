"""Cells: like evidence shares one, other evidence has another."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from graft.evidence import VOICES, Cells, follower_class

CPU = torch.device("cpu")


_NONE = torch.tensor(0)
_HEADS = 46  # columns of a row: a drafter's, or none


def test_classes_of_followers() -> None:
    """By times seen, share and age."""
    whats: dict[int, set[tuple[object, ...]]] = {}
    for held in product(range(-1, 3), repeat=4):
        tokens = sorted(held, key=lambda token: token < 0)  # what there is not stands behind
        count = sum(token >= 0 for token in tokens)
        for age, kind in enumerate(follower_class(torch.tensor([tokens]))[0].tolist()):
            if tokens[age] < 0:
                continue
            same = tokens.count(tokens[age])
            share = 0 if same == count else 1 if 2 * same >= count else 2
            whats.setdefault(kind, set()).add((min(count, 3), share, age > 0))
    assert all(len(what) == 1 for what in whats.values())
    assert len({w for what in whats.values() for w in what}) == len(whats)
    assert max(whats) < 18


def test_contexts_have_rows_of_their_own() -> None:
    """By order, whether it is the longest found, and class."""
    cells = Cells(3, CPU)
    rows: dict[int, set[tuple[object, ...]]] = {}
    classes = torch.arange(18).expand(3, 18)
    for found in product((False, True), repeat=3):
        out = cells.of_contexts(classes, torch.tensor(found))
        assert bool((out % _HEADS == 0).all())
        for order, kind in product(range(3), range(18)):
            if found[order]:
                what = (order, not any(found[:order]), kind)
                rows.setdefault(int(out[order, kind]) // _HEADS, set()).add(what)
    assert all(len(whats) == 1 for whats in rows.values())
    assert len({what for whats in rows.values() for what in whats}) == len(rows)
    assert min(rows) >= 1
    assert max(rows) < 1 + 3 * 36


def test_the_matrix_has_rows_of_its_own() -> None:
    cells = Cells(3, CPU)
    chances = torch.tensor([[-1.0] * 8, [0.01] * 8, [0.1] * 8, [0.3] * 8, [0.9] * 8])
    for with_context in (False, True):
        flag = torch.full((5,), with_context)
        out = cells.of_matrix(chances, flag)
        assert len(out.unique()) == 5 * 4
        assert bool((out % _HEADS == 0).all())
        assert int(out.min()) // _HEADS >= 1 + 3 * 36
        assert out[:, 3].tolist() == out[:, 2].tolist()  # ranks that are alike
    both = [cells.of_matrix(chances, torch.full((5,), flag)) for flag in (False, True)]
    assert not set(both[0].flatten().tolist()) & set(both[1].flatten().tolist())
    assert cells.of_matrix(torch.full((12,), 0.5), torch.tensor(False)).shape == (12,)


def test_the_drafter_has_columns() -> None:
    cells = Cells(1, CPU)
    chance = torch.tensor([-1.0, 0.0, 0.02, 0.05, 0.1, 0.3, 0.5, 0.8, 0.99, 1.0])
    columns = [cells.of_drafter(chance, torch.tensor(depth)).tolist() for depth in (1, 2, 3, 4)]
    assert [c[0] for c in columns] == [0] * 4  # it says nothing
    assert columns[2] == columns[3] != columns[1] != columns[0]
    said = [c for depth in columns[:3] for c in depth[1:9]]
    assert len(set(said)) == 3 * 8
    assert all(c[8] == c[9] for c in columns)


def test_face_values() -> None:
    cells = Cells(2, CPU)
    values = cells.at_face_value()
    found = torch.tensor([True, False])
    always, half = (
        cells.of_contexts(follower_class(torch.tensor([followers] * 2)), found)[0, 0]
        for followers in ([5, 5, -1], [5, 7, -1])
    )
    none = _NONE
    sure = cells.of_drafter(torch.tensor(0.88), torch.tensor(3))
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
    assert torch.equal(cells.join(rows * _HEADS, columns), torch.arange(cells.count))
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
        cell = int(cells.join(torch.tensor(row * _HEADS), torch.tensor(column)))
        assert VOICES[int(cells.voice[cell])] == voice
