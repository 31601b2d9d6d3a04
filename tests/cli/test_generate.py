"""`graft generate`: what goes to stdout, and that every option arrives."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from graft import models
from graft.cli import app
from graft.cli import options as o
from graft.drafters.eagle3.save import FORMATS
from graft.engine import Engine
from graft.grafting import Dedup
from graft.sampling_params import SamplingParams
from graft.settings import EngineSettings, MatrixScope, Policy, PromptLearning
from tests.cli.helpers import ESCAPES, Command, speaking

SOURCES = {"target", "draft", "retrieved"}


def test_json_holds_the_whole_result(run: Command, model: str) -> None:
    ran = run("generate", "hello", "-m", model, "-n", "12", "--json", "--logprobs", "2")
    result = json.loads(ran.out)
    assert ran.code == 0
    assert ran.out.count("\n") == 1
    assert set(result) == {
        *("text", "token_ids", "finish_reason", "stop_reason", "model", "seed", "logprobs"),
        *("sources", "usage", "stats"),
    }
    count = len(result["token_ids"])
    assert result["usage"] == {"prompt_tokens": len("<user>hello"), "completion_tokens": count}
    assert result["model"] == "tiny"
    assert result["finish_reason"] == "length"
    assert len(result["sources"]) == len(result["logprobs"]) == count == 12
    assert set(result["sources"]) <= SOURCES
    assert result["stats"]["tau"] >= 1
    assert result["stats"]["rounds"] >= 1
    first = result["logprobs"][0]
    assert first["token_id"] == result["token_ids"][0]
    assert first["top"][0]["logprob"] == first["logprob"]  # greedy: the best was chosen
    assert len(first["top"]) == 2


def test_json_leaves_out_logprobs_nobody_asked_for(run: Command, model: str) -> None:
    assert "logprobs" not in json.loads(run("generate", "x", "-m", model, "-n", "2", "--json").out)


@pytest.mark.parametrize("policy", ["plain", "retrieval"])
def test_a_pipe_gets_exactly_the_answer(run: Command, model: str, policy: str) -> None:
    options = ("hello", "-m", model, "-n", "40", "--policy", policy)
    text = json.loads(run("generate", *options, "--json").out)["text"]
    ran = run("generate", *options)
    assert ran.out == text + "\n"
    assert "tau " in ran.err
    assert "40 tokens" in ran.err


def test_a_pipe_gets_control_characters_as_they_are(
    run: Command, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "stream", speaking(ESCAPES))
    assert run("generate", "x", "-m", model, "-n", "2").out == ESCAPES + "\n"


def test_quiet_says_nothing_but_the_answer(run: Command, model: str) -> None:
    assert run("generate", "hello", "-m", model, "-n", "3", "--quiet").err == ""


def test_policies_and_budgets_give_the_same_answer(run: Command, model: str) -> None:
    start = ("generate", "hello", "-m", model, "-n", "30", "-t", "0.9", "--seed", "5")
    plain = run(*start, "--policy", "plain").out
    assert run(*start, "--budget", "7", "--prompt-learning", "logits").out == plain
    assert run(*start, "--seed", "6").out != plain


def test_argument_file_and_stdin_are_the_same_prompt(
    run: Command, model: str, tmp_path: Path
) -> None:
    (tmp_path / "prompt").write_bytes("\ufeffgrüße\n".encode())
    end = ("-m", model, "-n", "8")
    argument = run("generate", "grüße", *end).out
    assert run("generate", "--file", str(tmp_path / "prompt"), *end).out == argument
    assert run("generate", *end, stdin="grüße\r\n".encode()).out == argument
    assert run("generate", "-", *end, stdin="grüße".encode()).out == argument
    assert run("generate", "gruss", *end).out != argument


def test_only_one_line_end_is_taken_off(run: Command, model: str) -> None:
    options = ("generate", "--raw", "--json", "-m", model, "-n", "1")
    ran = run(*options, stdin=b"ab\n\n")
    assert json.loads(ran.out)["usage"]["prompt_tokens"] == len("ab\n")


def test_every_setting_of_sampling_arrives(
    run: Command, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SamplingParams] = []
    real = Engine.stream

    def spy(self: Engine, prompt: Any, params: SamplingParams, **options: Any) -> Any:
        seen.append(params)
        return real(self, prompt, params, **options)

    monkeypatch.setattr(Engine, "stream", spy)
    given = """--temperature 0.5 --top-k 9 --top-p 0.8 --min-p 0.01 --repetition-penalty 1.1
        --presence-penalty 0.2 --frequency-penalty 0.3 --no-repeat-ngram-size 3 --seed 4
        --max-new-tokens 5 --min-new-tokens 2 --ignore-eos --logprobs 1 --stop aa --stop bb
        --stop-token-id 7 --logit-bias 3=1.5 --logit-bias 4=-2 --banned-token 8 --json"""
    assert run("generate", "x", "-m", model, *given.split()).code == 0
    expected = SamplingParams(
        temperature=0.5,
        top_k=9,
        top_p=0.8,
        min_p=0.01,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        no_repeat_ngram_size=3,
        seed=4,
        max_new_tokens=5,
        min_new_tokens=2,
        ignore_eos=True,
        logprobs=1,
        stop=("aa", "bb"),
        stop_token_ids=(7,),
        logit_bias={3: 1.5, 4: -2.0},
        banned_tokens=(8,),
    )
    assert seen == [expected]
    default = SamplingParams()
    unset = {
        f.name for f in fields(default) if getattr(expected, f.name) == getattr(default, f.name)
    }
    assert unset == {"logits_processors"}  # a new setting needs an option, and a place above


def test_choices_are_the_librarys() -> None:
    assert set(o.Policy) == set(get_args(Policy))
    assert set(o.PromptLearning) == set(get_args(PromptLearning))
    assert set(o.MatrixScope) == set(get_args(MatrixScope))
    assert set(o.Dedup) == set(get_args(Dedup))
    assert set(o.CpuWeights) == set(models.CPU_WEIGHTS)
    assert set(o.HeadFormat) == set(FORMATS)
    for dtype in (*o.Dtype, *o.SaveDtype):
        models.parse_dtype(str(dtype))


def test_every_setting_of_an_engine_has_an_option_or_a_reason() -> None:
    command = typer.main.get_command(app).commands["generate"]  # type: ignore[attr-defined]
    options = {parameter.name for parameter in command.params}
    assert {f.name for f in fields(EngineSettings)} - options == {
        "max_batch",  # there is one prompt
        "without",  # for graft bench
    }
