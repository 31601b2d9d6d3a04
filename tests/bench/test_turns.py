"""Turns and verdicts: what later turns follow on, and what is told of answers that differ."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from graft import exactness
from graft.bench import runner as module
from graft.bench.answers import of_result
from graft.bench.conversation import turn_ids
from graft.bench.item import Item
from graft.bench.measurement import Measurement
from graft.bench.outside import generate
from tests.bench import running
from tests.bench.running import ITEMS, LENGTH, engines, lines_of, opened, plan, run, spoil, watched
from tests.fakes import CHAT_TEMPLATE, byte_tokenizer


class TestConversations:
    def test_all_see_what_plain_has_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spoil(monkeypatch, "retrieval")  # what others say does not matter
        calls = watched(monkeypatch)
        item = ITEMS[2]
        what = plan("retrieval,plain,graft", [item], temperatures=(0.8, 0.0))
        found = run(tmp_path, what)
        plain = next(m for m in found if m.method == "plain" and m.turn == 0)
        assert plain.temperature == 0.8
        tokenizer = engines()[None].tokenizer
        said = str(tokenizer.decode(plain.token_ids, skip_special_tokens=True))
        wanted = turn_ids(item, [said], tokenizer)
        second = [prompts for _, _, prompts, size, _ in calls if size == LENGTH][6:]
        assert second == [[wanted]] * 6
        assert {m.prompt_tokens for m in found if m.turn == 1} == {len(wanted)}

    def test_without_plain_the_first_case_speaks(self, tmp_path: Path) -> None:
        found = run(tmp_path / "a", plan("retrieval,graft", [ITEMS[2]]))
        other = run(tmp_path / "b", plan("plain", [ITEMS[2]]))
        assert {m.prompt_tokens for m in found} == {m.prompt_tokens for m in other}
        assert [m.difference for m in found] == [None] * 4

    def test_in_a_batch_short_ones_drop_out(self, tmp_path: Path) -> None:
        found = run(tmp_path / "a", plan("plain,retrieval", batches=(3,)))
        alone = run(tmp_path / "b", plan("plain"))
        assert Counter((m.id, m.turn) for m in found if m.task == "maths") == dict.fromkeys(
            [("0", 0), ("1", 0), ("1", 1), ("2", 0)], 2
        )
        said = {m.key[:3]: m.token_ids for m in alone}
        assert all(m.token_ids == said[m.key[:3]] for m in found)

    def test_one_that_outgrows_the_model_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = engines()
        monkeypatch.setattr(made[None].target, "max_context", 32)
        named = pytest.raises(ValueError, match="turn 2 of prompt '1' of task maths has")
        with named, opened(tmp_path, plan("plain", [ITEMS[2]]), made) as runner:
            list(runner.run())
        assert lines_of(tmp_path) == []  # a group is written whole

    def test_an_answer_ends_with_the_room(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Transformers' too, which would go on behind it."""
        made = engines()
        monkeypatch.setattr(made[None].target, "max_context", 22)
        found = run(tmp_path, plan("plain,retrieval,hf", ITEMS[:1]), made)
        assert [m.completion_tokens for m in found] == [22 - found[0].prompt_tokens] * 3
        assert [m.difference for m in found] == [None] * 3


class TestJudging:
    def test_a_method_that_changes_tokens_is_found(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spoil(monkeypatch, "retrieval")
        what = plan("plain,lookup,retrieval", temperatures=(0.0, 0.8), batches=(1, 2))
        found = run(tmp_path, what)
        for m in found:
            assert m.difference == (3 if m.method == "retrieval" else None)
            assert m.excused == 0

    def test_a_near_tie_is_excused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spoil(monkeypatch, "retrieval")
        wide = {kind: p._replace(margin=1e9) for kind, p in exactness.PRECISIONS.items()}
        monkeypatch.setattr(exactness, "PRECISIONS", wide)
        found = run(tmp_path, plan("plain,lookup,retrieval"))
        for m in found:
            assert m.difference is None
            assert m.excused == (m.method == "retrieval")

    def test_an_answer_that_ends_early_is_no_near_tie(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = of_result

        def cut(identity: dict[str, object], result: object) -> Measurement:
            if identity["method"] == "retrieval":
                result.token_ids.pop()  # type: ignore[attr-defined]
            return real(identity, result)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "of_result", cut)
        found = run(tmp_path, plan("plain,retrieval", ITEMS[:1]))
        assert {m.method: m.difference for m in found} == {"plain": None, "retrieval": LENGTH - 1}

    def test_plain_is_that_of_the_same_setting(self, tmp_path: Path) -> None:
        found = run(tmp_path, plan("plain", temperatures=(0.0, 0.8), batches=(1, 2)))
        said = {(m.temperature, m.batch, m.key[:3]): m.token_ids for m in found}
        where = ("maths", "2", 0)  # the first row of a second batch
        assert said[0.8, 1, where] == said[0.8, 2, where]
        # The noise of the second row is another one.
        other = ("maths", "1", 0)
        assert said[0.8, 1, other] != said[0.8, 2, other]
        assert [m.difference for m in found] == [None] * len(found)

    def test_transformers_is_compared_when_greedy_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = generate

        def wrong(*args: object, **options: object) -> object:
            found = real(*args, **options)  # type: ignore[arg-type]
            found.token_ids[2] = (found.token_ids[2] + 1) % 200
            return found

        monkeypatch.setattr(running, "generate", wrong)
        found = run(tmp_path, plan("plain,hf,hf-lookup", ITEMS[:1], temperatures=(0.0, 0.8)))
        told = {(m.method, m.temperature): m.difference for m in found}
        assert told == {
            **dict.fromkeys([("plain", 0.0), ("plain", 0.8), ("hf", 0.8), ("hf-lookup", 0.8)]),
            ("hf", 0.0): 2,
            ("hf-lookup", 0.0): 2,
        }


def test_messages_go_through_the_chat_template() -> None:
    item = Item("t", "0", ("hi", "more"))
    chat, base = byte_tokenizer(CHAT_TEMPLATE), byte_tokenizer()
    spoken = bytes(turn_ids(item, ["ho"], chat)).decode()
    assert spoken == "<user>hi\n<assistant>ho\n<user>more\n<assistant>"
    assert bytes(turn_ids(item, ["ho"], base)).decode() == "hi\n\nho\n\nmore"
    raw = Item("t", "0", ("hi",), raw=True)
    assert bytes(turn_ids(raw, [], chat)).decode() == "hi"
