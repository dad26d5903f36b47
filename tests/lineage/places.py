"""On which storages each proof runs, and an empty place for it on any of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

#: Every test of this folder runs on each of these. To take a storage in, name it here.
STORAGES: Final = ("memory", "file", "redis", "postgres")

Ask = pytest.FixtureRequest


def memory_place(ask: Ask) -> str:
    return f"memory:lineage-{uuid4().hex}"


def file_place(ask: Ask) -> str:
    folder: Path = ask.getfixturevalue("tmp_path")
    return f"file:{folder / uuid4().hex}"


def redis_place(ask: Ask) -> str:
    return f"{ask.getfixturevalue('redis_server').url}?prefix=lineage-{uuid4().hex}"


def postgres_place(ask: Ask) -> str:
    return f"{ask.getfixturevalue('postgres_server').url}?schema=lineage_{uuid4().hex[:20]}"


#: Makes the URL of a place that nobody has used.
PLACES: Final[dict[str, Callable[[Ask], str]]] = {
    "memory": memory_place,
    "file": file_place,
    "redis": redis_place,
    "postgres": postgres_place,
}


def newer_file(url: str, ask: Ask) -> None:
    (Path(url.removeprefix("file:")) / "format").write_text(json.dumps({"format": 2, "made_by": "dibs 2"}))


def newer_redis(url: str, ask: Ask) -> None:
    prefix = url.partition("?prefix=")[2]
    ask.getfixturevalue("redis_server").execute("SET", f"{prefix}:version", 1000)


def newer_postgres(url: str, ask: Ask) -> None:
    import psycopg

    address, _, schema = url.partition("?schema=")
    with psycopg.connect(address) as connection:
        statement: Any = f"insert into {schema}.migrations (number, name) values (1000, 'of a newer dibs')"
        connection.execute(statement)


#: Lets a newer major version have written at a place; one that ends with its process needs no such thing.
NEWER: Final[dict[str, Callable[[str, Ask], None]]] = {
    "file": newer_file,
    "redis": newer_redis,
    "postgresql": newer_postgres,
}
