"""The verbs of the Redis storage: each checks its arguments, runs one Lua script, and decodes the reply.

The scripts in storage/redis/lua decide what a verb does; each verb has one file. dibs.storage.protocol
documents the verbs.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from dibs.errors import Refused
from dibs.model.job import Slot
from dibs.model.requests import End, EnqueueRequest, JobPatch, Settings, SettingsPatch
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
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
    State,
    WaitResult,
)
from dibs.storage import checks
from dibs.storage.end_watches import OnOutcome, StopWatching
from dibs.storage.protocol import Clock, Watch
from dibs.storage.redis import keys
from dibs.storage.redis.codec import event_log
from dibs.storage.redis.codec import requests as codec
from dibs.storage.redis.codec.settlements import SettlementBatch
from dibs.storage.redis.codec.slots import decode_slots
from dibs.storage.redis.direct_enqueue import RedisDirectEnqueue
from dibs.storage.redis.key_sets import RedisKeySets
from dibs.storage.redis.listing import ALL_SOURCES, SOURCES, Listing, RunScript, exists, is_in_state
from dibs.storage.redis.many_queues import RedisManyQueues
from dibs.storage.redis.network.client_settings import ClientSettings
from dibs.storage.redis.network.opening import split_options
from dibs.storage.redis.scanned_listing import StateListing
from dibs.storage.redis.session import SMALL_STEP, STEP


def open_url(
    url: str, *, clock: Clock = "system", client: ClientSettings | None = None, **options: Any
) -> RedisStorage:
    """Return the storage of a URL, not yet opened.

    The URL begins with redis://, rediss:// (TLS), unix://, redis+cluster:// or rediss+cluster://. `client` is
    the second value of `client_options`.
    """
    plain, own_options = split_options(url, options)
    return RedisStorage(plain, clock=clock, client=client, **own_options)


class RedisStorage(RedisDirectEnqueue, RedisKeySets, RedisManyQueues):
    """Jobs in Redis 6.2 or newer. Any number of processes may use it at the same time."""

    # -- enqueue, finish ----------------------------------------------------------------------

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> list[EnqueueResult]:
        checked = checks.check_enqueue(queue, requests, self.limits)
        if not checked:
            return []
        await self._register(queue, adds_jobs=True)
        reply = await self._run_script("enqueue", queue, now, *codec.encode_requests(checked))
        return self._decode(queue, codec.decode_enqueued, requests, reply)

    async def finish(
        self, queue: str, id: str, end: End, revision: int, *, now: int | None = None
    ) -> FinishStatus:
        checks.check_finish(queue, end, self.limits, id=id, revision=revision)
        batch = SettlementBatch(queue, self.limits, cross_queue=self.capabilities.cross_queue)
        batch.check(end)
        settlement = batch.encode(0, end)
        await self._register(*batch.queues)
        reply = await self._run_script(
            "finish", queue, now, queue, codec.encode_id(id), str(revision), settlement, *batch.follow_ups,
            more_queues=batch.targets,
        )  # fmt: skip
        return cast("FinishStatus", reply.decode())

    # -- leases --------------------------------------------------------------------------------------

    async def grant(
        self, queues: Sequence[str], ttl: int, holder: str, *, now: int | None = None
    ) -> GrantResult:
        checks.check_grant(queues, ttl, holder, self.limits)
        await self._register(*queues)
        lease = secrets.token_hex(16)
        granted = await self._run_on_each("grant", queues, now, lease, ttl, holder, secrets.token_hex(16))
        self._report_leads(queues, [lead for _, _, lead in granted])
        times = [(int(at), int(expires_at)) for at, expires_at, _ in granted] or [(0, 0)]
        # Each queue has its own end, by its own server. Until the earliest of them, the lease is alive in
        # all.
        at, expires_at = min(times, key=lambda pair: pair[1])
        return GrantResult(lease=lease, now=at, expires_at=expires_at)

    async def renew(
        self, queues: Sequence[str], lease: str, ttl: int, *, now: int | None = None
    ) -> dict[str, RenewResult]:
        checks.check_renew(queues, ttl, self.limits, lease=lease)
        replies = await self._run_on_each("renew", queues, now, codec.encode_lease(lease), ttl)
        self._report_leads(queues, [lead for _, lead, *_ in replies])
        return {queue: codec.decode_renewed(reply) for queue, reply in zip(queues, replies, strict=True)}

    async def drop(
        self, queues: Sequence[str], lease: str, limit: int, *, now: int | None = None
    ) -> dict[str, int]:
        checks.check_drop(queues, limit, self.limits, lease=lease)
        left = await asyncio.gather(*(self._drop(queue, lease, limit, now) for queue in queues))
        return dict(zip(queues, left, strict=True))

    async def _drop(self, queue: str, lease: str, limit: int, now: int | None) -> int:
        left, released = 1, 0
        while left and released < limit:
            step = min(limit - released, SMALL_STEP)
            left = await self._run_script("drop", queue, now, codec.encode_lease(lease), step)
            released += step
        return left

    async def reap(self, queue: str, limit: int, *, now: int | None = None) -> list[ReapedJob]:
        checks.check_queue(queue, limit, within=self.limits)
        reaped: list[ReapedJob] = []
        while len(reaped) < limit:
            step = min(limit - len(reaped), SMALL_STEP)
            more = codec.decode_reaped(await self._run_script("reap", queue, now, step))
            reaped += more
            if len(more) < step:
                break
        return reaped

    async def report(
        self,
        queue: str,
        id: str,
        fence: int,
        progress: bytes | None = None,
        memo: bytes | None = None,
        *,
        now: int | None = None,
    ) -> ReportStatus:
        checks.check_report(queue, progress, memo, self.limits, id=id, fence=fence)
        arguments = [codec.encode_id(id), str(fence), progress or b"", *([] if memo is None else [memo])]
        reply = await self._run_script("report", queue, now, *arguments)
        return cast("ReportStatus", reply.decode())

    # -- by id ---------------------------------------------------------------------------------------

    async def cancel(
        self, queue: str, ids: Sequence[str], *, running: bool = False, now: int | None = None
    ) -> list[CancelStatus]:
        checks.check_cancel(queue, ids, running, self.limits)
        replies = await self._run_in_steps("cancel", queue, ids, now, int(running))
        return [cast("CancelStatus", reply.decode()) for reply in replies]

    async def amend(self, queue: str, id: str, patch: JobPatch, *, now: int | None = None) -> AmendStatus:
        checks.check_amend(queue, patch, self.limits, id=id)
        max_bytes = self.limits.attributes
        reply = await self._run_script(
            "amend", queue, now, codec.encode_id(id), max_bytes, *codec.encode_patch(patch)
        )
        if reply.startswith(b"large "):
            raise Refused(
                f"attributes have {int(reply[6:])} bytes; the limit is {max_bytes}", field="attributes"
            )
        return cast("AmendStatus", reply.decode())

    async def retry_failed(
        self, queue: str, ids: Sequence[str], *, now: int | None = None
    ) -> list[RetryFailedStatus]:
        checks.check_queue(queue, ids=ids, within=self.limits)
        replies = await self._run_in_steps("retry_failed", queue, ids, now)
        return [cast("RetryFailedStatus", reply.decode()) for reply in replies]

    async def forget(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> list[bool]:
        checks.check_queue(queue, ids=ids, within=self.limits)
        return [bool(reply) for reply in await self._run_in_steps("forget", queue, ids, now)]

    async def get(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> list[Slot]:
        checks.check_queue(queue, ids=ids, within=self.limits)
        slots, _ = await self._read_slots(queue, ids, now)
        return slots

    async def _read_slots(self, queue: str, ids: Sequence[str], now: int | None) -> tuple[list[Slot], int]:
        slots: list[Slot] = []
        at = 0
        self._time_argument(now)
        for begin in range(0, len(ids), STEP):
            part = ids[begin : begin + STEP]
            reply = await self._run_script("get", queue, now, *map(codec.encode_id, part), repeatable=True)
            at = int(reply[0])
            slots += self._decode(queue, decode_slots, part, reply)
        return slots, at

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
        listing = StateListing(
            self._script_runner(queue),
            SOURCES[state],
            partial(self._read_slots, queue, now=now),
            partial(is_in_state, state),
        )
        items, after_page = await listing.page(after, until, limit)
        return ListPage(items=tuple(items), after=after_page)

    async def split(self, queue: str, parts: int, *, state: State | None = None) -> Sequence[str]:
        checks.check_split(queue, parts, state, self.limits)
        sources = ALL_SOURCES if state is None else SOURCES[state]
        return await Listing(self._script_runner(queue), sources).split(parts)

    def _script_runner(self, queue: str) -> RunScript:
        return lambda name, arguments: self._run_script_untimed(name, queue, arguments)

    # -- queues --------------------------------------------------------------------------------------

    async def counts(self, queues: Sequence[str], *, now: int | None = None) -> dict[str, Counts]:
        checks.check_counts(queues, self.limits)
        replies = await self._run_on_each("counts", queues, now)
        self._report_leads(queues, [lead for lead, *_ in replies])
        names = Counts.__struct_fields__
        return {
            queue: Counts(**dict(zip(names, reply[1:], strict=False)))
            for queue, reply in zip(queues, replies, strict=True)
        }

    async def queues(self) -> Sequence[QueueInfo]:
        names = await self._run_command(
            keys.registry_key(self._prefix), "SMEMBERS", keys.registry_key(self._prefix)
        )
        known = []
        for name in sorted(raw.decode() for raw in names):
            key = self._queue_prefix(name) + "meta"
            number, *values = await self._run_command(key, "HMGET", key, "number", *codec.SETTINGS)
            if number is not None:
                known.append(QueueInfo(name, self._decode(name, codec.decode_settings, values)))
        return known

    async def configure(self, queue: str, patch: SettingsPatch, *, now: int | None = None) -> Settings:
        checks.check_configure(queue, patch, self.limits, limits=self.capabilities.limits)
        arguments = codec.encode_settings(patch)
        if arguments:  # else the call only reads, perhaps from a replica
            await self._register(queue, *codec.fail_queue(queue, patch))
        # "again" is the reply while keys that an earlier change of a limit may open are not all placed.
        while (reply := await self._run_script("configure", queue, now, *arguments)) == b"again":
            pass
        return self._decode(queue, codec.decode_settings, reply)

    async def prune(self, queue: str, limit: int, *, now: int | None = None) -> PruneResult:
        checks.check_queue(queue, limit, within=self.limits)
        outcomes, request_keys, events, left = await self._run_script("prune", queue, now, min(limit, STEP))
        more = bool(left) or min(limit, STEP) in (outcomes, request_keys)
        return PruneResult(outcomes=outcomes, request_keys=request_keys, events=events, more=more)

    async def export(
        self, queue: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> ExportPage:
        checks.check_export(queue, after, until, limit, self.limits)
        reply = await self._run_script("configure", queue, None)
        settings = self._decode(queue, codec.decode_settings, reply)
        listing = Listing(self._script_runner(queue), ALL_SOURCES, after, until)
        items, after_page = await listing.page(limit, partial(self._read_slots, queue, now=None), exists)
        records = tuple(ExportRecord(id=id, slot=slot) for id, slot in items)
        return ExportPage(records=records, settings=settings, after=after_page)

    async def import_(
        self, queue: str, records: Sequence[ExportRecord], *, now: int | None = None
    ) -> Sequence[ImportStatus]:
        checks.check_import(queue, records, self.limits)
        await self._register(queue, adds_jobs=True)
        statuses: list[ImportStatus] = []
        self._time_argument(now)
        for at in range(0, len(records), STEP):
            reply = await self._run_script(
                "import", queue, now, *codec.encode_records(records[at : at + STEP])
            )
            statuses += ["imported" if one else "exists" for one in reply]
        return statuses

    # -- log and wake-ups ----------------------------------------------------------------------------

    async def events(
        self, queue: str, *, after: str | None = None, limit: int = 100, now: int | None = None
    ) -> EventPage:
        checks.check_queue(queue, limit, within=self.limits)
        self._time_argument(now)
        reply = await self._run_script_untimed("events", queue, event_log.encode_page_request(after, limit))
        return self._decode(queue, event_log.decode_page, reply, after, limit)

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
        if self._waits is None:
            raise self._not_open_error()
        return await self._waits.wait(queues, for_, ids, since or {}, timeout)

    def watch_end(self, queue: str, id: str, revision: int, on_outcome: OnOutcome) -> StopWatching | None:
        """Call back when an id has ended; see dibs.storage.end_watches.EndWatches."""
        return None if self._waits is None else self._waits.watch_end(queue, id, revision, on_outcome)
