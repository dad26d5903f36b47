"""The loader of SQL files, and names that need quoting."""

from __future__ import annotations

import re
from collections import Counter
from importlib.resources import files
from itertools import pairwise

import pytest

from dibs.errors import ConfigurationError
from dibs.storage.postgres import queries
from dibs.storage.postgres.queries import (
    Queries,
    function_files,
    functions_hash,
    migrations,
    quote_identifier,
    read_queries,
)


def test_each_query_is_found_once_and_without_its_comments() -> None:
    folder = files("dibs.storage.postgres") / "sql"
    written = sum(entry.read_text().count("-- name:") for entry in folder.iterdir())

    assert written == len(read_queries())
    assert not any(line.startswith("--") for text in read_queries().values() for line in text.splitlines())


def test_a_query_named_twice_is_an_error() -> None:
    with pytest.raises(AssertionError, match="two queries with the same name"):
        queries._split_sections("x", "-- name: a\nSELECT 1\n-- name: a\nSELECT 2\n")


def test_no_two_migrations_have_the_same_number() -> None:
    """They are applied in the order of their numbers; a gap between two of them has no effect."""
    numbers = [migration.number for migration in migrations()]

    assert sorted(set(numbers)) == numbers


def test_no_function_has_more_than_60_lines() -> None:
    texts = "\n".join(function_files().values())
    found = re.findall(
        r"^CREATE OR REPLACE FUNCTION (\w+)(.*?\$\$.*?\$\$;)$", texts, re.MULTILINE | re.DOTALL
    )

    assert len(found) == texts.count("\nCREATE OR REPLACE FUNCTION")
    assert [] == [name for name, text in found if text.count("\n") >= 60]


def test_every_placeholder_is_known() -> None:
    mine = Queries("dibs")
    texts = [
        mine[name].decode()
        for name in read_queries()
        if name not in {"job", "successor", "outcome", "page", "split"}
    ]
    texts += [mine.page(state, ends=ends).decode() for state in (None, "failed") for ends in (False, True)]
    texts += [mine.split(state).decode() for state in (None, "failed")]
    texts += [mine.fill_in(migration.text) for migration in migrations()]
    texts += map(mine.fill_in, function_files().values())

    known = (
        "{schema}",
        "{name}",
        "{slot}",
        "{claimed}",
        "{kept}",
        "{pinned}",
        "{lock}",
        "{live_filter}",
        "{live_end}",
    )
    assert [] == [word for text in texts for word in known if word in text]


def test_every_function_is_in_one_file_and_says_what_it_is() -> None:
    found, bare = Counter[str](), []
    for text in function_files().values():
        for before, line in pairwise(text.splitlines()):
            if name := re.match(r"CREATE .*FUNCTION (\w+)", line):
                found[name[1]] += 1
                if not before.startswith("--"):
                    bare.append(line)

    assert [] == bare
    assert {1} == set(found.values())


def test_a_name_is_quoted_as_an_identifier() -> None:
    assert '"my ""jobs"""' == quote_identifier('my "jobs"')
    assert '"100%%"' == Queries("100%").schema


HOSTILE = (
    "a\nDROP TABLE live;", "a\r", "a\x1b", "a\u2028b", "a$$; DROP TABLE live; $$", "$$", "a\\' || x"
)  # fmt: skip


@pytest.mark.parametrize("name", ["", "x" * 64, "a\0b", "\ud800", "pg_jobs", *HOSTILE])
def test_what_cannot_be_a_schema_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="schema"):
        quote_identifier(name)


def test_functions_have_another_hash_after_a_change_of_the_columns_that_they_contain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = functions_hash(function_files())
    changed = read_queries() | {"started": read_queries()["started"] + ", l.key"}
    monkeypatch.setattr(queries, "read_queries", lambda: changed)

    assert before != functions_hash(function_files())
