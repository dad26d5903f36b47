"""All undocumented parts of redis-py that dibs uses, in one module.

redis-py opens a connection, with TLS and authentication, and has no public way to hand over its socket. A new
major version may move any of these parts, so pyproject.toml requires a version below the next major version.
If a part moves, tests/storage/redis/network/test_driver.py fails and names it.
"""

from __future__ import annotations

from asyncio import StreamWriter
from collections.abc import Callable, Mapping
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.asyncio.connection import ConnectionPool as RedisPyPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot

__all__ = [
    "AbstractConnection",
    "connection_factory",
    "detach_stream",
    "factory_of_class",
    "key_slot",
    "parse_error",
]

#: Converts the text of an error reply to an exception of redis-py: `MOVED ...` becomes MovedError.
parse_error: Final = DefaultParser.parse_error


def detach_stream(connection: AbstractConnection) -> StreamWriter | None:
    """Take the stream from an open connection; None if the server closed it after the handshake.

    The connection counts as closed afterwards.
    """
    writer, connection._writer, connection._reader = connection._writer, None, None  # noqa: SLF001
    return writer


def connection_factory(url: str) -> Callable[..., AbstractConnection]:
    """Return a function that creates connections, not yet connected, with the options of a URL.

    Keyword arguments of that function replace options. Raise TypeError or ValueError for a wrong option.
    """
    pool = RedisPyPool.from_url(url)
    return factory_of_class(pool.connection_class, pool.connection_kwargs)


def factory_of_class(
    connection_class: type[AbstractConnection], options: Mapping[str, Any]
) -> Callable[..., AbstractConnection]:
    """Return a function that creates connections of a class with these options, as `connection_factory`."""
    # Each connect is one attempt: first_that_answers in connections.py decides about retries. Without
    # driver_info=None redis-py reads its version from disk for each connection, 2 ms, to send it to the
    # server.
    options = {
        **options,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,
        "decode_responses": False,
        "driver_info": None,
    }
    connection_class(**options)
    return lambda **replaced: connection_class(**{**options, **replaced})
