from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation.lua_edits import lua_edits
from tests.mutation.python_edits import python_edits
from tests.mutation.site import FindEdits, find_sites
from tests.mutation.sql_edits import sql_edits


def mutants(find_edits: FindEdits, text: str) -> set[str]:
    """Return the mutated texts."""
    return {site.apply(text) for site in find_sites("file", text, find_edits)}


@pytest.mark.parametrize(
    ("text", "mutant"),
    [
        ("a < b", "a <= b"),
        ("a == (b)", "a != (b)"),
        ("é = (a) is not (b)", "é = (a) is (b)"),
        ("a and b", "a or b"),
        ("a + 1", "a - 1"),
        ("a + 1", "a + 2"),
        ("f(now=True)", "f(now=False)"),
        ("not a", "a"),
        ("if a or b: c()", "if (not (a or b)): c()"),
        ("[a for a in b if a]", "[a for a in b if (not (a))]"),
        ("a = max(1, b)", "a = min(1, b)"),
        ("async def f(): await g(h)", "async def f(): pass"),
        ("a.b = c", "pass"),
        ("a += c", "a -= c"),
        ("def f(): return a", "def f(): return None"),
        ("while a: break", "while a: continue"),
    ],
)
def test_python_mutants(text: str, mutant: str) -> None:
    assert mutant in mutants(python_edits, text)


@pytest.mark.parametrize(
    "text",
    [
        '"""Returns 1."""',
        "a: int | None",
        "def f(a: Literal[1]) -> int | None: ...",
        "raise ValueError(f'{a + 1} is not 2')",
        "if TYPE_CHECKING: a()",
        "log.warning('no')",
        "def __repr__(self): return 1 < 2",
        "class A(Struct, frozen=True): ...",
        "zip(a, b, strict=True)",
        "'a' + b",
    ],
)
def test_python_without_an_effect_has_no_mutants(text: str) -> None:
    assert set() == mutants(python_edits, text) - {"pass"}


@pytest.mark.parametrize(
    ("text", "mutant"),
    [
        ("x = a < b", "x = a <= b"),
        ("x = a ~= b", "x = a == b"),
        ("x = a and b", "x = a or b"),
        ("x = a - 1", "x = a + 1"),
        ("x = a[1]", "x = a[2]"),
        ("x = math.max(a, b)", "x = math.min(a, b)"),
        ("x = {true}", "x = {false}"),
        ("x = not a", "x =  a"),
        ("if f(a) then b() end", "if not (f(a)) then b() end"),
        ("x()\n  call('SET', k)\n", "x()\n  \n"),
        ("x()\n  a.b = c\n", "x()\n  \n"),
        ("x()\n  return f(a)\n", "x()\n  return nil\n"),
    ],
)
def test_lua_mutants(text: str, mutant: str) -> None:
    assert mutant in mutants(lua_edits, text)


@pytest.mark.parametrize(
    "text",
    ["-- a < b and 1", "return 'a < 1 and true'", "local x = -a", "f(\n  a)", "local x = [[ a and 1 ]]"],
)
def test_lua_without_an_effect_has_no_mutants(text: str) -> None:
    assert set() == mutants(lua_edits, text) - {"return nil"}


@pytest.mark.parametrize(
    ("text", "mutant"),
    [
        ("SELECT a WHERE b = c", "SELECT a WHERE b <> c"),
        ("SELECT a WHERE b = c AND d", "SELECT a WHERE b = c OR d"),
        ("SELECT (SELECT a WHERE b AND c = d)", "SELECT (SELECT a WHERE b )"),
        ("SELECT a WHERE b AND c < 1 ORDER BY d", "SELECT a WHERE b  ORDER BY d"),
        ("SELECT a ORDER BY b, c LIMIT n", "SELECT a ORDER BY b DESC, c LIMIT n"),
        ("SELECT a ORDER BY b, c LIMIT n", "SELECT a ORDER BY b, c LIMIT n + 1"),
        ("SELECT least(a, b)", "SELECT greatest(a, b)"),
        ("SELECT a IS NULL", "SELECT a IS NOT NULL"),
        ("SELECT a IS NOT NULL", "SELECT a IS  NULL"),
        ("SELECT a - b", "SELECT a + b"),
        ("SELECT a FROM b FOR UPDATE SKIP LOCKED", "SELECT a FROM b"),
        ("IF a < b THEN\nSELECT 1;", "IF NOT coalesce((a < b), false) THEN\nSELECT 1;"),
        ("SELECT 1;\nPERFORM f(a);", "SELECT 1;\nNULL;"),
        ("SELECT 1;\nRETURN a;", "SELECT 1;\nRETURN NULL;"),
        ("UPDATE t SET\n    a = b,\n    c = d", "UPDATE t SET\n    a = a,\n    c = d"),
    ],
)
def test_sql_mutants(text: str, mutant: str) -> None:
    assert mutant in mutants(sql_edits, text)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t (a bigint NOT NULL)",
        "SELECT a -- b = 1 AND true",
        "SELECT '1 < 2' FROM {schema}.t",
        "UPDATE t SET a = %(a)s",
        "SELECT a WHERE b BETWEEN c AND d",
        "SELECT * FROM a",
    ],
)
def test_sql_without_an_effect_has_no_mutants(text: str) -> None:
    assert set() == mutants(sql_edits, text)


def test_a_site_names_its_line_and_its_change() -> None:
    [site] = find_sites("a.py", "def f():\n    x = a < b\n", python_edits)

    assert (2, "x = a < b", "< -> <=") == (site.line, site.line_text, site.change)


def test_python_mutants_of_a_whole_module_can_be_parsed() -> None:
    text = Path(__file__).read_text("utf-8")

    assert all(ast.parse(mutant) for mutant in mutants(python_edits, text))
