"""Learning from a corpus: which rows are written, from which contexts, and what it is good for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from graft import matrix_build
from graft.corpus import Document
from graft.engine import Engine
from graft.matrix import EMPTY, AdjacencyMatrix
from graft.matrix_build import build_matrix
from graft.settings import EngineSettings
from tests.engines import EASY, law_of, tiny_engine
from tests.fakes import BOS_ID, BYTE_VOCAB, CHAT_TEMPLATE, byte_tokenizer, fake_engine

TEXT = "the cat sat on the mat; the rat sat on the cat."
SETTINGS: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 60, "ignore_eos": True}


def rows_of(matrix: AdjacencyMatrix) -> Tensor:
    return matrix.ids[: matrix.token_count]


def cold_engine(**changes: Any) -> Engine:
    """An engine that learns nothing from prompts."""
    return fake_engine(settings=EngineSettings(prompt_learning="off", budget=8), **EASY, **changes)


def watch_windows(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The contexts that the target will see."""
    seen: list[list[int]] = []
    real = engine.target.prefill

    def prefill(slot: int, tokens: Tensor, *arguments: Any, **options: Any) -> Tensor:
        assert engine.target.length(slot) == 0
        seen.append(tokens.tolist())
        return real(slot, tokens, *arguments, **options)

    monkeypatch.setattr(engine.target, "prefill", prefill)
    return seen


# --- what is learnt -----------------------------------------------------------------


def test_each_row_holds_what_the_target_says_at_the_tokens_last_place() -> None:
    engine = fake_engine(**EASY)
    report = build_matrix(engine, [TEXT])
    ids = list(TEXT.encode())
    for token in set(ids):
        last = len(ids) - ids[::-1].index(token)
        best = law_of(engine, ids[:last])[:BYTE_VOCAB].topk(8).indices
        assert rows_of(report.matrix)[token].tolist() == best.tolist()
    assert report.tokens == len(ids)
    assert report.rows == len(set(ids))
    assert int((rows_of(report.matrix)[:, 0] != EMPTY).sum()) == len(set(ids))
    assert report.seconds > 0


@pytest.mark.parametrize("make", [fake_engine, tiny_engine])
def test_the_same_corpus_gives_the_same_matrix(make: Any) -> None:
    texts = [TEXT, TEXT[::-1], "x"]
    first, second = build_matrix(make(), texts), build_matrix(make(), texts)
    assert torch.equal(rows_of(first.matrix), rows_of(second.matrix))
    other = build_matrix(make(), [TEXT[::-1] * 2, "x"])
    assert not torch.equal(rows_of(first.matrix), rows_of(other.matrix))
    first.matrix.check_integrity()


def test_an_engine_learns_the_same_after_other_work() -> None:
    engine = tiny_engine()
    engine.generate("hello", max_new_tokens=8)
    again = build_matrix(engine, [TEXT])
    assert torch.equal(rows_of(again.matrix), rows_of(build_matrix(tiny_engine(), [TEXT]).matrix))


def test_a_given_matrix_learns_on() -> None:
    engine = fake_engine(**EASY)
    halves = [TEXT[:20], TEXT[20:]]
    first = build_matrix(engine, halves[:1])
    second = build_matrix(engine, halves[1:], matrix=first.matrix)
    assert second.matrix is first.matrix
    assert torch.equal(rows_of(second.matrix), rows_of(build_matrix(engine, halves).matrix))
    assert second.rows == len(set(TEXT))


def test_k_is_the_engines_or_the_matrixs() -> None:
    engine = fake_engine(settings=EngineSettings(k=3))
    assert build_matrix(engine, [TEXT]).matrix.k == 3
    wide = AdjacencyMatrix(BYTE_VOCAB, 5, torch.device("cpu"))
    assert (
        int((rows_of(build_matrix(engine, [TEXT], matrix=wide).matrix)[ord("t")] >= 0).sum()) == 5
    )


# --- what it is good for ------------------------------------------------------------


PROMPT = "Once upon a time"
SEEDS = range(3)
DRAWN: dict[str, Any] = {**SETTINGS, "temperature": 0.5, "raw": True}


def tau(engine: Engine, matrices: list[AdjacencyMatrix]) -> float:
    """Mean tau of the answers to a prompt, each from the rows of one matrix; none: cold."""
    found: list[float] = []
    for seed in SEEDS:
        engine.matrix.clear()
        if matrices:
            engine.matrix.ids[: engine.token_count] = rows_of(matrices[seed])
        stats = engine.generate(PROMPT, seed=seed, **DRAWN).stats
        assert stats.tau is not None
        found.append(stats.tau)
    return sum(found) / len(found)


def test_a_matrix_of_a_text_raises_tau_on_it() -> None:
    engine = cold_engine()
    texts = [PROMPT + engine.generate(PROMPT, seed=seed, **DRAWN).text for seed in SEEDS]
    own = [build_matrix(engine, [text]).matrix for text in texts]
    # Control: learnt in the same way from a text of the characters that the answer has none of.
    rest = ["".join(chr(c) for c in range(33, 127) if chr(c) not in text) for text in texts]
    others = [build_matrix(engine, [text]).matrix for text in rest]
    cold, warm = tau(engine, []), tau(engine, own)
    assert warm > 1.4 * cold
    assert tau(engine, others) < 1.05 * cold
    # Control: the rows of the right matrix, each under another token.
    for matrix in own:
        held = (rows_of(matrix)[:, 0] != EMPTY).nonzero()[:, 0]
        rows_of(matrix)[held] = rows_of(matrix)[held.roll(1)]
    assert tau(engine, own) < 0.85 * warm


