"""Kinds: what the tokens of an answer in code are - keyword, name, string and so on.

A small scanner for many languages, by heuristics (all ours), so that benchmarks can say what kinds
of tokens are accepted:

- If the answer has code fences (``` or ~~~), only what is inside them is code; the fences and the
  rest are "other", as is text that no rule knows. Without fences all of it is code. A fence that is
  never closed runs to the end.
- Each block is read in the dialect that its fence or its looks suggest (`dialects`).
- A name is "api" after a dot, `->` or `::` (not in SQL, where that is a column) and before an
  opening parenthesis, unless a word that defines or a type stands in front, as in `def f(` or
  `int f(`. JavaScript methods that are defined without such a word count as api.
- Strings are whole: what f-strings and templates insert is "string" too. A string ends at its line
  at the latest unless it is a triple-quoted one or a template; a lone apostrophe is punctuation.
- A token over several kinds has the one of most of its characters, blanks aside; of equal ones the
  first. Blanks inside strings and comments belong to them; other blanks are "whitespace".

Invariant: one kind per token, for any texts; nothing raises. It does not know tokenizers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from graft.bench.dialects import DEFINERS, KEYWORDS, Dialect, dialect_of

__all__ = ["KINDS", "token_kinds"]

# A letter per character of the answer stands for its kind.
_LETTERS: Final = {
    "w": "whitespace",
    "p": "punctuation",
    "k": "keyword",
    "n": "name",
    "a": "api",
    "d": "number",
    "s": "string",
    "c": "comment",
    "o": "other",
}
KINDS: Final = tuple(_LETTERS.values())

_STRING = r"""
    (?P<s>
        [bBfFrRuU]{0,2}
        (?: \"{3}[\s\S]*?(?:\"{3}|\Z)
          | '{3}[\s\S]*?(?:'{3}|\Z)
          | "(?:[^"\\\n]|\\[\s\S])*(?:"|(?=\n)|\\?\Z)
          | '(?:[^'\\\n]|\\[\s\S])*(?:'|\\?\Z)
        )
"""
_REST = r"""
  | (?P<d> (?:\d[\d_]*(?:\.\d[\d_]*)? | (?<![\w)\]])\.\d+) (?:[eE][+-]?\d+)? \w*)
  | (?P<n> (?:[^\W\d]|\$)[\w$]*)
  | (?P<w> \s+)
  | (?P<p> [!-/:-@\[-`{-~])
"""
_BLOCK = r"/\*[\s\S]*?(?:\*/|\Z)"
_TEMPLATE = r"| `(?:[^`\\]|\\[\s\S])*(?:`|\\?\Z)"
_DIRECTIVE = r"| (?P<k> [#](?:include|define|undef|if|ifdef|ifndef|elif|else|endif|pragma|error)\b)"
_SCANNERS: Final[dict[Dialect, re.Pattern[str]]] = {
    "hash": re.compile(rf"{_STRING}) | (?P<c>[#][^\n]*) {_REST}", re.VERBOSE),
    "slash": re.compile(
        rf"{_STRING}{_TEMPLATE}) | (?P<c>//[^\n]*|{_BLOCK}) {_DIRECTIVE} {_REST}", re.VERBOSE
    ),
    "dash": re.compile(rf"{_STRING}) | (?P<c>--[^\n]*|{_BLOCK}) {_REST}", re.VERBOSE),
}
_FENCE: Final = re.compile(r"^[ \t]*(?P<mark>`{3,}|~{3,})(?P<tag>[^\n`]*)$", re.MULTILINE)
_CALL: Final = re.compile(r"[ \t]*\(")


def token_kinds(texts: Sequence[str]) -> list[str]:
    """The kind of each token of an answer, one of `KINDS`.

    Args:
        texts: what each token adds to the answer; together they are the answer. One that adds
            nothing, as where a character takes several tokens, is "other".
    """
    letters = _answer("".join(texts))
    kinds = []
    start = 0
    for text in texts:
        kinds.append(_LETTERS[_main(letters[start : start + len(text)])])
        start += len(text)
    return kinds


def _main(letters: str) -> str:
    """The letter of most characters, blanks aside; of equal ones the first."""
    known = letters.replace("w", "") or letters or "o"
    return Counter(known).most_common(1)[0][0]


class _Block(NamedTuple):
    """Code between the characters start and end of an answer."""

    start: int
    end: int
    tag: str


def _answer(text: str) -> str:
    parts = []
    done = 0
    for block in _blocks(text):
        parts.append(_prose(text[done : block.start]))
        code = text[block.start : block.end]
        parts.append(_code(code, dialect_of(code, block.tag)))
        done = block.end
    return "".join([*parts, _prose(text[done:])])


def _blocks(text: str) -> Iterator[_Block]:
    opened: re.Match[str] | None = None
    fenced = False
    for fence in _FENCE.finditer(text):
        fenced = True
        if opened is None:
            opened = fence
        elif fence["mark"].startswith(opened["mark"]) and not fence["tag"].strip():
            yield _Block(opened.end(), fence.start(), opened["tag"])
            opened = None
    if opened is not None:
        yield _Block(opened.end(), len(text), opened["tag"])
    elif not fenced:
        yield _Block(0, len(text), "")


def _prose(text: str) -> str:
    return "".join("w" if character.isspace() else "o" for character in text)


def _code(code: str, dialect: Dialect) -> str:
    """A letter per character."""
    parts = []
    done = 0
    last = ""  # letter of the last match that was no blank and no comment
    span = (0, 0)
    for match in _SCANNERS[dialect].finditer(code):
        letter = match.lastgroup or "o"
        if letter == "n":
            letter = _word(code, match, dialect, last, span)
        parts.append("o" * (match.start() - done) + letter * len(match[0]))
        done = match.end()
        if letter not in "wc":
            last, span = letter, match.span()
    return "".join([*parts, "o" * (len(code) - done)])


def _word(
    code: str, match: re.Match[str], dialect: Dialect, last: str, span: tuple[int, int]
) -> str:
    """Keyword, api or name; `last` and `span` are of what stands in front."""
    word = match[0].lower() if dialect == "dash" else match[0]
    front = code[max(0, span[1] - 2) : span[1]]
    dotted = front.endswith((".", "->", "::")) and front != ".."
    if word in KEYWORDS[dialect] and not (dotted and dialect == "slash"):
        return "k"
    if dotted:
        return "n" if dialect == "dash" else "a"
    defined = code[slice(*span)].lower() in DEFINERS or (dialect == "slash" and last in ("n", "a"))
    return "a" if _CALL.match(code, match.end()) and not defined else "n"
