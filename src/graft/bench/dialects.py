"""Dialects: the three ways in which code is read, and which one a block of code is in.

`hash` is Python and others with # comments, `slash` C, JavaScript and their kin, `dash` SQL. A code
fence's tag says which; else SQL statements at the start of a line mean dash, lines that end in `;`
or open a brace mean slash, the rest is hash. All of it is a heuristic of ours. It knows words, not
how they are put together.
"""

from __future__ import annotations

import keyword
import re
from typing import Final, Literal

__all__ = ["DEFINERS", "KEYWORDS", "Dialect", "dialect_of"]

Dialect = Literal["hash", "slash", "dash"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TYPES: Final = _words("void bool char byte short int long float double unsigned auto string")
# What stands in front of a name that is being defined, in lower case.
DEFINERS: Final = _TYPES | _words(
    "def class function fn func fun interface struct enum trait type namespace table into view "
    "references"
)
_C_LIKE: Final = _TYPES | _words(
    "abstract as async await boolean break case catch class const constexpr continue debugger "
    "default defer delete do else enum export extends extern false final finally fn for foreach "
    "from func function go goto if impl implements import in instanceof interface internal let "
    "loop match mod mut namespace new nil null nullptr of operator override package private "
    "protected pub public readonly ref return sealed select self sizeof static struct super switch "
    "template this throw throws trait true try type typedef typeof undefined union use using var "
    "virtual volatile where while with yield"
)
_SQL: Final = _TYPES | _words(
    "add all alter and any as asc autoincrement begin between bigint boolean by cascade case check "
    "column commit constraint create cross current_date current_timestamp date default delete desc "
    "distinct drop else end except exists false filter following for foreign from full group "
    "having if in index inner insert integer intersect into is join key lateral left like limit "
    "not null numeric offset on or order outer over partition preceding primary range real "
    "references returning right rollback row rows select set table temporary text then timestamp "
    "true unbounded union unique update using values varchar view when where window with without"
)
KEYWORDS: Final[dict[Dialect, frozenset[str]]] = {
    "hash": frozenset(keyword.kwlist),
    "slash": _C_LIKE,
    "dash": _SQL,
}

_TAGS: Final[dict[Dialect, str]] = {
    "dash": "sql sqlite mysql postgres postgresql plsql tsql",
    "slash": "c cc cpp c++ h hpp java js jsx javascript mjs ts tsx typescript cs csharp go rust rs "
    "swift kotlin kt scala php dart css scss objc json jsonc",
    "hash": "py py3 python python3 pycon sh bash zsh shell rb ruby perl r yaml yml toml make "
    "dockerfile elixir julia",
}
_DIALECTS: Final = {tag: dialect for dialect, tags in _TAGS.items() for tag in _words(tags)}
_STATEMENT: Final = re.compile(
    r"^[ \t]*(?:select\s+(?!\{)|insert\s+into\b|update\s+\w+\s+set\b|delete\s+from\b"
    r"|(?:create|alter|drop)\s+(?:table|view|index)\b|with\s+\w+\s+as\s*\()",
    re.IGNORECASE | re.MULTILINE,
)
_BRACES: Final = re.compile(r"(?:;|(?:\)|=>|\belse|\btry|\bdo)[ \t]*\{)[ \t]*$", re.MULTILINE)


def dialect_of(code: str, tag: str = "") -> Dialect:
    """The dialect to read a block of code in. `tag` is what its fence says, if it has one."""
    if known := _DIALECTS.get(tag.strip().lower()):
        return known
    if _STATEMENT.search(code):
        return "dash"
    return "slash" if _BRACES.search(code) else "hash"
