"""Suites: what files and folders hold, what is chosen of it, and what is said of mistakes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from graft.bench.suite import Item, builtin_suite, prompts_hash, read_suite, select_items
from tests.bench.test_selection import SUITE, words


def lines(path: Path, *objects: Any) -> Path:
    path.write_text("".join(json.dumps(o) + "\n" for o in objects), encoding="utf-8")
    return path


def refused(*paths: Path, **settings: Any) -> str:
    """The one line that reading these paths ends in."""
    with pytest.raises(ValueError, match=r".") as caught:
        read_suite(paths, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Reading


def test_a_line_is_an_item(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "mixed.jsonl",
        {"id": "x/1", "task": "t", "turns": ["a", "b"], "subset": "s", "category": "c",
         "group": "g", "reference": ["r"], "prompt_tokens": 3},
        {"id": 7, "task": "t", "turns": [" a\u2028\n"], "raw": True, "subset": None},
        {"prompt": "p"},
    )  # fmt: skip
    assert read_suite([path]) == [
        Item("t", "x/1", ("a", "b"), False, "s", "c", "g"),
        Item("t", "7", (" a\u2028\n",), raw=True),
        Item("mixed", "3", ("p",)),
    ]


def test_plain_text_has_a_prompt_per_line(tmp_path: Path) -> None:
    path = tmp_path / "plain.TXT"
    path.write_bytes(b'\xef\xbb\xbfone two\r\n\n  \n{"prompt": "as it stands"}\nlast')
    assert read_suite([path]) == [
        Item("plain", "1", ("one two",)),
        Item("plain", "4", ('{"prompt": "as it stands"}',)),
        Item("plain", "5", ("last",)),
    ]


def test_a_byte_order_mark_carriage_returns_and_blank_lines_are_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n {"prompt": "b"}')
    assert [(item.id, item.turns) for item in read_suite([path])] == [("1", ("a",)), ("3", ("b",))]


def test_folders_are_read_by_name_and_paths_as_given(tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    folder.mkdir()
    for name in ("b.jsonl", "a.jsonl", ".hidden.jsonl"):
        lines(folder / name, {"prompt": "x"}, {"prompt": "y"})
    (folder / "README.md").write_text("no suite")
    (folder / "notes.txt").write_text("no suite either")
    (folder / "deeper.jsonl.d").mkdir()
    first = lines(tmp_path / "z.jsonl", {"prompt": "z"})
    found = [(item.task, item.id) for item in read_suite([first, folder])]
    assert found == [("z", "1"), ("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]


def test_tasks_that_are_continued_without_a_template(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "s.jsonl",
        {"task": "lcc", "prompt": "x"},
        {"task": "repobench_p", "prompt": "x"},
        {"task": "lcc", "prompt": "x", "raw": False},
        {"task": "chat", "prompt": "x"},
    )
    assert [item.raw for item in read_suite([path])] == [True, True, False, False]


# Mistakes


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "is not JSON (Expecting property name enclosed in double quotes)"),
        (b"plain", "is not JSON (Expecting value)"),
        (b"[" * 100_000, "is not JSON ("),
        (b'{"prompt": ' + b"1" * 5000 + b"}", "is not JSON ("),
        (b'["a"]', "is not a JSON object"),
        (b"\xff", "is not UTF-8 text (byte 0xff)"),
        (b'{"id": "a"}', "has no turns (fields: id)"),
        (b"{}", "has no turns (fields: none)"),
        (b'{"turns": null}', "has no turns"),
        (b'{"messages": [{"role": "user", "content": "a"}]}', "has no turns (fields: messages)"),
        (b'{"turns": ["a"], "prompt": "a"}', "has both turns and a prompt"),
        (b'{"turns": []}', "there are no turns"),
        (b'{"turns": ["a", " \\n"]}', "turn 2 is empty"),
        (b'{"prompt": ""}', "turn 1 is empty"),
        (b'{"turns": "a"}', '"turns" is not a list of texts'),
        (b'{"turns": ["a", 1]}', '"turns" is not a list of texts'),
        (b'{"prompt": ["a"]}', '"prompt" is not a text'),
        (b'{"prompt": "a", "id": true}', '"id" is not a text'),
        (b'{"prompt": "a", "id": 1.5}', '"id" is not a text'),
        (b'{"prompt": "a", "id": ""}', '"id" is empty'),
        (b'{"prompt": "a", "task": 3}', '"task" is not a text'),
        (b'{"prompt": "a", "task": " "}', '"task" is empty'),
        (b'{"prompt": "a", "raw": 1}', '"raw" is not true or false'),
        (b'{"prompt": "a", "subset": 1}', '"subset" is not a text'),
        (b'{"prompt": "a", "category": []}', '"category" is not a text'),
        (b'{"prompt": "a", "group": {}}', '"group" is not a text'),
        (b'{"prompt": "a\\ud800"}', "not valid Unicode at character 1"),
        (b'{"turns": ["a", "b"], "raw": true}', "without a chat template"),
        (b'{"turns": ["a", "b"], "task": "lcc"}', "without a chat template"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n\n' + line + b'\n{"prompt": "fine"}\n')
    message = refused(path)
    assert message.startswith(f"{path}, line 3")
    assert said in message


def test_wrong_lines_are_found_whatever_is_chosen(tmp_path: Path) -> None:
    path = lines(tmp_path / "s.jsonl", {"task": "a", "prompt": "x"}, {"task": "b"})
    assert "line 2" in refused(path, tasks=["a"], limit=1)


def test_an_id_occurs_once_in_a_task(tmp_path: Path) -> None:
    same = {"id": "1", "task": "t", "prompt": "x"}
    first = lines(tmp_path / "a.jsonl", same, same | {"task": "u"})
    assert len(read_suite([first])) == 2
    second = lines(tmp_path / "b.jsonl", {"prompt": "y"}, same | {"id": 1})
    assert refused(first, second).startswith(
        f"{second}, line 2: id '1' of task t is also that of {first}, line 1;"
    )
    assert "is also that of" in refused(first, first)
    assert "is also that of" in refused(lines(first, same, same))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refused().startswith("no suite: ")
    assert "none.jsonl does not exist" in refused(tmp_path / "none.jsonl")
    (tmp_path / "folder").mkdir()
    assert "holds no .jsonl file" in refused(tmp_path / "folder")
    (tmp_path / "folder" / "f.jsonl").mkdir()
    assert "Is a directory" in refused(tmp_path / "folder")
    other = tmp_path / "s.json"
    other.write_text("{}")
    assert "is a .jsonl or a .txt file" in refused(other)
    for name in ("e.jsonl", "e.txt"):
        empty = tmp_path / name
        empty.write_bytes(b"\n \n")
        assert refused(empty).startswith(f"{empty} holds no prompt")


# Choosing, of which test_selection says the rest


def test_read_suite_passes_every_setting_on(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "s.jsonl", *({"task": i.task, "id": i.id, "turns": i.turns} for i in SUITE)
    )
    settings: list[dict[str, Any]] = [
        {"tasks": ["code"]}, {"limit": 1}, {"max_prompt_tokens": 2, "count": words},
        {"min_prompt_tokens": 3, "count": words}, {"max_turns": 1},
    ]  # fmt: skip
    for setting in settings:
        assert read_suite([path], **setting) == select_items(SUITE, **setting) != SUITE


# The digest


def test_the_digest_is_of_what_is_asked() -> None:
    base = [Item("t", "1", ("a", "b")), Item("t", "2", ("c",))]
    assert prompts_hash(base) == prompts_hash(
        [Item("u", "1", ("a", "b"), category="x"), Item("u", "2", ("c",))]
    )
    assert len(prompts_hash(base)) == 16
    int(prompts_hash(base), 16)
    others = [
        base[::-1],
        base[:1],
        [Item("t", "1", ("ab",)), base[1]],
        [Item("t", "1", ("a",)), Item("t", "2", ("b", "c"))],
        [Item("t", "3", ("a", "b")), base[1]],
        [base[0], Item("t", "2", ("c",), raw=True)],
    ]
    digests = [prompts_hash(items) for items in [base, *others]]
    assert len(set(digests)) == len(digests)


def test_the_digest_stays_what_it_was() -> None:
    # A constant that was computed once: published results name it.
    assert prompts_hash([Item("t", "1", ("\u4e2d", "b"))]) == "fd8aa1c67db75a0a"


# Our own prompts


def test_the_builtin_suite_has_ten_prompts_a_task() -> None:
    items = builtin_suite()
    assert Counter(item.task for item in items) == {
        task: 10
        for task in ("chat", "code", "query_suggestion", "summarise", "titles", "titles_zh")
    }
    turns = [turn for item in items for turn in item.turns]
    assert len(set(turns)) == len(turns)
    assert all(item.category and not item.raw for item in items)


def test_the_builtin_suite_covers_what_it_names() -> None:
    items = builtin_suite()
    assert sum(len(item.turns) == 2 for item in items if item.task == "chat") >= 4
    code = {item.category for item in items if item.task == "code"}
    assert code == {"python", "javascript", "sql"}
    for item in items:
        text = "".join(item.turns)
        chinese = sum("\u4e00" <= character <= "\u9fff" for character in text)
        assert (chinese > 40) == (item.task == "titles_zh")
        if item.task == "summarise":
            instruction, article = text.split("\n\n", 1)
            assert 120 <= words(article) <= 250
            assert "\n" not in instruction


def test_the_builtin_suite_can_be_chosen_from_and_is_the_same_twice() -> None:
    assert prompts_hash(builtin_suite()) == prompts_hash(builtin_suite())
    assert {item.task for item in select_items(builtin_suite(), tasks=["code"], limit=2)} == {
        "code"
    }
