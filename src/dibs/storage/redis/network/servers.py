"""Sending of commands to the server that holds a key.

The server is a single one (OneServer), or a node of a cluster (storage/redis/network/cluster.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from attrs import define, field
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from dibs.storage.redis.network.blocking import BlockingConnections
from dibs.storage.redis.network.connections import RedisConnections
from dibs.storage.redis.network.errors import TRANSIENT, is_read_only
from dibs.storage.redis.network.wire import WireConnection

if TYPE_CHECKING:
    from dibs.storage.redis.network.sentinel import SentinelAddress

T = TypeVar("T")

#: Seconds between attempts while a server is loading or a cluster elects a primary.
RETRY_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
#: The error replies for which `is_transient` may return True.
ERROR_REPLIES: Final = (*TRANSIENT, ResponseError)


class Servers(Protocol):
    """The servers of one storage: a single server (OneServer) or the nodes of a cluster (Cluster)."""

    @property
    def url(self) -> str:
        """The URL without a password, for messages."""
        ...

    @property
    def database(self) -> int:
        """The number of the database; 0 in a cluster."""
        ...

    async def call(
        self, key: str, *command: Any, repeatable: bool = False, ahead: Sequence[tuple[Any, ...]] = ()
    ) -> Any:
        """Send a command to the server of this key, and return its reply.

        The commands `ahead` go to the same server in the same request. A `repeatable` command is sent again
        if its reply is lost. Raise redis-py's error for an error reply, StorageError if the server cannot be
        reached, and OutcomeUnknown if the reply was lost.
        """
        ...

    def start(self, key: str, packed: bytes, on_reply: Callable[[Any], None], *, earlier: int = 0) -> bool:
        """Send a packed command now, if a connection is ready, and call `on_reply` when its reply arrives.

        `packed` has `earlier` other commands before it. Return False if it was not sent. `on_reply` gets the
        reply, redis-py's error for an error reply, or OutcomeUnknown; it must raise no error.
        """
        ...

    @property
    def for_threads(self) -> BlockingConnections | None:
        """The connections for threads without an event loop, or None."""
        ...

    async def call_blocking(
        self, key: str, blocking: tuple[Any, ...], command: tuple[Any, ...], timeout: float
    ) -> list[Any]:
        """Send the command `blocking`, which waits for up to `timeout` s at the server, then `command`.

        Return both replies. Both go to the server of this key on one connection.
        """
        ...

    async def call_all(self, *command: Any) -> list[Any]:
        """Send a repeatable command to every server, and return one reply per server."""
        ...

    async def try_on_each(self, commands: Sequence[tuple[Any, ...]]) -> list[list[Any] | NoPermissionError]:
        """Return what each server replies to commands that it does not execute; see `try_commands`."""
        ...

    async def scan_keys(self, pattern: str) -> list[bytes]:
        """Return the keys of all servers that match a glob pattern, as in `dibs:*`."""
        ...

    async def connect_subscriber(self) -> WireConnection:
        """Return a new connection to a server on which a subscription receives all published messages.

        Raise StorageUnavailable if no server can be reached.
        """
        ...

    async def close(self) -> None: ...


@define(eq=False)
class OneServer:
    """A single Redis server, which holds all keys and needs no routing."""

    _connections: RedisConnections
    database: int = 0
    _sentinel: SentinelAddress | None = None
    for_threads: BlockingConnections | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.for_threads = BlockingConnections(self._connections.connect_once, self.url)

    @property
    def url(self) -> str:
        return self._connections.url

    async def call(
        self, key: str, *command: Any, repeatable: bool = False, ahead: Sequence[tuple[Any, ...]] = ()
    ) -> Any:
        send = partial(self._connections.call, *command, repeatable=repeatable, ahead=ahead)
        try:
            return await send()
        except ERROR_REPLIES as error:
            if is_read_only(error):
                # The server was demoted. A new connection may reach the one that took its place.
                return await send()
            if not is_transient(error):
                raise
        return await retry_while_transient(send)

    def start(self, key: str, packed: bytes, on_reply: Callable[[Any], None], *, earlier: int = 0) -> bool:
        return self._connections.start(packed, on_reply, earlier=earlier)

    async def call_blocking(
        self, key: str, blocking: tuple[Any, ...], command: tuple[Any, ...], timeout: float
    ) -> list[Any]:
        return await self._connections.call_blocking(blocking, command, timeout)

    async def call_all(self, *command: Any) -> list[Any]:
        return [await self.call("", *command, repeatable=True)]

    async def try_on_each(self, commands: Sequence[tuple[Any, ...]]) -> list[list[Any] | NoPermissionError]:
        return [await retried(lambda: self._connections.try_commands(commands))]

    async def scan_keys(self, pattern: str) -> list[bytes]:
        return await scan_keys(self._connections, pattern)

    async def connect_subscriber(self) -> WireConnection:
        return await self._connections.connect()

    async def close(self) -> None:
        if self.for_threads is not None:
            await self.for_threads.close()
        await self._connections.close()
        if self._sentinel is not None:
            await self._sentinel.close()


async def scan_keys(connections: RedisConnections, pattern: str) -> list[bytes]:
    """Return the keys of one server that match a glob pattern."""
    cursor, found = b"0", set[bytes]()
    while True:
        cursor, page = await connections.call(
            "SCAN", cursor, "MATCH", pattern, "COUNT", 1000, repeatable=True
        )
        found.update(page)
        if cursor == b"0":
            return sorted(found)


def is_transient(error: RedisError) -> bool:
    """Return whether the error says that the command did not run but may succeed soon, as in a failover."""
    return isinstance(error, TRANSIENT) or str(error).startswith("LOADING")


async def retried(call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a call, and repeat it while its error is transient; see retry_while_transient."""
    try:
        return await call()
    except ERROR_REPLIES as error:
        if not is_transient(error):
            raise
    return await retry_while_transient(call)


async def retry_while_transient(call: Callable[[], Awaitable[T]]) -> T:
    """Call again after each of RETRY_PAUSES (1.55 s in total) while the error is transient.

    Raise the error of the last call.
    """
    for pause in RETRY_PAUSES[:-1]:
        await asyncio.sleep(pause)
        try:
            return await call()
        except ERROR_REPLIES as error:
            if not is_transient(error):
                raise
    await asyncio.sleep(RETRY_PAUSES[-1])
    return await call()
