"""The SQL blocks of the pages run in their order, and return the rows that the pages show."""

from __future__ import annotations

import asyncio
import os
import re

import psycopg
import pytest

from dibs import Dibs
from dibs_conformance.servers import PostgresServer
from tests.docs.pages import DOCS, Block, Page

#: A row that a page shows, after its statement.
SHOWN = re.compile(r"^--> (.*)$", re.MULTILINE)
#: A statement, which ends with a semicolon at the end of a line, and the rows after it.
STATEMENT = re.compile(r"\S.*?;$(?:\n--> [^\n]*)*", re.DOTALL | re.MULTILINE)
#: Roles that the pages name.
ROLES = ("app", "billing", "migrator", "reports")


def sql_blocks(name: str) -> list[Block]:
    """Return the blocks for Postgres; a block with a title is a file for another program."""
    blocks = [block for block in Page(name).blocks if block.language == "sql" and not block.title]
    return [block for block in blocks if not block.has_mark("no-run")]


PAGES = sorted(
    name for name in (path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")) if sql_blocks(name)
)


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    """Return the URL of an empty database, on a server that has the roles."""
    name = f"page_{os.urandom(4).hex()}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        for role in ROLES:
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchall():
                connection.execute(f"CREATE ROLE {role}".encode())
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{postgres_server.url.rpartition('/')[0]}/{name}"


async def create_storage(url: str) -> None:
    # A page may give the schema to another role before.
    async with Dibs(f"{url}?allow_others=1") as app:
        await app.queue("emails").counts()


def statements(text: str) -> list[str]:
    """Return the statements of a block, each with the rows that follow it as comments."""
    return [found[0].strip() for found in STATEMENT.finditer(text)]


@pytest.mark.parametrize("name", PAGES)
def test_each_block_returns_its_rows(name: str, database: str) -> None:
    created = False
    with psycopg.connect(database, autocommit=True) as connection:
        for block in sql_blocks(name):
            if "dibs." in block.text and not created:
                asyncio.run(create_storage(database))
                created = True
            for statement in statements(block.text):
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
                if shown := SHOWN.findall(statement):
                    assert shown == [" | ".join(map(str, row)) for row in rows], statement


def test_the_statements_of_a_block_are_found() -> None:
    text = "BEGIN;\nSELECT 1,\n    2;\n--> 1 | 2\nSELECT 3;\n\nCOMMIT;\n"

    assert ["BEGIN;", "SELECT 1,\n    2;\n--> 1 | 2", "SELECT 3;", "COMMIT;"] == statements(text)
    assert {"howto/postgres-only.md", "howto/use_from_sql.md"} <= set(PAGES)
