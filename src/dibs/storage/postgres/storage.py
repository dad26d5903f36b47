"""The verbs of the Postgres storage: each checks its arguments, runs one statement, and decodes its rows.

The SQL functions in functions/ decide what a verb does. dibs.storage.protocol documents the verbs.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, overload

from attrs import evolve
from psycopg import AsyncConnection
from psycopg import Connection as BlockingConnection

from dibs.errors import Refused
from dibs.model.check_arguments import MOST_SHARES, check_share_count
from dibs.model.job import EMPTY, Slot
from dibs.model.requests import Complete, End, EnqueueRequest, JobPatch, Settings, SettingsPatch, Settlement
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    ClaimResult,
    Counts,
    EnqueueResult,
    EventPage,
    ExportPage,
    ExportRecord,
    FinishStatus,
    GrantResult,
    ImportStatus,
    ListPage,
    PruneResult,
    QueueInfo,
    ReapedJob,
    RenewResult,
    ReportStatus,
    RetryFailedStatus,
    SettleResult,
    State,
    WaitResult,
)
from dibs.storage import checks
from dibs.storage.capabilities import Capabilities
from dibs.storage.postgres.codec import event_log, parameters, rows
from dibs.storage.postgres.codec.parameters import sendable_id, sendable_lease
from dibs.storage.postgres.direct_enqueue import PostgresDirectEnqueue
from dibs.storage.postgres.key_sets import KeySetSession
from dibs.storage.postgres.many_queues import ManyQueuesSession
from dibs.storage.postgres.network.address import parse_url
from dibs.storage.postgres.network.callers_errors import check_connection
from dibs.storage.postgres.network.pool_settings import PoolSettings
from dibs.storage.postgres.session import MAX_LIMIT
from dibs.storage.postgres.transactions import AsyncTransaction, BlockingTransaction
from dibs.storage.protocol import Clock, Watch


def open_url(
    url: str, *, clock: Clock = "system", pool: PoolSettings | None = None, **options: Any
) -> PostgresStorage:
    """Return the storage of a URL, not yet opened: postgresql://USER@HOST/DATABASE?schema=NAME.

    `pool` is the second value of `client_options`.
    """
    return PostgresStorage(evolve(parse_url(url, options), pool=pool), clock=clock)


class PostgresStorage(ManyQueuesSession, KeySetSession, PostgresDirectEnqueue):
    """Jobs in one schema of a Postgres database. Any number of processes may use it at the same time."""

    capabilities = Capabilities(
        durable=True,
        shared=True,
        cross_queue=True,
        transactions=True,
        push_wakeups=True,
        manual_clock=True,
        server_clock=True,
        limits=True,
        fair=True,
        output=True,
        many_queues=True,
    )

    # -- enqueue, claim, settle ----------------------------------------------------------------------

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> list[EnqueueResult]:
        name, params = self.enqueue_query(queue, requests, now)
        if not requests:
            return []
        return self.decode(queue, rows.decode_enqueued, await self._run_write(name, params), requests)

    async def claim(self, queue: str, lease: str, limit: int, *, now: int | None = None) -> ClaimResult:
        checks.check_claim(queue, lease, limit, self.limits)
        params = {**self._check_common(queue, now, limit), "lease": sendable_lease(lease)}
        token = self._waits.token(queue)
        return self._decode_claim(queue, await self._run_write("claim", params), lease, limit, token)

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> list[SettleResult]:
        params, reasons = self.settle_params(queue, settlements, now)
        if not settlements:
            return []
        ((statuses, revisions),) = await self._run_write("settle", params)
        return rows.decode_settled(statuses, revisions, reasons)

    async def finish(
        self, queue: str, id: str, end: End, revision: int, *, now: int | None = None
    ) -> FinishStatus:
        checks.check_finish(queue, end, self.limits, id=id, revision=revision)
        params = {
            **self._check_common(queue, now),
            "id": sendable_id(id),
            "kind": parameters.KINDS[type(end)],
            "result": end.result if isinstance(end, Complete) else None,
            "details": parameters.encode_details(end),
            "revision": revision if abs(revision) <= parameters.INT8 else -1,
        }
        status: FinishStatus = await self._run_for_value("finish", params)
        return status

    # -- leases --------------------------------------------------------------------------------------

    async def grant(
        self, queues: Sequence[str], ttl: int, holder: str, *, now: int | None = None
    ) -> GrantResult:
        checks.check_grant(queues, ttl, holder, self.limits)
        lease = secrets.token_hex(16)
        params = {
            "queues": sorted(queues),
            "lease": lease,
            "ttl": ttl,
            "holder": holder,
            "now": self._time_parameter(now),
        }
        [(at, lead)] = await self._run_write("grant", params)
        self._report_lead(lead)
        return GrantResult(lease=lease, now=at, expires_at=at + ttl)

    async def renew(
        self, queues: Sequence[str], lease: str, ttl: int, *, now: int | None = None
    ) -> dict[str, RenewResult]:
        checks.check_renew(queues, ttl, self.limits, lease=lease)
        params = {
            "queues": list(queues),
            "lease": sendable_lease(lease),
            "ttl": ttl,
            "now": self._time_parameter(now),
        }
        (_, at, *_, lead), *found = await self._run_write("renew", params)
        self._report_lead(lead)
        alive = {
            name: RenewResult(alive=True, now=at, expires_at=ends, cancel_requested=tuple(asked))
            for name, _, ends, asked, _ in found
        }
        return {name: alive.get(name) or RenewResult(alive=False, now=at) for name in queues}

    async def drop(
        self, queues: Sequence[str], lease: str, limit: int, *, now: int | None = None
    ) -> dict[str, int]:
        checks.check_drop(queues, limit, self.limits, lease=lease)
        params = {
            "queues": list(queues),
            "lease": sendable_lease(lease),
            "limit": min(limit, MAX_LIMIT),
            "now": self._time_parameter(now),
        }
        left = dict(await self._run_write("drop", params))
        return {name: left.get(name, 0) for name in queues}

    async def reap(self, queue: str, limit: int, *, now: int | None = None) -> list[ReapedJob]:
        return [
            ReapedJob(*row) for row in await self._run_write("reap", self._check_common(queue, now, limit))
        ]

    async def report(
        self,
        queue: str,
        id: str,
        fence: int,
        progress: bytes | None = None,
        memo: bytes | None = None,
        *,
        output: Sequence[bytes] = (),
        now: int | None = None,
    ) -> ReportStatus:
        params = self.report_params(queue, id, fence, progress, memo, now, output=output)
        return "reported" if await self._run_for_value("report", params) else "lost"

    # -- by id ---------------------------------------------------------------------------------------

    async def cancel(
        self, queue: str, ids: Sequence[str], *, running: bool = False, now: int | None = None
    ) -> list[CancelStatus]:
        checks.check_cancel(queue, ids, running, self.limits)
        return await self._run_on_ids("cancel", queue, ids, now, running=running)

    async def amend(self, queue: str, id: str, patch: JobPatch, *, now: int | None = None) -> AmendStatus:
        checks.check_amend(queue, patch, self.limits, id=id)
        changes, payload = parameters.encode_patch(patch)
        params = {
            **self._check_common(queue, now),
            "id": sendable_id(id),
            "patch": changes,
            "payload": payload,
            "most": self.limits.attributes,
        }
        answer: str = await self._run_for_value("amend", params)
        if answer.isdecimal():
            # The function returns the size of the merged attributes if it exceeds the limit.
            limit = self.limits.attributes
            raise Refused(f"attributes have {answer} bytes; the limit is {limit}", field="attributes")
        return answer  # type: ignore[return-value]

    async def retry_failed(
        self, queue: str, ids: Sequence[str], *, delay: int = 0, now: int | None = None
    ) -> list[RetryFailedStatus]:
        checks.check_retry_failed(queue, ids, delay, self.limits)
        return await self._run_on_ids("retry_failed", queue, ids, now, delay=delay)

    async def forget(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> list[bool]:
        return await self._run_on_ids("forget", queue, ids, now)

    async def _run_on_ids(
        self, name: str, queue: str, ids: Sequence[str], now: int | None, **more: Any
    ) -> list[Any]:
        params = {**self._check_common(queue, now, ids=ids), "ids": [sendable_id(id) for id in ids], **more}
        return list(await self._run_for_value(name, params)) if ids else []

    async def get(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> list[Slot]:
        params = {**self._check_common(queue, now, ids=ids), "ids": [sendable_id(id) for id in ids]}
        if not ids:
            return []
        return [
            slot for _, slot in self.decode(queue, rows.decode_slots, await self._run_read("get", params))
        ]

    async def list(
        self,
        queue: str,
        state: State,
        *,
        after: str | None = None,
        until: str | None = None,
        limit: int = 100,
        now: int | None = None,
    ) -> ListPage:
        checks.check_list(queue, state, limit, self.limits, after=after, until=until)
        params = self._check_common(queue, now, limit)
        items, more = await self._page(state, params, after, until)
        return ListPage(items=tuple(items), after=more)

    async def split(self, queue: str, parts: int, *, state: State | None = None) -> Sequence[str]:
        checks.check_split(queue, parts, state, self.limits)
        params = {"queue": queue, "parts": parts, "now": self._time_parameter(None)}
        found = await self._server.fetch(self._server.queries.split(state), params, writes=False)
        return [row[0] for row in found]

    async def _page(
        self, state: State | None, params: dict[str, Any], after: str | None, until: str | None
    ) -> tuple[Sequence[tuple[str, Slot]], str | None]:
        """Return a page of ids with their slots, and the cursor of the next page (None at the end).

        The cursor is the last id of this page.
        """
        limit = params["limit"]
        paged = {**params, "after": sendable_id(after or ""), "limit": limit + 1}
        if until is not None:
            paged["until"] = sendable_id(until)
        query = self._server.queries.page(state, ends=until is not None)
        found = await self._server.fetch(query, paged, writes=False, ordered=True)
        page = self.decode(params["queue"], rows.decode_slots, found[:limit])
        cursor = page[-1][0] if len(found) > limit else None
        return [(id, slot) for id, slot in page if slot is not EMPTY], cursor

    # -- queues --------------------------------------------------------------------------------------

    async def counts(self, queues: Sequence[str], *, now: int | None = None) -> dict[str, Counts]:
        checks.check_counts(queues, self.limits)
        found = rows.rows_by_name(
            await self._run_read("counts", {"queues": list(queues), "now": self._time_parameter(now)})
        )
        for row in found.values():
            self._report_lead(row[-1])
        names = Counts.__struct_fields__
        return {
            name: Counts(**dict(zip(names, found[name][1:-1], strict=True))) if name in found else Counts()
            for name in queues
        }

    async def queues(self) -> Sequence[QueueInfo]:
        self._time_parameter(None)
        return [self.decode(row[0], rows.decode_settings, row) for row in await self._run_read("queues", {})]

    async def configure(self, queue: str, patch: SettingsPatch, *, now: int | None = None) -> Settings:
        able = self.capabilities
        checks.check_configure(queue, patch, self.limits, limits=able.limits, fair=able.fair)
        params = {
            **self._check_common(queue, now),
            "patch": parameters.encode_settings(patch),
            "most_shares": MOST_SHARES,
        }
        row = (await self._run_write("configure", params))[0]
        settings = self.decode(queue, rows.decode_settings, row).settings
        check_share_count(len(settings.shares))
        return settings

    async def prune(self, queue: str, limit: int, *, now: int | None = None) -> PruneResult:
        params = self._check_common(queue, now, limit)
        ((outcomes, keys, events),) = await self._run_write("prune", params)
        more = outcomes + keys >= params["limit"]
        return PruneResult(outcomes=outcomes, request_keys=keys, events=events, more=more)

    async def export(
        self, queue: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> ExportPage:
        checks.check_export(queue, after, until, limit, self.limits)
        params = self._check_common(queue, None, limit)
        items, more = await self._page(None, params, after, until)
        known = await self._run_read("settings_of", params)
        settings = self.decode(queue, rows.decode_settings, known[0]).settings if known else Settings()
        records = tuple(ExportRecord(id=id, slot=slot) for id, slot in items)
        return ExportPage(records=records, settings=settings, after=more)

    async def import_(
        self, queue: str, records: Sequence[ExportRecord], *, now: int | None = None
    ) -> Sequence[ImportStatus]:
        checks.check_import(queue, records, self.limits)
        params = {
            **self._check_common(queue, now),
            "ids": [record.id for record in records],
            "records": [parameters.encode_record(record.slot) for record in records],
            "floor": parameters.highest_number([record.slot for record in records]),
        }
        return await self._run_for_value("import", params) if records else []

    # -- log and wake-ups ----------------------------------------------------------------------------

    async def events(
        self,
        queue: str,
        *,
        after: str | None = None,
        limit: int = 100,
        id: str | None = None,
        now: int | None = None,
    ) -> EventPage:
        checks.check_events(queue, limit, self.limits, id=id, keeps_output=True)
        params = self._check_common(queue, now, limit)
        paged = {**params, "since": event_log.first_entry_number(after)}
        if id is not None:
            found = await self._run_read("output", {**paged, "id": sendable_id(id)})
            return event_log.decode_output(found, id, after, params["limit"])
        found = await self._run_read("events", paged)
        return self.decode(queue, event_log.decode_page, found, after, params["limit"])

    async def wait(
        self,
        queues: Sequence[str],
        *,
        for_: Watch = "work",
        ids: Sequence[str] = (),
        since: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> WaitResult:
        checks.check_wait(queues, for_, ids, self.limits, since=since, timeout=timeout)
        self._time_parameter(None)
        return await self._waits.wait(queues, for_, ids, since or {}, timeout)

    # -- in a transaction of the caller ---------------------------------------------------------------

    @overload
    def in_transaction(self, connection: AsyncConnection[Any]) -> AsyncTransaction: ...
    @overload
    def in_transaction(self, connection: BlockingConnection[Any]) -> BlockingTransaction: ...

    def in_transaction(self, connection: Any) -> AsyncTransaction | BlockingTransaction:
        """Return an object whose enqueue(), settle() and report() run in the transaction of `connection`.

        For a blocking connection of psycopg 3, they are plain functions that run on the caller's thread.
        Raise Refused if `connection` is not a connection of psycopg 3, or is in a two-phase transaction.
        """
        if isinstance(connection, BlockingConnection):
            check_connection(connection)
            return BlockingTransaction(self, connection)
        if isinstance(connection, AsyncConnection):
            check_connection(connection)
            return AsyncTransaction(self, connection)
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise Refused(f"connection is a {kind}; it must be a connection of psycopg 3", field="connection")
