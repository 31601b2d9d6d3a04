"""`graft demo` and `graft models`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from graft import model_list
from graft.cli.demo import _measure
from graft.engine import Engine
from graft.sampling_params import SamplingParams
from tests.cli.helpers import Command, on_terminal
from tests.exactness.drafting import engine

SOURCES = {"target", "draft", "retrieved"}


def test_demo_says_same_tokens_yes(run: Command, model: str) -> None:
    ran = run("demo", "-m", model, "-n", "24", "--prompt", "hello")
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert lines[-1] == "same tokens: yes"
    for word in ("tau ", "with Graft ", "plain ", "speed ratio "):
        assert any(line.startswith(word) for line in lines)


def test_demo_says_same_tokens_no(
    run: Command, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Engine.generate

    def wrong(self: Engine, *arguments: Any, **options: Any) -> Any:
        result = real(self, *arguments, **options)
        if options.get("policy") == "graft+":
            result = replace(result, token_ids=[*result.token_ids[:5], 0, *result.token_ids[6:]])
        return result

    monkeypatch.setattr(Engine, "generate", wrong)
    ran = run("demo", "-m", model, "-n", "12", "--prompt", "hello")
    lines = ran.out.splitlines()
    assert ran.code == 1
    assert "same tokens: NO" in lines
    assert "same tokens: yes" not in lines
    assert lines[-1].startswith("first difference at token 5: the two best logits are ")
    assert "no near-tie" in lines[-1]


def test_demo_measures_from_an_empty_matrix(
    run: Command, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[str, bool]] = []
    real = Engine.generate

    def spy(self: Engine, *arguments: Any, **options: Any) -> Any:
        runs.append((options["policy"], bool((self.matrix.ids[:-1] < 0).all())))
        return real(self, *arguments, **options)

    monkeypatch.setattr(Engine, "generate", spy)
    run("demo", "-m", model, "-n", "8", "--prompt", "hello")
    assert [policy for policy, _ in runs[2:]] == ["plain", "graft+", "graft+", "plain"]
    assert all(empty for policy, empty in runs[2:])


def test_models_lists_the_default(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_list, "_hub_models", lambda: [])
    (entry,) = json.loads(run("models", "--json").out)
    assert entry["alias"] == "smollm2-135m"
    assert isinstance(entry["ready"], bool)
    (line,) = run("models").out.splitlines()
    assert line.split("\t")[0] == "smollm2-135m"
    out = on_terminal(monkeypatch)
    assert run("models").code == 0
    assert "smollm2-135m" in out.getvalue()


def test_runs_are_measured_as_if_nothing_had_been_learnt() -> None:
    """Contexts and estimates flatter as much as a matrix does."""
    params = SamplingParams(max_new_tokens=40, ignore_eos=True)
    prompt = "one and two and three and "
    fresh = engine(policy="graft+").generate(prompt, params)
    graft, plain = _measure(engine(policy="graft+"), prompt, params, quiet=True)
    assert [run.stats.rounds for run in graft] == [fresh.stats.rounds] * 2
    again = engine(policy="graft+")
    again.generate(prompt, params)
    taught = again.generate(prompt, params)
    assert taught.stats.rounds < fresh.stats.rounds  # the check can see it
    assert {tuple(run.token_ids) for run in (*graft, *plain)} == {tuple(fresh.token_ids)}
