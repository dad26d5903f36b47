"""The nodes of a Redis Cluster: the map from slots to nodes, redirects, and connections to any node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from attrs import define, field
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from dibs.errors import OutcomeUnknown, StorageError, StorageUnavailable
from dibs.storage.redis.network.address import NodeAddress
from dibs.storage.redis.network.blocking import BlockingConnections
from dibs.storage.redis.network.connections import (
    CONNECT_PAUSES,
    RedisConnections,
    first_that_answers,
)
from dibs.storage.redis.network.driver import AbstractConnection, key_slot
from dibs.storage.redis.network.servers import (
    retried,
    scan_keys,
)
from dibs.storage.redis.network.wire import WireConnection

MAX_REDIRECTS: Final = 5
#: Seconds from a MOVED reply until the map is read again. A resharding sends many of these replies.
REFRESH_PAUSE: Final = 1.0
#: A node that does not know the name of another node reports these; clients then use the address they have.
UNKNOWN_HOSTS: Final = ("", "?")


@define(eq=False)
class Cluster:
    """A Redis Cluster, which divides keys into slots and gives each slot to a node.

    The object keeps a map from slots to nodes. It corrects the map when a node answers that a slot has moved,
    and reads it again from any node when a node is lost.
    """

    _new_connection: Callable[[NodeAddress], AbstractConnection]
    #: The addresses in the URL. These nodes are asked for the first map of slots.
    _seeds: Sequence[NodeAddress]
    #: The URL with all seeds and without a password, for messages.
    url: str
    #: Limit of the requests in flight to each node.
    _max_in_flight: int
    #: Converts the address that a node has in the cluster to the address at which clients reach it.
    _remap: Callable[[NodeAddress], NodeAddress]
    _nodes: dict[NodeAddress, RedisConnections] = field(factory=dict, init=False)
    #: The primary of each slot.
    _slots: dict[int, NodeAddress] = field(factory=dict, init=False)
    #: The primaries and replicas in the latest map.
    _members: set[NodeAddress] = field(factory=set, init=False)
    #: Number of maps read so far.
    _map_number: int = field(default=0, init=False)
    _loading: asyncio.Lock = field(factory=asyncio.Lock, init=False)
    #: The task that reads the map again after a MOVED reply; None if no such reply has arrived.
    _refreshing: asyncio.Task[None] | None = field(default=None, init=False)
    #: The connection of the subscription and its node.
    _subscribed: tuple[NodeAddress, WireConnection] | None = field(default=None, init=False)

    async def call(
        self, key: str, *command: Any, repeatable: bool = False, ahead: Sequence[tuple[Any, ...]] = ()
    ) -> Any:
        return await retried(lambda: self._call_with_redirects(key, command, ahead, repeatable=repeatable))

    async def _call_with_redirects(
        self, key: str, command: tuple[Any, ...], ahead: Sequence[tuple[Any, ...]], *, repeatable: bool
    ) -> Any:
        slot, number = key_slot(key.encode()), self._map_number
        if slot not in self._slots:
            await self._load_slots(number, CONNECT_PAUSES)
        address, asking = self._slots.get(slot, self._seeds[0]), False
        for _ in range(MAX_REDIRECTS):
            number = self._map_number
            try:
                return await self._pool_of_node(address).call(
                    *command, repeatable=repeatable, asking=asking, ahead=ahead
                )
            except MovedError as redirect:  # before AskError, which is its base class
                address, asking = self._redirect_address(redirect, address), False
                self._slots[slot] = address
                self._refresh_soon()
            except AskError as redirect:
                address, asking = self._redirect_address(redirect, address), True
            except (StorageUnavailable, ClusterDownError):
                # After a failover another node has the slots of a lost node. A node that has left the cluster
                # replies that the cluster is down.
                await self._reload_slots(number, lost=address)
                if self._slots.get(slot) == address:
                    raise
                address, asking = self._slots[slot], False
        # Two nodes may redirect to each other while only one of them knows that the slot moves.
        raise TryAgainError(f"the nodes redirected a command {MAX_REDIRECTS} times")

    @property
    def database(self) -> int:
        return 0

    @property
    def for_threads(self) -> BlockingConnections | None:
        return None

    def start(self, key: str, packed: bytes, on_reply: Callable[[Any], None], *, earlier: int = 0) -> bool:
        # A redirection is an error reply, after which the caller uses `call`.
        address = self._slots.get(key_slot(key.encode()), self._seeds[0])
        return self._pool_of_node(address).start(packed, on_reply, earlier=earlier)

    async def call_blocking(
        self, key: str, blocking: tuple[Any, ...], command: tuple[Any, ...], timeout: float
    ) -> list[Any]:
        # This method follows no redirects. If the slot has moved, both commands fail, and the caller then
        # uses `call`.
        address, number = self._slots.get(key_slot(key.encode()), self._seeds[0]), self._map_number
        try:
            return await self._pool_of_node(address).call_blocking(blocking, command, timeout)
        except (StorageUnavailable, OutcomeUnknown):
            await self._reload_slots(number, lost=address)
            raise

    def _redirect_address(self, redirect: AskError, sender: NodeAddress) -> NodeAddress:
        host = redirect.host
        return self._remap((sender[0] if host in UNKNOWN_HOSTS else host, int(redirect.port)))

    # -- the map of slots ----------------------------------------------------------------------------

    async def _load_slots(
        self, number: int, pauses: tuple[float, ...], lost: NodeAddress | None = None
    ) -> None:
        """Read the map of slots from the first node that answers. Raise StorageUnavailable if none does.

        Try each node once after each pause in seconds, the node `lost` last. Do nothing if another caller has
        read a map since map `number`.
        """
        async with self._loading:
            if self._map_number != number:
                return
            known = dict.fromkeys([*self._slots.values(), *self._members, *self._seeds])
            addresses = sorted(known, key=lambda address: address == lost)
            await first_that_answers(
                [(address, self._pool_of_node(address)) for address in addresses],
                self._load_slots_from,
                self.url,
                pauses,
            )
            self._map_number += 1

    async def _load_slots_from(self, address: NodeAddress, pool: RedisConnections) -> None:
        # A new connection, because an idle one of a lost node answers only after REPLY_TIMEOUT.
        slots = await pool.call_on_new_connection("CLUSTER", "SLOTS")
        if not slots:
            raise RedisConnectionError(f"{pool.url} has no map of slots; is it a member of the cluster?")
        self._store_slots(slots, address)

    def _store_slots(self, slots: Iterable[Any], sender: NodeAddress) -> None:
        members: set[NodeAddress] = set()
        for first, last, *nodes in slots:
            addresses = [self._node_address(node, sender) for node in nodes]
            self._slots.update(dict.fromkeys(range(first, last + 1), addresses[0]))
            members.update(addresses)
        self._members = members
        if self._subscribed is not None and self._subscribed[0] not in members:
            # A node that has left the cluster gets no messages. The subscription connects to another one.
            self._subscribed[1].close()

    def _node_address(self, node: Sequence[Any], sender: NodeAddress) -> NodeAddress:
        host = (node[0] or b"").decode()
        return self._remap((sender[0] if host in UNKNOWN_HOSTS else host, int(node[1])))

    async def _reload_slots(self, number: int, lost: NodeAddress | None = None) -> None:
        """Read the map again, once from each node. If no node answers, keep the map."""
        with suppress(StorageError, RedisError):
            await self._load_slots(number, (0.0,), lost)

    def _refresh_soon(self) -> None:
        """Read the map again after REFRESH_PAUSE, unless a task that does so is running."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._refresh())

    async def _refresh(self) -> None:
        await asyncio.sleep(REFRESH_PAUSE)
        await self._reload_slots(self._map_number)

    # -- nodes ---------------------------------------------------------------------------------------

    def _pool_of_node(self, address: NodeAddress) -> RedisConnections:
        if address not in self._nodes:
            scheme = self.url.partition("://")[0]
            self._nodes[address] = RedisConnections(
                lambda: self._new_connection(address),
                f"{scheme}://{address[0]}:{address[1]}",
                self._max_in_flight,
            )
        return self._nodes[address]

    async def _primaries(self) -> list[RedisConnections]:
        if not self._slots:
            await self._load_slots(self._map_number, CONNECT_PAUSES)
        return [self._pool_of_node(address) for address in sorted(set(self._slots.values()))]

    async def call_all(self, *command: Any) -> list[Any]:
        return [await node.call(*command, repeatable=True) for node in await self._primaries()]

    async def try_on_each(self, commands: Sequence[tuple[Any, ...]]) -> list[list[Any] | NoPermissionError]:
        return [await retried(partial(node.try_commands, commands)) for node in await self._primaries()]

    async def scan_keys(self, pattern: str) -> list[bytes]:
        return [key for node in await self._primaries() for key in await scan_keys(node, pattern)]

    async def connect_subscriber(self) -> WireConnection:
        # A cluster sends each published message to all nodes, so any node will do.
        known = dict.fromkeys([*self._slots.values(), *self._seeds])
        nodes = [(address, self._pool_of_node(address)) for address in known]
        self._subscribed = await first_that_answers(nodes, _connect_to_node, self.url, CONNECT_PAUSES)
        return self._subscribed[1]

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait({self._refreshing})
        for node in self._nodes.values():
            await node.close()


async def _connect_to_node(
    address: NodeAddress, pool: RedisConnections
) -> tuple[NodeAddress, WireConnection]:
    return address, await pool.connect_once()
