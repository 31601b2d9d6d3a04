"""llama.cpp from outside: what it is asked, what is counted, and which file it reads."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

from graft import smollm2
from graft.bench import llama
from graft.bench.llama import LlamaCpp, find_gguf, told
from graft.bench.outside import Asked
from graft.bench.report import report
from graft.bench.session import BenchSettings, opened
from tests.bench.factory import make_plain, make_results
from tests.drafter_folders import write_drafters

EOS = 9


class _Llama:
    """Stands for the package's class: counts up from the last token of the prompt."""

    made: list[dict[str, Any]]
    asked: list[tuple[list[int], dict[str, Any]]]
    resets: int

    def __init__(self, **options: Any) -> None:
        type(self).made.append(options)

    def reset(self) -> None:
        type(self).resets += 1

    def set_seed(self, seed: int) -> None:
        pass

    def generate(self, tokens: Sequence[int], **options: Any) -> Iterator[int]:
        type(self).asked.append((list(tokens), options))
        token = tokens[-1]
        while True:
            token += 1
            yield token


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> type[_Llama]:
    _Llama.made, _Llama.asked, _Llama.resets = [], [], 0
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=_Llama))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return _Llama


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("a", np.zeros((8, 32), dtype=np.float16))
    writer.add_tensor("b", np.zeros(128, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def ask(made: LlamaCpp, prompt: Sequence[int], **changes: Any) -> Any:
    options: dict[str, Any] = {"max_new_tokens": 4, "temperature": 0.0}
    own: dict[str, Any] = {"lookup": 0, "eos_token_ids": (EOS,), "seed": 3}
    return made.generate(Asked(prompt, **{**own, **options, **changes}))


class TestLlamaCpp:
    def test_an_answer_ends_at_its_length_or_at_the_end_token(
        self, package: type[_Llama], file: Path
    ) -> None:
        made = LlamaCpp(file, threads=2, context=300)
        (options,) = package.made
        assert (options["n_ctx"], options["n_threads"]) == (512, 2)
        found = ask(made, [1, 2])
        assert (found.token_ids, found.finish_reason, found.rounds) == ([3, 4, 5, 6], "length", 3)
        assert found.tau == 1.0
        found = ask(made, [6, 7])
        assert (found.token_ids, found.finish_reason) == ([8, EOS], "stop")
        assert 0 <= found.time_to_first_token <= found.latency_seconds

    def test_every_answer_starts_anew_and_draws_from_the_whole_law(
        self, package: type[_Llama], file: Path
    ) -> None:
        made = LlamaCpp(file, threads=1, context=64)
        for _ in range(2):
            ask(made, [1], temperature=0.7)
        assert package.resets == 2
        (_, options), _ = package.asked
        assert options == {
            "temp": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0
        }  # fmt: skip


class TestFile:
    def test_the_one_given_or_the_model_itself_or_the_default_models(
        self, package: type[_Llama], file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert find_gguf("folder", str(file)) == file
        assert find_gguf(str(file), None) == file
        monkeypatch.setattr(smollm2, "installed_gguf", pytest.fail)
        monkeypatch.setattr(llama, "installed_gguf", lambda: file)
        assert find_gguf(smollm2.ALIAS, None) == file
        monkeypatch.setattr(llama, "installed_gguf", lambda: None)
        for model in (smollm2.ALIAS, "folder"):
            with pytest.raises(ValueError, match=f"none is known for {model}.*--gguf"):
                find_gguf(model, None)

    def test_mistakes(self, package: type[_Llama], tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="is no file"):
            find_gguf("folder", str(tmp_path / "absent.gguf"))
        (other := tmp_path / "other.gguf").write_bytes(b"PK and so on")
        with pytest.raises(ValueError, match="is no GGUF file"):
            find_gguf("folder", str(other))

    def test_without_the_package(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ValueError, match="pip install llama-cpp-python"):
            find_gguf("folder", str(file))

    def test_bytes_per_weight(self, file: Path) -> None:
        size = (8 * 32 * 2 + 128 * 4) / (8 * 32 + 128)
        assert told(file) == {"file": "model.gguf", "bytes per weight": round(size, 2)}


def test_a_run_asks_it_and_compares_its_answers_with_nothing(
    package: type[_Llama], file: Path, tmp_path: Path
) -> None:
    folders = write_drafters(tmp_path / "drafters", max_position_embeddings=256)
    (suite := tmp_path / "suite.txt").write_text("hello hello\none and two\n")
    chosen = BenchSettings(
        suites=(suite,),
        methods=("plain", llama.METHOD),
        max_new_tokens=6,
        model={"model": folders.target},
        gguf=str(file),
    )
    with opened(chosen, tmp_path / "run") as found:
        lines = [line for group in found.runner.run() for line in group]
    theirs = [line for line in lines if line.method == llama.METHOD]
    assert (len(theirs), len(package.made)) == (2, 1)
    assert all(line.difference is None and not line.excused for line in theirs)
    assert all(line.completion_tokens == 6 for line in theirs)


def test_the_file_without_the_method_is_a_mistake(tmp_path: Path, file: Path) -> None:
    chosen = BenchSettings(methods=("plain",), model={"model": "folder"}, gguf=str(file))
    with pytest.raises(ValueError, match="name that among the methods"), opened(chosen, tmp_path):
        pass


def test_a_report_names_its_weights() -> None:
    found = [make_plain(method=name) for name in ("plain", llama.METHOD)]
    weights = {"file": "m.Q4_1.gguf", "bytes per weight": 0.66}
    text = report(make_results(found, settings={llama.METHOD: weights}))
    line = "runs other weights, so its answers are others: file m.Q4_1.gguf, bytes per weight 0.66"
    assert line in text
    equality = text.split("## The same tokens")[1].split("\n## ")[0]
    assert llama.METHOD not in equality
