"""The built wheel, installed into an empty environment, does the main job."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=clean | env, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, cwd=ROOT)
    return next(out.glob("graft_decoding-*.whl"))


@pytest.mark.slow
def test_wheel_holds_the_package_and_its_data_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "graft/data/template.json" in names
    assert "graft/data/trace.html" in names
    assert "graft/py.typed" in names
    head = "graft/data/heads/smollm2-135m/"
    assert {head + "config.json", head + "README.md"} < set(names)
    assert zipfile.ZipFile(wheel).getinfo(head + "model.safetensors").file_size < 40e6
    assert all(name.startswith(("graft/", "graft_decoding-")) for name in names)


@pytest.mark.slow
def test_wheel_in_an_empty_environment_runs_the_demo(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pins = ROOT / "constraints.txt"
    run(python, "-m", "pip", "install", "--quiet", "-c", pins, wheel, cwd=tmp_path)
    graft = python.with_name("graft")
    # No model is there yet: the demo fetches and converts it, then shows the main job.
    out = run(graft, "demo", cwd=tmp_path, GRAFT_CACHE=str(tmp_path / "cache"))
    assert "same tokens: yes" in out
