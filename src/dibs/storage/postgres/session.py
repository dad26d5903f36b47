"""The door of the Postgres storage: opening, what every verb checks, and the way to a statement."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Self, overload

from psycopg import AsyncConnection, BaseConnection
from psycopg import Connection as SyncConnection

from dibs.errors import Refused
from dibs.model.limits import LIMITS, Limits
from dibs.model.requests import EnqueueRequest, Settlement
from dibs.storage import checks
from dibs.storage.postgres.codec import parameters as asking
from dibs.storage.postgres.network.address import Address
from dibs.storage.postgres.network.server import Server
from dibs.storage.postgres.sweeper import Sweeper
from dibs.storage.postgres.transactions import Joined, JoinedAsync
from dibs.storage.postgres.wakeups.wait import Waiting
from dibs.storage.protocol import Clock

#: More than this at once is no batch any more, and an int in SQL.
MOST: Final = 1_000_000


class Door:
    """What the verbs in storage.py stand on."""

    def __init__(self, address: Address, *, clock: Clock = "system", limits: Limits = LIMITS) -> None:
        self.url = address.shown
        self.limits = limits
        self._manual = clock == "manual"
        self._server = Server(address)
        self._waiting = Waiting(self._server, address.poll, manual=self._manual)
        self._sweeper = Sweeper(self._server)
        self._known: set[str] = set()

    @property
    def durability(self) -> str:
        return self._server.durability

    async def __aenter__(self) -> Self:
        await self._server.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._waiting.close()
        await self._sweeper.close()
        await self._server.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def _at(self, now: int | None) -> int | None:
        """Return the time to send: NULL for the server's own."""
        self._server.check_open()
        checks.check_now(now, manual=self._manual)
        return (now or 0) if self._manual else None

    def _call(
        self, queue: str, now: int | None, limit_: int | None = None, *, ids: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Check what every verb takes, and return it as parameters."""
        checks.check_queue(queue, limit_, ids=ids, within=self.limits)
        return {"queue": queue, "now": self._at(now), "limit": min(limit_ or 0, MOST)}

    async def _write(self, name: str, params: dict[str, Any]) -> list[Any]:
        return await self._server.fetch(self._server.queries[name], params, writes=True)

    async def _read(self, name: str, params: dict[str, Any]) -> list[Any]:
        return await self._server.fetch(self._server.queries[name], params, writes=False)

    async def _answer(self, name: str, params: dict[str, Any]) -> Any:
        """Return the one value of a function that answers with one."""
        return (await self._write(name, params))[0][0]

    # -- what travels ---------------------------------------------------------------------------------

    def asked(self, queue: str, requests: Sequence[EnqueueRequest], now: int | None) -> tuple[str, dict[str, Any]]:
        """Check an enqueue, and return its query and parameters."""
        checked = checks.check_enqueue(queue, requests, self.limits)
        params = {"queue": queue, "now": self._at(now), **asking.requests(checked)}
        return "enqueue" if params["wants"] is None else "enqueue_wanting", params

    def settling(
        self, queue: str, settlements: Sequence[Settlement], now: int | None
    ) -> tuple[dict[str, Any], list[str]]:
        """Check a settle, and return its parameters and the reasons of what is refused."""
        params, reasons = asking.settlements(settlements, self.limits)
        return {**self._call(queue, now), **params}, reasons

    # -- in a transaction of the caller's ------------------------------------------------------------

    def crossing(self, connection: BaseConnection[Any]) -> AbstractContextManager[None]:
        """Turn what the driver raises on a connection of the caller's into our errors."""
        return self._server.crossing(connection)

    async def know(self, queues: Sequence[str]) -> None:
        """Let queues have their rows, apart from any transaction of the caller's."""
        if fresh := [queue for queue in queues if queue not in self._known]:
            await self._write("know", {"queues": fresh})
            self._known.update(fresh)

    def know_blocking(self, queues: Sequence[str]) -> None:
        """Do the same on the caller's thread."""
        if fresh := [queue for queue in queues if queue not in self._known]:
            self._server.run_blocking(self._server.queries["know"], {"queues": fresh})
            self._known.update(fresh)

    def query(self, name: str) -> bytes:
        """Return the text of a verb."""
        return self._server.queries[name]

    @overload
    def in_transaction(self, connection: AsyncConnection[Any]) -> JoinedAsync: ...
    @overload
    def in_transaction(self, connection: SyncConnection[Any]) -> Joined: ...

    def in_transaction(self, connection: Any) -> JoinedAsync | Joined:
        """Return enqueue and settle as part of whatever transaction the connection is in.

        On a Connection without asyncio they are plain calls, on the caller's own thread.
        """
        if isinstance(connection, SyncConnection):
            return Joined(self, connection)
        if isinstance(connection, AsyncConnection):
            return JoinedAsync(self, connection)
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise Refused(f"{kind} is no connection of psycopg 3", field="connection")
