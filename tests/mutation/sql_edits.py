"""Mutations of SQL and PL/pgSQL, found in the tokens and, for statements and conditions, in single lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from tests.mutation.site import Edit
from tests.mutation.tokens import SQL, Token, is_balanced, split_tokens

_WORDS: Final = {
    "OR": ("AND", "boolean"),
    "TRUE": ("false", "flag"), "FALSE": ("true", "flag"),
    "LEAST": ("greatest", "min or max"), "GREATEST": ("least", "min or max"),
    "MIN": ("max", "min or max"), "MAX": ("min", "min or max"),
    "DESC": ("ASC", "order"), "ASC": ("DESC", "order"),
}  # fmt: skip
_COMPARISONS: Final = {"=": "<>", "<>": "=", "<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_ARITHMETIC: Final = {"+": "-", "-": "+", "*": "+"}
_AFTER_CONDITIONS: Final = {
    "AND", "OR", "ORDER", "LIMIT", "FOR", "THEN", "GROUP", "UNION", "RETURNING", "OFFSET", "ON", "LOOP",
    "ELSE", "END", "WHEN", "AS", ";", ",",
}  # fmt: skip
#: The words after which `=` compares. After the others, SET and VALUES for example, it assigns.
_COMPARING: Final = {
    "WHERE",
    "ON",
    "IF",
    "ELSIF",
    "WHEN",
    "HAVING",
    "SELECT",
    "RETURN",
    "THEN",
    "ELSE",
    "FILTER",
}
_CLAUSES: Final = _COMPARING | {
    "SET",
    "VALUES",
    "FROM",
    "INSERT",
    "UPDATE",
    "DEFAULT",
    "CALL",
    "CREATE",
    "GRANT",
}
_CONDITION: Final = re.compile(r"\b(?:IF|ELSIF|WHEN)[ \t]+((?!NOT EXISTS\b).+?)[ \t]+THEN\b")
_STATEMENT: Final = re.compile(
    r"^[ \t]*((?:PERFORM|DELETE|UPDATE|INSERT)\b[^;\n]*|\w+(?:\.\w+)? := [^;\n]*);$", re.MULTILINE
)
_RETURN: Final = re.compile(r"^[ \t]*RETURN (?!QUERY\b|NEXT\b|NULL;)([^;\n]+);$", re.MULTILINE)
_LOCK: Final = re.compile(r"[ \t]FOR (?:NO KEY UPDATE|KEY SHARE|UPDATE|SHARE)(?: OF \w+)?(?: SKIP LOCKED)?")
_ASSIGNMENT: Final = re.compile(r"^[ \t]*(\w+) = ([^,;\n]+),$", re.MULTILINE)


def sql_edits(text: str) -> Iterator[Edit]:
    """Return all mutations of a SQL file. Definitions of tables, indexes and views get none."""
    tokens = [*split_tokens(text, SQL), Token("sign", ";", len(text), 0)]
    clause, between = "", -1
    for at, token in enumerate(tokens[:-1]):
        word = token.text.upper()
        clause = word if word in _CLAUSES else clause
        between = token.depth if word == "BETWEEN" else between
        if word == "AND" and between == token.depth:
            between = -1
        elif clause != "CREATE":
            yield from _of_token(tokens, at, clause)
    yield from _of_lines(text)


def _of_token(tokens: Sequence[Token], at: int, clause: str) -> Iterator[Edit]:
    token = tokens[at]
    word, start, end = token.text.upper(), token.start, token.end
    if token.kind == "number" and tokens[at - 1].text not in {"[", "$"}:
        yield Edit(start, end, str(int(token.text) + 1) if token.text.isdigit() else "0", "constant")
    elif word == "AND":
        yield Edit(start, end, "OR", "boolean")
        yield Edit(start, _end_of_condition(tokens, at), "", "condition removed")
    elif word in _WORDS:
        yield Edit(start, end, *_WORDS[word])
    elif token.text in _COMPARISONS and (token.text != "=" or clause in _COMPARING):
        yield Edit(start, end, _COMPARISONS[token.text], "comparison")
    elif (
        token.text in _ARITHMETIC and _is_operand(tokens[at - 1]) and _is_operand(tokens[at + 1], opens=True)
    ):
        yield Edit(start, end, _ARITHMETIC[token.text], "arithmetic")
    else:
        yield from _of_phrase(tokens, at)


def _of_phrase(tokens: Sequence[Token], at: int) -> Iterator[Edit]:
    """Return the mutations of IS NULL, NOT, LIMIT and ORDER BY, which are several words."""
    start, end = tokens[at].start, tokens[at].end
    words = ["", "", *(one.text.upper() for one in tokens[max(0, at - 2) : at + 2])]
    second, before, word, after = words[-4:]
    match second, before, word, after:
        case _, "IS", "NOT", _:
            yield Edit(start, end, "", "comparison")
        case _, _, "NOT", "NULL" | "EXISTS" | "DISTINCT":
            pass
        case _, _, "NOT", _:
            yield Edit(start, end, "", "negation")
        case _, _, "IS", "NULL":
            yield Edit(start, end, "IS NOT", "comparison")
        case _, "LIMIT", _, _:
            yield Edit(end, end, " + 1", "limit")
        case "ORDER", "BY", _, _ if tokens[at].kind == "word" and after not in {"DESC", "ASC", "("}:
            yield Edit(end, end, " DESC", "order")
        case _:
            pass


def _is_operand(token: Token, *, opens: bool = False) -> bool:
    """Return whether a token is a whole operand, or the parenthesis that ends (or opens) one."""
    if token.kind == "word":
        return token.text.upper() not in {"SELECT", "RETURNING", "FROM", "INTO", "RETURN"}
    return token.kind in {"number", "text"} or token.text == ("(" if opens else ")")


def _end_of_condition(tokens: Sequence[Token], at: int) -> int:
    """Return the end of the condition after the AND at this index."""
    for before, token in pairwise(tokens[at:]):
        if token.depth < tokens[at].depth or (token.text == ")" and token.depth == tokens[at].depth):
            return before.end
        if token.depth == tokens[at].depth and token.text.upper() in _AFTER_CONDITIONS:
            return before.end
    return tokens[-1].end


def _of_lines(text: str) -> Iterator[Edit]:
    for found in _CONDITION.finditer(text):
        if is_balanced(found[1], SQL):
            yield Edit(*found.span(1), f"NOT coalesce(({found[1]}), false)", "condition negated")
    for found in _STATEMENT.finditer(text):
        if is_balanced(found[1], SQL):
            yield Edit(*found.span(1), "NULL", "statement removed")
    for found in _RETURN.finditer(text):
        if is_balanced(found[1], SQL):
            yield Edit(*found.span(1), "NULL", "return value")
    for found in _LOCK.finditer(text):
        yield Edit(*found.span(), "", "lock removed")
    for found in _ASSIGNMENT.finditer(text):
        if is_balanced(found[2], SQL) and "excluded" not in found[2] and found[1] != found[2]:
            yield Edit(*found.span(2), found[1], "assignment removed")
