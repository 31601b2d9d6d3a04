"""The script for GPUs runs to its end where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graft import loader
from graft.bench import gpu
from tests.drafter_folders import write_drafters


@pytest.fixture
def more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(loader, "self_test", lambda engine: None)
    monkeypatch.setattr(gpu, "CONTEXT", 16)
    folders = write_drafters(tmp_path, max_position_embeddings=512)
    return {"model": {"model": folders.target}, "heads": (folders.specforge,)}


def test_all_sections(more: dict[str, Any]) -> None:
    found = json.loads(json.dumps(gpu.run("cpu", gpu.LITTLE, 5.0, **more)))
    assert found["skipped"] == []
    assert found["exactness"]["different"] == []
    assert found["exactness"]["answers"] > len(gpu.METHODS)
    assert {case["policy"] for case in found["policies"]} == set(gpu.METHODS) - {"plain"}
    assert all(case["speedup"] > 0 and case["tau"] >= 1 for case in found["policies"])
    own, random = found["rows"]
    assert len(own["rows"]) == len(own["verify"]) > 4
    assert random["rows"] == list(gpu.ROWS)
    assert min(random["verify"]) > 0


def test_what_there_is_no_time_for_is_named(more: dict[str, Any]) -> None:
    found = gpu.run("cpu", gpu.LITTLE, -1.0, **more)
    assert found["skipped"] == ["exactness", "policies", "rows", "memory"]


def test_one_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {"exactness": {"different": []}}
    monkeypatch.setattr(gpu, "run", lambda device, size, minutes: found)
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path / "a.json")]) == 0
    assert json.loads((tmp_path / "a.json").read_text()) == found
    found["exactness"]["different"] = [["chat", 3]]
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path / "b.json")]) == 1
