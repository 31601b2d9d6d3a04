"""Kinds of tokens: one per token whatever the text is, and the heuristics that are promised."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.bench.dialects import dialect_of
from graft.bench.kinds import KINDS, token_kinds

# Pieces on which scanners trip.
ODD = [
    "```", "```python\n", "\n```\n", "~~~", '"', "'", '"""', "'''", "`", "\\", "\n", "\r\n", "#",
    "//", "/*", "*/", "--", ".", "->", "::", "0x", "1e", "e+", "$", " ", "\t", "def ", "f(", "a.b",
    "\ufffd", "\u4e2d", "\U0001f600", "\u2028", "\u00b2", "\u0660", "\u0130", "\ud800", "SELECT ",
    ";\n", ") {\n", "",
]  # fmt: skip


@given(st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=5)), max_size=40))
def test_any_split_of_any_text_gives_one_kind_per_token(texts: list[str]) -> None:
    kinds = token_kinds(texts)
    assert len(kinds) == len(texts)
    assert set(kinds) <= set(KINDS)


@given(st.lists(st.sampled_from(ODD), max_size=40))
def test_a_token_is_of_a_kind_that_its_characters_have_alone(texts: list[str]) -> None:
    alone = iter(token_kinds(list("".join(texts))))
    for text, kind in zip(texts, token_kinds(texts), strict=True):
        characters = [next(alone) for _ in text]
        assert kind in characters or not text


@pytest.mark.parametrize(
    ("text", "character"),
    [("'\\\n", "'"), ('"""', '"'), ("/*", "*"), ("`\\", "`"), ("((((", "("), ("1_", "1")],
)
def test_long_answers_take_no_longer_per_character(text: str, character: str) -> None:
    # Square time would run for hours here.
    assert len(token_kinds([text * 50_000, character])) == 2


def kinds_of(code: str, *tokens: str, tag: str = "python") -> list[str]:
    """The kinds of some tokens of a fenced block, in order; the rest in between goes alone."""
    fence = f"```{tag}\n"
    texts, start = [fence], 0
    wanted = []
    for token in tokens:
        at = code.index(token, start)
        texts += [code[start:at], token]
        wanted.append(len(texts) - 1)
        start = at + len(token)
    found = token_kinds([*texts, code[start:], "\n```\n"])
    return [found[index] for index in wanted]


PYTHON = '''@cache
def total(rows, rate=0x1F):
    """Don't add."""
    for row in rows:  # it's cheap
        self.sums.append(round(row.net * 1.5e-3 // 2, f"{rate}"))
'''


def test_python() -> None:
    found = kinds_of(
        PYTHON, "@", "cache", "def", " total", "(", "rows", "0x1F", '"""', "Don", "'", " add",
        " in", "#", " it", "self", ".", "sums", "append", "(", "round", "row", "net", " *",
        " 1.5e-3", " //", " 2", ' f"', "rate",
    )  # fmt: skip
    assert found == [
        "punctuation", "name", "keyword", "name", "punctuation", "name", "number", "string",
        "string", "string", "string", "keyword", "comment", "comment", "name", "punctuation", "api",
        "api", "punctuation", "api", "name", "api", "punctuation", "number", "punctuation",
        "number", "string", "string",
    ]  # fmt: skip


C_LIKE = """#include <map>
int add(int a, Item b) {
  // don't
  const x = new Map(b.default, obj->size(), std::max(1, a)); /* two
  lines */ let s = `a ${b}
  c`; promise.catch(done);
}"""


def test_c_like() -> None:
    found = kinds_of(
        C_LIKE, "#include", "int", " add", "int", " Item", " b", "//", " don", "const", "new",
        " Map", "default", "->", "size", "max", "/*", " two", "lines", "let", "`", "b", "c",
        "catch", "done", tag="ts",
    )  # fmt: skip
    assert found == [
        "keyword", "keyword", "name", "keyword", "name", "name", "comment", "comment", "keyword",
        "keyword", "api", "api", "punctuation", "api", "api", "comment", "comment", "comment",
        "keyword", "string", "string", "string", "api", "name",
    ]  # fmt: skip


SQL = """select c.name, count(*) -- isn't it
from customers c where c.city = 'it''s' and n > 10"""


def test_sql() -> None:
    found = kinds_of(
        SQL, "select", " c", "name", "count", "*", "--", " isn", "from", " customers", "city",
        "'it'", "'s'", " and", " 10", tag="SQL",
    )  # fmt: skip
    assert found == [
        "keyword", "name", "name", "api", "punctuation", "comment", "comment", "keyword", "name",
        "name", "string", "string", "keyword", "number",
    ]  # fmt: skip


def test_only_fenced_text_is_code() -> None:
    texts = ["def", " it", "\n", "```", "py", "\n", "def", " f", "\n", "```", "\n", "def"]
    assert token_kinds(texts) == [
        "other", "other", "whitespace", "other", "other", "whitespace", "keyword", "name",
        "whitespace", "other", "whitespace", "other",
    ]  # fmt: skip


def test_without_a_fence_all_is_code_and_an_open_fence_runs_to_the_end() -> None:
    assert token_kinds(["def", " f"]) == ["keyword", "name"]
    assert token_kinds(["Hi", "\n```\n", "def", " f"]) == ["other", "other", "keyword", "name"]


def test_a_fence_with_a_tag_does_not_close_one() -> None:
    assert token_kinds(["```\n", "def", "\n```py\n", "def"])[3] == "keyword"
    assert token_kinds(["```\n", "def", "\n```\n", "def"])[3] == "other"


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        ("    ", "whitespace"),
        (" foo", "name"),
        ("(self", "name"),
        (").x", "punctuation"),
        (".items", "api"),
        ("=1", "punctuation"),
        ("", "other"),
        ("\u20ac", "other"),
    ],
)
def test_a_token_of_several_kinds_has_the_main_one(token: str, kind: str) -> None:
    assert token_kinds(["a", token])[1] == kind


def test_quotes_that_never_close() -> None:
    assert token_kinds(["x = ", "'abc"])[1] == "string"  # the answer was cut
    assert token_kinds(["it", "'", "s\n", "def"]) == ["name", "punctuation", "name", "keyword"]
    assert token_kinds(['"abc', "\n", "def"]) == ["string", "whitespace", "keyword"]


@pytest.mark.parametrize(
    ("code", "tag", "dialect"),
    [
        ("return a // b", "", "hash"),
        ("x = {\n}", "", "hash"),
        ("int x;\n", "", "slash"),
        ("const f = () => {\n", "", "slash"),
        ("SELECT a\nFROM b;", "", "dash"),
        ("select {\n  case x := <-c:\n  f();\n}", "", "slash"),
        ("SELECT a\nFROM b;", "Python", "hash"),
        ("x = 1", "js", "slash"),
        ("x = 1", "unheard-of", "hash"),
    ],
)
def test_dialects(code: str, tag: str, dialect: str) -> None:
    assert dialect_of(code, tag) == dialect


def test_the_dialect_decides() -> None:
    texts = ["a ", "// b"]
    assert token_kinds(["```py\n", *texts])[2] == "punctuation"
    assert token_kinds(["```js\n", *texts])[2] == "comment"


def test_torch_is_not_needed() -> None:
    code = "import sys; sys.modules['torch'] = None; import graft.bench.kinds, graft.bench.suite"
    subprocess.run([sys.executable, "-c", code], check=True)
