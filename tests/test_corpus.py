"""Corpora: what a file holds, and what is said of files that hold something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graft import corpus
from graft.corpus import Document, read_corpus

CHAT = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


def lines(path: Path, *objects: Any) -> Path:
    path.write_text("".join(json.dumps(o) + "\n" for o in objects), encoding="utf-8")
    return path


def contents(*paths: Path) -> list[Any]:
    return [document.content for document in read_corpus(paths)]


def refused(*paths: Path) -> str:
    """The one line that reading these files ends in."""
    with pytest.raises(ValueError, match=r".") as caught:
        list(read_corpus(paths))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"text": "a"}, "a"),
        ({"prompt": "a", "id": 3}, "a"),
        ({"response": "b", "prompt": "a"}, "a\n\nb"),
        ({"prompt": "a", "answer": "b", "text": None}, "a\n\nb"),
        ({"turns": ["a", "b"], "answer": "c"}, "a\n\nb\n\nc"),
        ({"text": "gr\u00fc\u00df \u2028 \U0001f600"}, "gr\u00fc\u00df \u2028 \U0001f600"),
        ({"messages": CHAT, "prompt": "Hello"}, tuple(CHAT)),
    ],
)
def test_a_line_is_a_document(tmp_path: Path, found: dict[str, Any], text: Any) -> None:
    assert contents(lines(tmp_path / "c.jsonl", found)) == [text]


def test_files_follow_each_other_and_blanks_are_left_out(tmp_path: Path) -> None:
    first = tmp_path / "a.JSONL"
    first.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\n  \n{"text": " "}\n{"text": "b"}')
    second = tmp_path / "b.txt"
    second.write_bytes(b"\xef\xbb\xbfline\r\nline\n")
    assert contents(first, second) == ["a", "b", "line\nline\n"]


def test_documents_know_where_they_are_from(tmp_path: Path) -> None:
    path = lines(tmp_path / "c.jsonl", {"text": "a"}, {"text": "b"})
    documents = list(read_corpus([path]))
    assert [d.place for d in documents] == [f"{path}, line 1", f"{path}, line 2"]
    assert sum(d.size for d in documents) == path.stat().st_size


def test_plain_text_is_cut_at_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_PIECE", 20)
    text = "".join(f"this is line {i}\n" for i in range(1, 10)) + "the end"
    (tmp_path / "c.txt").write_text(text)
    documents = list(read_corpus([tmp_path / "c.txt"]))
    assert len(documents) > 3
    assert "".join(str(d.content) for d in documents) == text
    assert all(str(d.content).endswith("\n") for d in documents[:-1])
    number = int(documents[2].place.split()[-1])
    assert str(documents[2].content).startswith(f"this is line {number}\n")


def test_documents_are_read_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"text": "a"}\nnonsense\n')
    documents = read_corpus([path])
    assert next(documents).content == "a"
    with pytest.raises(ValueError, match="line 2"):
        next(documents)


def test_files_that_cannot_be_read_are_told_at_once(tmp_path: Path) -> None:
    good = lines(tmp_path / "c.jsonl", {"text": "a"})
    folder = tmp_path / "d.txt"
    folder.mkdir()
    cases = {
        tmp_path / "none.txt": "cannot read .*none.txt: No such file",
        folder: r"cannot read .*d.txt: Is a directory",
        tmp_path / "c.csv": r"c.csv: a corpus is a .jsonl or a .txt file",
        tmp_path / "c": r"a corpus is a .jsonl or a .txt file",
    }
    for path, message in cases.items():
        with pytest.raises(ValueError, match=message):
            read_corpus([good, path])  # before any document is taken
    with pytest.raises(ValueError, match="no corpus"):
        read_corpus([])


@pytest.mark.parametrize("name", ["c.txt", "c.jsonl"])
@pytest.mark.parametrize("data", [b"", b" \n\n"])
def test_empty_files_are_refused(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert refused(tmp_path / name) == f"{tmp_path / name} holds no text to learn from"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "is not JSON (Expecting value)"),
        ('{"text": "a"', "is not JSON"),
        ("[" * 100_000, "is not JSON (nested too deeply)"),
        ('["a"]', "is not a JSON object"),
        ("3", "is not a JSON object"),
        ('{"id": 1, "body": "a"}', "has no text (its fields are id, body)"),
        ("{}", "has no text (its fields are none)"),
        ('{"text": null}', "has no text"),
        ('{"text": 3}', '"text" is not a text'),
        ('{"prompt": ["a"]}', '"prompt" is not a text'),
        ('{"turns": "a"}', '"turns" is not a list of texts'),
        ('{"turns": ["a", 3]}', '"turns" is not a list of texts'),
        ('{"messages": []}', '"messages" is not a list of chat messages'),
        ('{"messages": "a"}', '"messages" is not a list of chat messages'),
        ('{"messages": ["a"]}', "message 0 has no role and content"),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "x"}]}', "message 1 has no"),
        ('{"messages": [{"role": "user", "content": ["a"]}]}', "message 0 has no"),
        ('{"text": "ab\\ud800"}', "not valid Unicode at character 2"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "not valid Unicode"),
    ],
)
def test_bad_lines_are_told_by_place(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"text": "a"}\n\n' + line + "\n")
    message = refused(path)
    assert f"{path}, line 3" in message
    assert words in message


@pytest.mark.parametrize("name", ["c.txt", "c.jsonl"])
def test_other_encodings_are_told_by_place(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b'{"text": "a"}\n{"text": "gr\xfc\xdf"}\n')
    assert f"{tmp_path / name}, line 2 is not UTF-8 text (byte 0xfc)" in refused(tmp_path / name)


def test_a_document_is_unicode() -> None:
    assert Document("a", "here").content == "a"
    with pytest.raises(ValueError, match="here: not valid Unicode"):
        Document("\ud800", "here")
