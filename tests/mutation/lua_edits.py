"""Mutations of Lua, found in its tokens and, for statements and conditions, in single lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tests.mutation.site import Edit
from tests.mutation.tokens import LUA, Token, is_balanced, split_tokens

_WORDS: Final = {
    "and": ("or", "boolean"), "or": ("and", "boolean"),
    "true": ("false", "flag"), "false": ("true", "flag"),
    "math.max": ("math.min", "min or max"), "math.min": ("math.max", "min or max"),
}  # fmt: skip
_COMPARISONS: Final = {"==": "~=", "~=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_ARITHMETIC: Final = {"+": "-", "-": "+", "*": "+", "/": "*"}
_CONDITION: Final = re.compile(
    r"^[ \t]*(?:else)?if[ \t]+(.+?)[ \t]+then\b|^[ \t]*while[ \t]+(.+?)[ \t]+do$", re.MULTILINE
)
_STATEMENT: Final = re.compile(
    r"^[ \t]*((?![ \t]|local |return|end|if |for |function |else)[\w.:\[\]', ]+(?:\(.*\)| = .+))$",
    re.MULTILINE,
)
_RETURN: Final = re.compile(r"^[ \t]*return[ \t]+(?![ \t]|function)(.+)$", re.MULTILINE)


def lua_edits(text: str) -> Iterator[Edit]:
    """Return all mutations of a Lua file."""
    for before, token in pairwise(split_tokens(text, LUA)):
        yield from _of_token(before, token, text)
    yield from _of_lines(text)


def _of_token(before: Token, token: Token, text: str) -> Iterator[Edit]:
    start, end = token.start, token.end
    if token.kind == "number":
        yield Edit(start, end, str(int(token.text) + 1) if token.text.isdigit() else "0", "constant")
    elif token.text in _WORDS:
        yield Edit(start, end, *_WORDS[token.text])
    elif token.text == "not":
        yield Edit(start, end, "", "negation")
    elif token.text in _COMPARISONS:
        yield Edit(start, end, _COMPARISONS[token.text], "comparison")
    elif token.text in _ARITHMETIC and _is_operand(before) and text[start - 1] == " ":
        yield Edit(start, end, _ARITHMETIC[token.text], "arithmetic")


def _is_operand(token: Token) -> bool:
    """Return whether a token ends an operand, so that a minus after it subtracts."""
    return token.kind in {"number", "word"} or token.text in {")", "]"}


def _of_lines(text: str) -> Iterator[Edit]:
    for found in _CONDITION.finditer(text):
        group = 1 if found[1] else 2
        if is_balanced(found[group], LUA):
            yield Edit(*found.span(group), f"not ({found[group]})", "condition negated")
    for found in _STATEMENT.finditer(text):
        if is_balanced(found[1], LUA) and not _is_continued(text, found.end()):
            yield Edit(*found.span(1), "", "statement removed")
    for found in _RETURN.finditer(text):
        value = re.sub(r"\s+end$", "", found[1])
        whole = is_balanced(value, LUA) and not _is_continued(text, found.end())
        if whole and value not in {"nil", "false"}:
            yield Edit(found.start(1), found.start(1) + len(value), "nil", "return value")


def _is_continued(text: str, end: int) -> bool:
    """Return whether the line after `end` continues the expression, as in `  or 0`."""
    following = text[end:].lstrip()
    return following.startswith(("and ", "or ", "..", "+", ")", "}", "*")) or text[:end].endswith(
        (",", "(", "{", "=")
    )
