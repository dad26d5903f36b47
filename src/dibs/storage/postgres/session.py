"""The base class of PostgresStorage, which opens and closes it, checks arguments, and runs queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from msgspec import UNSET, UnsetType
from psycopg import BaseConnection

from dibs.errors import Refused, StorageDamaged
from dibs.model.findings import Finding
from dibs.model.limits import LIMITS, Limits
from dibs.model.requests import EnqueueRequest, Settlement
from dibs.storage import checks, clock
from dibs.storage.postgres import diagnosis
from dibs.storage.postgres.codec import parameters
from dibs.storage.postgres.codec.parameters import sendable_id
from dibs.storage.postgres.codec.positions import RowPositions
from dibs.storage.postgres.codec.rows import UnreadableRow
from dibs.storage.postgres.line_starts import LineStarts
from dibs.storage.postgres.network.address import PostgresAddress
from dibs.storage.postgres.network.server import PostgresDatabase
from dibs.storage.postgres.vacuum import Vacuum
from dibs.storage.postgres.wakeups.wait import PostgresWaits
from dibs.storage.protocol import Clock

P = ParamSpec("P")
T = TypeVar("T")
#: The largest `limit` that is sent to the server. Larger limits are cut to it, because the SQL functions take
#: an integer of 32 bits.
MAX_LIMIT: Final = 1_000_000


class PostgresSession:
    """The state and the methods that the verbs in storage.py and transactions on it share."""

    def __init__(self, address: PostgresAddress, *, clock: Clock = "system", limits: Limits = LIMITS) -> None:
        self.url = address.display_url
        self.limits = limits
        self._address = address
        self._manual = clock == "manual"
        self._server = PostgresDatabase(address)
        self._waits = PostgresWaits(self._server, address.poll, manual=self._manual)
        self._vacuum = Vacuum(self._server)
        self._starts = LineStarts(self._server, manual=self._manual)
        #: The longest wait for a lock in ms, as text for lock_timeout; None for the setting of the server.
        self._lock_ms: str | None = None
        #: Queues whose row in the table `queues` is known to exist.
        self._registered: set[str] = set()
        self._positions = RowPositions()

    @property
    def durability(self) -> str:
        return self._server.durability

    async def __aenter__(self) -> Self:
        await self._server.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._waits.close()
        await self._starts.close()
        await self._vacuum.close()
        await self._server.close()

    async def diagnose(self) -> list[Finding]:
        """Examine the server; see dibs.storage.abilities.Diagnosis."""
        return await diagnosis.diagnose(self._address, self._server.queries)

    async def compact(self) -> None:
        """Vacuum the table of the waiting and active jobs now."""
        self._server.check_open()
        await self._vacuum.run()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def _time_parameter(self, now: int | None) -> int | None:
        """Return the parameter `now` of a query: a manual time in ms, or None for the server's clock."""
        self._server.check_open()
        checks.check_now(now, manual=self._manual)
        return (now or 0) if self._manual else None

    def _report_lead(self, lead: int) -> None:
        """Warn if the time of the storage is ahead of its server's clock, once in this process."""
        clock.report_lead(self.url, lead)

    def _check_common(
        self, queue: str, now: int | None, limit_: int | UnsetType = UNSET, *, ids: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Check queue, limit, ids and time of a verb. Return the parameters `queue`, `now` and `limit`."""
        checks.check_queue(queue, limit_, ids=ids, within=self.limits)
        limit = 0 if limit_ is UNSET else min(limit_, MAX_LIMIT)
        return {"queue": queue, "now": self._time_parameter(now), "limit": limit}

    def decode(self, queue: str, decode: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Decode rows about a queue. Raise StorageDamaged for a row among them that cannot be read."""
        try:
            return decode(*args, **kwargs)
        except UnreadableRow as found:
            raise StorageDamaged(
                f"{self.url}: {found} in queue {queue!r} is damaged; correct its row, restore a backup, or "
                "remove the job with forget"
            ) from None

    async def _run_write(self, name: str, params: dict[str, Any]) -> list[Any]:
        if self._lock_ms is None:
            return await self._server.fetch(self._server.queries[name], params, writes=True)
        params["lock_ms"] = self._lock_ms
        return await self._server.write_lock_limited(name, params)

    def limit_lock_waits(self, seconds: float) -> Self:
        """Return this storage with verbs that wait at most `seconds` for a lock, and then raise StorageBusy.

        It shares the connections of this storage, and ends when this storage is closed.
        """
        limited = copy(self)
        limited._lock_ms = str(max(1, round(seconds * 1000)))  # noqa: SLF001 - a copy of this object
        return limited

    async def _run_read(self, name: str, params: dict[str, Any]) -> list[Any]:
        return await self._server.fetch(self._server.queries[name], params, writes=False)

    async def _run_for_value(self, name: str, params: dict[str, Any]) -> Any:
        """Run a query that writes and returns one value, and return that value."""
        return (await self._run_write(name, params))[0][0]

    # -- parameters of the verbs that also run in the caller's transaction ----------------------------

    def enqueue_query(
        self, queue: str, requests: Sequence[EnqueueRequest], now: int | None
    ) -> tuple[str, dict[str, Any]]:
        """Check the arguments of an enqueue. Return the name of its query and the parameters.

        One request that sets only id and payload has a query of its own. Requests that want the outcome of an
        earlier run need another one, with more columns.
        """
        checked = checks.check_enqueue(queue, requests, self.limits)
        params = {"queue": queue, "now": self._time_parameter(now), **parameters.encode_requests(checked)}
        if "id" in params:
            return "enqueue_one", params
        return "enqueue" if params["wants"] is None else "enqueue_wanting", params

    def settle_params(
        self, queue: str, settlements: Sequence[Settlement], now: int | None
    ) -> tuple[dict[str, Any], list[str]]:
        """Check the arguments of a settle. Return its parameters, and the reasons to refuse settlements.

        There is one reason for each settlement, "" for a valid one.
        """
        checks.check_settle(queue, settlements, self.limits)
        params, reasons = parameters.encode_settlements(settlements, self.limits, self._positions)
        return {**self._check_common(queue, now), **params}, reasons

    def report_params(
        self,
        queue: str,
        id: str,
        fence: int,
        progress: bytes | None,
        memo: bytes | None,
        now: int | None,
        *,
        output: Sequence[bytes] = (),
    ) -> dict[str, Any]:
        """Check the arguments of a report, and return its parameters."""
        checks.check_report(
            queue, progress, memo, self.limits, id=id, fence=fence, output=output, keeps_output=True
        )
        return {
            "id": sendable_id(id),
            "fence": fence,
            "progress": None if progress is None else progress.decode(),
            "memo": memo,
            "output": list(output) or None,
            "most": self.limits.output,
            **self._check_common(queue, now),
        }

    # -- statements on the caller's connection --------------------------------------------------------

    def joined_query(self, name: str, params: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        """Return a query for the caller's transaction, ready to send, and its parameters."""
        return self._server.queries.joined(name), {**params, "identity": self._server.identity}

    @property
    def prepare(self) -> bool | None:
        """The argument `prepare` of psycopg for the caller's connection: False behind a pooler, else None."""
        return None if self._server.check_open().prepares else False

    def raising_callers_errors(self, connection: BaseConnection[Any]) -> AbstractContextManager[None]:
        """Convert psycopg's errors in a `with` block, except those of the caller's transaction."""
        return self._server.raising_callers_errors(connection)

    def refuse_other_database(self, connection: BaseConnection[Any]) -> Refused:
        """Return the Refused for a caller's connection to a database without the schema of this storage."""
        return self._server.refuse_other_database(connection)

    async def register_queues(self, queues: Sequence[str]) -> None:
        """Insert the rows of new queues, in a separate transaction that commits at once.

        In the caller's transaction, the row would block other enqueues to the queue until the caller commits.
        """
        if fresh := [queue for queue in queues if queue not in self._registered]:
            await self._run_write("register_queues", {"queues": fresh})
            self._registered.update(fresh)

    def register_queues_blocking(self, queues: Sequence[str]) -> None:
        """Insert the rows of new queues like register_queues(), but without an event loop."""
        if fresh := [queue for queue in queues if queue not in self._registered]:
            self._server.run_blocking(self._server.queries["register_queues"], {"queues": fresh})
            self._registered.update(fresh)

    async def register_fail_queue(self, queue: str) -> bool:
        """Return the setting `fail_handler` of a queue. If it is True, insert the row of its fail queue."""
        handled: bool = await self._run_for_value("register_fail_queue", {"queue": queue})
        return handled

    def register_fail_queue_blocking(self, queue: str) -> bool:
        """Do the same as register_fail_queue(), but without an event loop."""
        query = self._server.queries["register_fail_queue"]
        handled: bool = self._server.run_blocking(query, {"queue": queue})[0][0]
        return handled
