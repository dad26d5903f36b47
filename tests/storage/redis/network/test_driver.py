"""The undocumented parts of redis-py that dibs uses are where they were."""

from __future__ import annotations

import asyncio
import tomllib
from importlib.metadata import version

import pytest
from redis.asyncio import connection as redis_connection
from redis.asyncio.connection import Connection
from redis.exceptions import MovedError, NoScriptError, ResponseError

from dibs.storage.redis.network import driver
from dibs_conformance.servers import RedisServer
from tests.source import PROJECT

ADVICE = "adapt src/dibs/storage/redis/network/driver.py, and the versions of redis in pyproject.toml"


def moved(part: str) -> str:
    return f"redis {version('redis')} has moved or changed {part}: {ADVICE}"


@pytest.mark.parametrize(
    ("attribute", "kind"), [("_writer", asyncio.StreamWriter), ("_reader", asyncio.StreamReader)]
)
async def test_an_open_connection_has_its_streams(
    redis_server: RedisServer, attribute: str, kind: type[object]
) -> None:
    connection = Connection(host="127.0.0.1", port=redis_server.port, password=redis_server.password)
    await connection.connect()  # type: ignore[no-untyped-call]
    stream = getattr(connection, attribute, None)
    await connection.disconnect()

    assert isinstance(stream, kind), moved(f"Connection.{attribute}")


async def test_a_connection_without_its_stream_counts_as_closed(redis_server: RedisServer) -> None:
    connection = Connection(host="127.0.0.1", port=redis_server.port, password=redis_server.password)
    await connection.connect()  # type: ignore[no-untyped-call]

    writer = driver.detach_stream(connection)

    assert writer is not None, moved("Connection._writer")
    assert not connection.is_connected, moved("Connection.is_connected, which reads _reader and _writer")
    assert driver.detach_stream(connection) is None
    writer.close()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("MOVED 1 127.0.0.1:7000", MovedError),
        ("NOSCRIPT No matching script", NoScriptError),
        ("ERR unknown command", ResponseError),
    ],
)
def test_the_parser_makes_errors_of_replies(text: str, kind: type[Exception]) -> None:
    assert hasattr(redis_connection.DefaultParser, "parse_error"), moved("DefaultParser.parse_error")
    assert isinstance(driver.parse_error(text), kind), moved("DefaultParser.parse_error")  # type: ignore[no-untyped-call]


def test_a_url_gives_the_class_and_the_options_of_connections() -> None:
    pool = redis_connection.ConnectionPool.from_url("rediss://:secret@example.org:1/2")

    assert issubclass(pool.connection_class, redis_connection.SSLConnection), moved(
        "ConnectionPool.connection_class"
    )
    assert {"host": "example.org", "port": 1, "db": 2}.items() <= pool.connection_kwargs.items(), moved(
        "ConnectionPool.connection_kwargs"
    )


def test_a_key_has_the_slot_of_its_hash_tag() -> None:
    assert 12182 == driver.key_slot(b"foo") == driver.key_slot(b"x{foo}y"), moved("redis.crc.key_slot")


def test_the_next_major_version_of_redis_is_excluded() -> None:
    """A new major version may move any of these parts, so run these tests before raising the limit."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    (requirement,) = [one for one in project["dependencies"] if one.startswith("redis[")]

    assert requirement.endswith(",<9")
