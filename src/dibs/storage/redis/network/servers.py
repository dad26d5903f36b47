"""Sending of commands and scripts to the server that holds a key: a single server, or a node of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

from attrs import define, field
from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, ResponseError

from dibs.errors import StorageUnavailable
from dibs.storage.redis.network.connections import ConnectionPool
from dibs.storage.redis.network.driver import AbstractConnection, key_slot
from dibs.storage.redis.network.errors import TRANSIENT, translate_error
from dibs.storage.redis.network.scripts import Script

#: Seconds between attempts while a server is loading or a cluster elects a primary.
RETRY_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
MAX_REDIRECTS: Final = 5
#: The error replies for which `is_transient` may return True.
ERROR_REPLIES: Final = (*TRANSIENT, ResponseError)


class Servers(Protocol):
    """The servers of one storage: a single server (OneServer) or the nodes of a cluster (Cluster)."""

    async def call(self, key: str, *command: Any, repeatable: bool = False) -> Any:
        """Send a command to the server of this key, and return its reply.

        A `repeatable` command is sent again if its reply is lost. Raise redis-py's error for an error reply,
        StorageError if the server cannot be reached, and OutcomeUnknown if the reply was lost.
        """
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

    async def scan_keys(self, pattern: str) -> list[bytes]:
        """Return the keys of all servers that match a glob pattern, as in `dibs:*`."""
        ...

    def subscriber(self) -> ConnectionPool:
        """Return the pool of a server on which a subscription receives all published messages."""
        ...

    async def close(self) -> None: ...


@define(eq=False)
class OneServer:
    """A single Redis server, which holds all keys and needs no routing."""

    _connections: ConnectionPool

    async def call(self, key: str, *command: Any, repeatable: bool = False) -> Any:
        try:
            return await self._connections.call(*command, repeatable=repeatable)
        except ERROR_REPLIES as error:
            if not is_transient(error):
                raise
        return await retry_while_transient(lambda: self._connections.call(*command, repeatable=repeatable))

    async def call_blocking(
        self, key: str, blocking: tuple[Any, ...], command: tuple[Any, ...], timeout: float
    ) -> list[Any]:
        return await self._connections.call_blocking(blocking, command, timeout)

    async def call_all(self, *command: Any) -> list[Any]:
        return [await self.call("", *command, repeatable=True)]

    async def scan_keys(self, pattern: str) -> list[bytes]:
        return await _scan_keys(self._connections, pattern)

    def subscriber(self) -> ConnectionPool:
        return self._connections

    async def close(self) -> None:
        await self._connections.close()


Address = tuple[str, int]


@define(eq=False)
class Cluster:
    """A Redis Cluster, which divides keys into slots and gives each slot to a node.

    The object keeps a map from slots to nodes, and corrects it when a node answers that a slot has moved.
    """

    _new_connection: Callable[[Address], AbstractConnection]
    #: The address in the URL. This node is asked for the map of slots first.
    _seed: Address
    _scheme: str
    _max_in_flight: int
    _nodes: dict[Address, ConnectionPool] = field(factory=dict, init=False)
    _slots: dict[int, Address] = field(factory=dict, init=False)

    async def call(self, key: str, *command: Any, repeatable: bool = False) -> Any:
        try:
            return await self._call_with_redirects(key, command, repeatable=repeatable)
        except ERROR_REPLIES as error:
            if not is_transient(error):
                raise
        return await retry_while_transient(
            lambda: self._call_with_redirects(key, command, repeatable=repeatable)
        )

    async def _call_with_redirects(self, key: str, command: tuple[Any, ...], *, repeatable: bool) -> Any:
        slot = key_slot(key.encode())
        if slot not in self._slots:
            await self._load_slots()
        address, asking = self._slots.get(slot, self._seed), False
        for _ in range(MAX_REDIRECTS):
            try:
                return await self._pool_of_node(address).call(*command, repeatable=repeatable, asking=asking)
            except AskError as redirect:
                address, asking = self._redirect_address(redirect, address), True
            except MovedError as redirect:
                address, asking = self._redirect_address(redirect, address), False
                self._slots[slot] = address
            except StorageUnavailable:
                # After a failover another node has the slots of a lost node.
                if not await self._load_slots() or self._slots.get(slot) == address:
                    raise
                address = self._slots[slot]
        raise StorageUnavailable(
            f"{self._scheme}: the nodes redirected a command {MAX_REDIRECTS} times; retry in some seconds"
        )

    async def call_blocking(
        self, key: str, blocking: tuple[Any, ...], command: tuple[Any, ...], timeout: float
    ) -> list[Any]:
        # This method follows no redirects. If the slot has moved, both commands fail, and the caller then
        # uses `call`.
        address = self._slots.get(key_slot(key.encode()), self._seed)
        return await self._pool_of_node(address).call_blocking(blocking, command, timeout)

    def _redirect_address(self, redirect: AskError, sender: Address) -> Address:
        return (redirect.host or sender[0], int(redirect.port))

    async def _load_slots(self) -> bool:
        """Read the map of slots from the first node that answers. Return False if no node answers."""
        for address in [*self._nodes, self._seed]:
            try:
                slots = await self._pool_of_node(address).call("CLUSTER", "SLOTS", repeatable=True)
            except StorageUnavailable:
                if address == self._seed and not self._slots:
                    raise
                continue
            self._store_slots(slots, address)
            return True
        return False

    def _store_slots(self, slots: Iterable[Any], sender: Address) -> None:
        for first, last, primary, *_ in slots:
            address = (primary[0].decode() or sender[0], int(primary[1]))
            self._slots.update(dict.fromkeys(range(first, last + 1), address))

    def _pool_of_node(self, address: Address) -> ConnectionPool:
        if address not in self._nodes:
            url = f"{self._scheme}://{address[0]}:{address[1]}"
            self._nodes[address] = ConnectionPool(
                lambda: self._new_connection(address), url, self._max_in_flight
            )
        return self._nodes[address]

    async def call_all(self, *command: Any) -> list[Any]:
        if not self._slots:
            await self._load_slots()
        addresses = sorted(set(self._slots.values()))
        return [await self._pool_of_node(address).call(*command, repeatable=True) for address in addresses]

    async def scan_keys(self, pattern: str) -> list[bytes]:
        if not self._slots:
            await self._load_slots()
        found = [
            await _scan_keys(self._pool_of_node(address), pattern) for address in set(self._slots.values())
        ]
        return [key for keys in found for key in keys]

    def subscriber(self) -> ConnectionPool:
        # A cluster sends each published message to all nodes, so any node will do.
        return self._pool_of_node(next(iter(self._slots.values()), self._seed))

    async def close(self) -> None:
        for node in self._nodes.values():
            await node.close()


async def _scan_keys(connections: ConnectionPool, pattern: str) -> list[bytes]:
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


async def retry_while_transient(call: Callable[[], Awaitable[Any]]) -> Any:
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


async def run_script(
    servers: Servers,
    url: str,
    script: Script,
    keys: list[str],
    arguments: list[Any],
    *,
    repeatable: bool = False,
) -> Any:
    """Run a script on the server of its first key, and return its reply.

    The script is sent by its hash, and with its text only if the server does not know it yet. Raise
    StorageError, or OutcomeUnknown if the reply was lost.
    """
    try:
        try:
            return await servers.call(
                keys[0], "EVALSHA", script.sha, len(keys), *keys, *arguments, repeatable=repeatable
            )
        except NoScriptError:
            # Proof that the script did not run, so EVAL with its text cannot run it twice.
            return await servers.call(
                keys[0], "EVAL", script.text, len(keys), *keys, *arguments, repeatable=repeatable
            )
    except RedisError as error:
        raise translate_error(error, url) from None