# --- windows ------------------------------------------------------------------------


def test_texts_are_cut_into_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_build, "WINDOW", 20)
    engine = fake_engine()
    seen = watch_windows(engine, monkeypatch)
    progress: list[int] = []
    report = build_matrix(engine, [TEXT, "", "xy"], on_progress=progress.append)
    ids = list(TEXT.encode())
    assert seen == [ids[:20], ids[20:40], ids[40:], list(b"xy")]
    assert progress == [20, 40, len(ids), len(ids) + 2]
    assert report.tokens == len(ids) + 2


def test_windows_fit_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine(max_context=7)
    seen = watch_windows(engine, monkeypatch)
    build_matrix(engine, [TEXT])
    assert max(map(len, seen)) == 7
    assert [token for window in seen for token in window] == list(TEXT.encode())


def test_each_window_begins_as_the_text_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first token that the tokenizer sets stands before every window."""
    engine = fake_engine(max_context=7)
    seen = watch_windows(engine, monkeypatch)
    build_matrix(engine, ["<bos>abcdefghij"])
    assert seen == [[BOS_ID, *b"abcdef"], [BOS_ID, *b"ghij"]]


@pytest.mark.parametrize("limit", [1, 7, 10, 12])
def test_the_limit_is_kept_and_nothing_is_read_beyond(limit: int) -> None:
    taken: list[str] = []

    def texts() -> Iterator[str]:
        for text in ("abcde", "fghij", "klmno", "pqrst"):
            taken.append(text)
            yield text

    report = build_matrix(fake_engine(), texts(), limit_tokens=limit)
    assert report.tokens == limit
    assert report.rows == limit
    assert len(taken) == -(-limit // 5)


def test_no_text_is_nothing_learnt() -> None:
    report = build_matrix(fake_engine(), [])
    assert (report.tokens, report.rows) == (0, 0)


# --- chat messages ------------------------------------------------------------------

QUESTION = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Yes"}


def test_messages_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine(tokenizer=byte_tokenizer(CHAT_TEMPLATE))
    seen = watch_windows(engine, monkeypatch)
    build_matrix(engine, [Document((QUESTION, ANSWER), "1"), Document((QUESTION,), "2"), "Hi"])
    texts = [bytes(ids).decode() for ids in seen]
    assert texts == ["<user>Hi\n<assistant>Yes\n", "<user>Hi\n<assistant>", "Hi"]


@pytest.mark.parametrize(
    ("template", "word"), [(None, "no chat template"), ("{{ 1 / 0 }}", "does not take")]
)
def test_messages_that_cannot_be_rendered(template: str | None, word: str) -> None:
    engine = fake_engine(tokenizer=byte_tokenizer(template))
    with pytest.raises(ValueError, match=f"c.jsonl, line 7.*{word}"):
        build_matrix(engine, [Document((QUESTION,), "c.jsonl, line 7")])


# --- the engine ---------------------------------------------------------------------


@pytest.mark.parametrize("make", [fake_engine, tiny_engine])
def test_the_engine_is_as_before(make: Any) -> None:
    engine, fresh = make(), make()
    before = engine.matrix.ids.clone()
    build_matrix(engine, [TEXT * 3])
    assert torch.equal(engine.matrix.ids, before)
    options = {**SETTINGS, "raw": True}
    assert engine.generate(TEXT, **options).token_ids == fresh.generate(TEXT, **options).token_ids


@pytest.mark.parametrize("make", [fake_engine, tiny_engine])
def test_a_next_turn_does_not_build_on_the_corpus(make: Any) -> None:
    """What the cache held of the last request is gone, and the engine knows."""
    engine, fresh = make(), make()
    first = engine.generate(TEXT[:30], raw=True, **SETTINGS)
    build_matrix(engine, ["something else entirely, and long enough to fill the cache " * 2])
    prompt = [*TEXT[:30].encode(), *first.token_ids[:20], *b" more"]
    stream = engine.stream(prompt, reuse_prefix=True, **SETTINGS)
    assert [t.token_id for t in stream] == fresh.generate(prompt, **SETTINGS).token_ids


def test_a_busy_engine_is_refused_and_left_alone() -> None:
    engine = fake_engine(**EASY)
    expected = engine.generate(TEXT, **SETTINGS).token_ids
    stream = engine.stream(TEXT, **SETTINGS)
    next(stream)
    with pytest.raises(RuntimeError, match="middle of another generation"):
        build_matrix(engine, [TEXT])
    for _ in stream:
        pass
    assert stream.results[0].token_ids == expected


def test_an_engine_is_free_after_a_failure() -> None:
    engine = fake_engine()

    def texts() -> Iterator[str]:
        yield TEXT
        with pytest.raises(RuntimeError, match="middle of another"):
            engine.generate(TEXT, **SETTINGS)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_matrix(engine, texts())
    assert len(engine.generate(TEXT, **SETTINGS).token_ids) == 60


# --- mistakes -----------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit_tokens={limit}: an integer from 1"):
        build_matrix(fake_engine(), [TEXT], limit_tokens=limit)


def test_ids_that_the_model_does_not_have_are_refused() -> None:
    engine = fake_engine(vocab_size=100)
    with pytest.raises(ValueError, match="text 2 has the token id 116, but fake has ids 0 to 99"):
        build_matrix(engine, ["ABC", "the"])


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(ValueError, match="text 1: not valid Unicode"):
        build_matrix(fake_engine(), ["\ud800"])
