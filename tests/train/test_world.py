"""Two processes take the steps of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graft.train.world import World, join_world

_PROGRAM = """
import json, sys
from pathlib import Path
import torch
from graft.train.world import join_world
from tests.train.making import mixed
from tests.train.test_trainer import make_trainer
torch.set_num_threads(1)
with join_world() as world:
    trainer = make_trainer(Path(sys.argv[1]), mixed())
    trainer._world = world
    records = [[r.step, r.tokens, r.loss, r.norm, *r.accuracy] for r in trainer.run()]
    trainer.save()
    total = sum(float(w.double().abs().sum()) for w in trainer.weights.values())
    Path(sys.argv[1], f"out-{world.rank}.json").write_text(json.dumps([records, total]))
"""


def run(folder: Path, size: int) -> list[Any]:
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    environment |= {"MASTER_PORT": str(20000 + os.getpid() % 20000), "WORLD_SIZE": str(size)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(folder)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=Path(__file__).parents[2],
        )
        for rank in range(size)
    ]
    assert [process.wait(120) for process in started] == [0] * size
    return [json.loads((folder / f"out-{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    (alone,) = run(tmp_path / "one", 1)
    first, second = run(tmp_path / "two", 2)
    assert first == second
    for found, expected in zip(first[0], alone[0], strict=True):
        assert found == pytest.approx(expected, rel=1e-3, abs=0.02)
    assert first[1] == pytest.approx(alone[1], rel=1e-4)
    assert len(list((tmp_path / "two").glob("step-*"))) == 1


def test_groups_of_a_step_are_shared_out() -> None:
    assert [World(rank, 3).share([7, 8, 9, 10]) for rank in range(3)] == [[7, 10], [8], [9]]


def test_alone_nothing_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join_world() as world:
        assert (world.rank, world.size, world.leads) == (0, 1, True)
