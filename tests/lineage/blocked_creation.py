"""Objects of other programs in the place of a storage, which its creation cannot take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

Request = pytest.FixtureRequest


def block_file(url: str, request: Request) -> Callable[[], None]:
    path = Path(url.removeprefix("file:"))
    path.write_text("a file of another program")
    return path.unlink


def block_redis(url: str, request: Request) -> Callable[[], None]:
    server, prefix = request.getfixturevalue("redis_server"), url.partition("?prefix=")[2]
    server.execute("LPUSH", f"{prefix}:version", "a key of another program")

    def unblock() -> None:
        assert 1 == len(server.execute("KEYS", f"{prefix}*"))
        server.execute("DEL", f"{prefix}:version")

    return unblock


def block_postgres(url: str, request: Request) -> Callable[[], None]:
    import psycopg

    address, _, schema = url.partition("?schema=")

    def execute(*statements: str) -> list[tuple[str]]:
        with psycopg.connect(address, autocommit=True) as connection, connection.cursor() as cursor:
            for text in statements:
                statement: Any = text
                cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    # The view `outcomes` is created by a late migration, after the tables.
    execute(f"create schema {schema}", f"create view {schema}.outcomes as select 1")

    def unblock() -> None:
        names = f"select relname from pg_class where relnamespace = '{schema}'::regnamespace"
        assert [("outcomes",)] == execute(names)
        execute(f"drop view {schema}.outcomes")

    return unblock


#: Scheme -> function that creates an object with a name that a new storage needs, and returns a function that
#: removes it. That function fails if the storage has left other objects. Memory has no such objects.
BLOCK_CREATION: Final[dict[str, Callable[[str, Request], Callable[[], None]]]] = {
    "file": block_file,
    "redis": block_redis,
    "postgresql": block_postgres,
}
