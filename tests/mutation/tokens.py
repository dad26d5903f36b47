"""Splits Lua and SQL into tokens. Comments and texts in quotes are single tokens, spaces are none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from attrs import frozen

_COMMON: Final = r"""
    (?P<number>\d+(?:\.\d+)?\b)
    |(?P<word>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)
"""
LUA: Final = re.compile(
    r"""
    (?P<comment>--\[\[.*?\]\]|--[^\n]*)
    |(?P<text>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|\[\[.*?\]\])"""
    f"|{_COMMON}"
    r"|(?P<sign>==|~=|<=|>=|\.\.\.|\.\.|[^\s\w])",
    re.VERBOSE | re.DOTALL,
)
SQL: Final = re.compile(
    r"""
    (?P<comment>--[^\n]*|/\*.*?\*/)
    |(?P<text>'(?:''|[^'])*'|"[^"]*"|\{[a-z_]+\}|%\(\w+\)[sbt]|:[a-z_]+|\$\$|\$\w+\$)"""
    f"|{_COMMON}"
    r"|(?P<sign><=|>=|<>|!=|:=|::|->>|->|\|\||[^\s\w])",
    re.VERBOSE | re.DOTALL,
)


@frozen
class Token:
    """A token. `kind` is number, word, text or sign; `depth` is the number of open parentheses."""

    kind: str
    text: str
    start: int
    depth: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def split_tokens(text: str, grammar: re.Pattern[str]) -> Iterator[Token]:
    """Return the tokens of a text, without its comments. Both parentheses have the depth inside."""
    depth = 0
    for found in grammar.finditer(text):
        kind, token = str(found.lastgroup), found[0]
        if kind == "comment":
            continue
        depth += token in {"(", "[", "{"}
        yield Token(kind, token, found.start(), depth)
        depth -= token in {")", "]", "}"}


def is_balanced(text: str, grammar: re.Pattern[str]) -> bool:
    """Return whether all parentheses in a text are closed in it."""
    signs = [token.text for token in split_tokens(text, grammar) if token.kind == "sign"]
    return all(signs.count(left) == signs.count(right) for left, right in ("()", "[]", "{}"))
