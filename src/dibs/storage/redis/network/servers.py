"""Which server a key is on: the only one, or a node of a cluster; and one way to ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

from redis.asyncio.connection import AbstractConnection
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, ResponseError

from dibs.errors import StorageUnavailable
from dibs.storage.redis.network.connections import Connections
from dibs.storage.redis.network.errors import PASSING, refusal
from dibs.storage.redis.network.scripts import Script

#: Seconds between attempts while a server is loading or a cluster makes up its mind.
PATIENCE: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
REDIRECTIONS: Final = 5
#: What may pass, among what does not.
ANSWERS: Final = (*PASSING, ResponseError)


class Servers(Protocol):
    """One server or several."""

    async def call(self, key: str, *words: Any, repeatable: bool = False) -> Any:
        """Ask the server that has this key. Raises the driver's errors, StorageError, OutcomeUnknown."""
        ...

    async def park(
        self, key: str, first: tuple[Any, ...], words: tuple[Any, ...], patience: float
    ) -> list[Any]:
        """Let the server that has this key wait with the one command, and then do the other."""
        ...

    async def everywhere(self, *words: Any) -> list[Any]:
        """Ask every server."""
        ...

    async def scan(self, pattern: str) -> list[bytes]:
        """Return the keys that match, from every server, a page at a time."""
        ...

    def listener(self) -> Connections:
        """Return connections to a server where every message can be heard."""
        ...

    async def close(self) -> None: ...


class OneServer:
    """A single Redis."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def call(self, key: str, *words: Any, repeatable: bool = False) -> Any:
        try:
            return await self._connections.call(*words, repeatable=repeatable)
        except ANSWERS as error:
            if not passes(error):
                raise
        return await patiently(lambda: self._connections.call(*words, repeatable=repeatable))

    async def park(
        self, key: str, first: tuple[Any, ...], words: tuple[Any, ...], patience: float
    ) -> list[Any]:
        return await self._connections.park(first, words, patience)

    async def everywhere(self, *words: Any) -> list[Any]:
        return [await self.call("", *words, repeatable=True)]

    async def scan(self, pattern: str) -> list[bytes]:
        return await _scan(self._connections, pattern)

    def listener(self) -> Connections:
        return self._connections

    async def close(self) -> None:
        await self._connections.close()


Address = tuple[str, int]


class Cluster:
    """A Redis Cluster: knows which node has which slot, and learns when it is told otherwise."""

    def __init__(
        self, make: Callable[[Address], AbstractConnection], first: Address, scheme: str, most: int
    ) -> None:
        self._make, self._first, self._scheme, self._most = make, first, scheme, most
        self._nodes: dict[Address, Connections] = {}
        self._slots: dict[int, Address] = {}

    async def call(self, key: str, *words: Any, repeatable: bool = False) -> Any:
        try:
            return await self._follow(key, words, repeatable=repeatable)
        except ANSWERS as error:
            if not passes(error):
                raise
        return await patiently(lambda: self._follow(key, words, repeatable=repeatable))

    async def _follow(self, key: str, words: tuple[Any, ...], *, repeatable: bool) -> Any:
        slot = key_slot(key.encode())
        if slot not in self._slots:
            await self._learn()
        address, asking = self._slots.get(slot, self._first), False
        for _ in range(REDIRECTIONS):
            try:
                return await self._node(address).call(*words, repeatable=repeatable, asking=asking)
            except AskError as told:
                address, asking = self._address(told, address), True
            except MovedError as told:
                address, asking = self._address(told, address), False
                self._slots[slot] = address
            except StorageUnavailable:
                # The node may be gone for good, and its slots with another.
                if not await self._learn() or self._slots.get(slot) == address:
                    raise
                address = self._slots[slot]
        raise StorageUnavailable(f"{self._scheme}: sent from node to node {REDIRECTIONS} times")

    async def park(
        self, key: str, first: tuple[Any, ...], words: tuple[Any, ...], patience: float
    ) -> list[Any]:
        # A key that has moved is an error of both commands, and whoever asks goes the common way.
        address = self._slots.get(key_slot(key.encode()), self._first)
        return await self._node(address).park(first, words, patience)

    def _address(self, told: AskError, asked: Address) -> Address:
        return (told.host or asked[0], int(told.port))

    async def _learn(self) -> bool:
        """Ask any node who has which slots; tell whether one answered."""
        for address in [*self._nodes, self._first]:
            try:
                slots = await self._node(address).call("CLUSTER", "SLOTS", repeatable=True)
            except StorageUnavailable:
                if address == self._first and not self._slots:
                    raise
                continue
            self._take_in(slots, address)
            return True
        return False

    def _take_in(self, slots: Iterable[Any], asked: Address) -> None:
        for first, last, primary, *_ in slots:
            address = (primary[0].decode() or asked[0], int(primary[1]))
            self._slots.update(dict.fromkeys(range(first, last + 1), address))

    def _node(self, address: Address) -> Connections:
        if address not in self._nodes:
            place = f"{self._scheme}://{address[0]}:{address[1]}"
            self._nodes[address] = Connections(lambda: self._make(address), place, self._most)
        return self._nodes[address]

    async def everywhere(self, *words: Any) -> list[Any]:
        if not self._slots:
            await self._learn()
        addresses = sorted(set(self._slots.values()))
        return [await self._node(address).call(*words, repeatable=True) for address in addresses]

    async def scan(self, pattern: str) -> list[bytes]:
        if not self._slots:
            await self._learn()
        found = [await _scan(self._node(address), pattern) for address in set(self._slots.values())]
        return [key for keys in found for key in keys]

    def listener(self) -> Connections:
        # A message published anywhere in a cluster is heard everywhere.
        return self._node(next(iter(self._slots.values()), self._first))

    async def close(self) -> None:
        for node in self._nodes.values():
            await node.close()


async def _scan(connections: Connections, pattern: str) -> list[bytes]:
    cursor, found = b"0", set[bytes]()
    while True:
        cursor, page = await connections.call(
            "SCAN", cursor, "MATCH", pattern, "COUNT", 1000, repeatable=True
        )
        found.update(page)
        if cursor == b"0":
            return sorted(found)


def passes(error: RedisError) -> bool:
    """Tell whether nothing was run, and soon it may be."""
    return isinstance(error, PASSING) or str(error).startswith("LOADING")


async def patiently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask again for a while, after an answer that passes."""
    for pause in PATIENCE[:-1]:
        await asyncio.sleep(pause)
        try:
            return await ask()
        except ANSWERS as error:
            if not passes(error):
                raise
    await asyncio.sleep(PATIENCE[-1])
    return await ask()


async def run(
    servers: Servers,
    place: str,
    script: Script,
    keys: list[str],
    words: list[Any],
    *,
    repeatable: bool = False,
) -> Any:
    """Run a script where its first key is. Raises StorageError, OutcomeUnknown."""
    try:
        try:
            return await servers.call(
                keys[0], "EVALSHA", script.sha, len(keys), *keys, *words, repeatable=repeatable
            )
        except NoScriptError:
            # Proof that it did not run: sending it in full cannot run it twice.
            return await servers.call(
                keys[0], "EVAL", script.text, len(keys), *keys, *words, repeatable=repeatable
            )
    except RedisError as error:
        raise refusal(error, place) from None
