"""The storage in Redis: verbs become the words of one script each, replies become values.

What happens to an id is decided in lua/, one file for each verb. Docstrings of the verbs stand in
dibs.storage.protocol.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from attrs import evolve
from msgspec.structs import replace

from dibs.errors import NotRunning, Refused
from dibs.model.job import Slot
from dibs.model.requests import End, EnqueueRequest, JobPatch, Settings, SettingsPatch, Settlement
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
    SettleAndClaimResult,
    SettleResult,
    State,
    WaitResult,
)
from dibs.storage import checks
from dibs.storage.protocol import Clock, Watch
from dibs.storage.redis import keys
from dibs.storage.redis.codec import event_log
from dibs.storage.redis.codec import requests as codec
from dibs.storage.redis.codec.settlements import SettlementBatch
from dibs.storage.redis.codec.slots import decode_slot
from dibs.storage.redis.listing import EVERYTHING, SOURCES, Ask, Listing, belongs, is_there
from dibs.storage.redis.network.opening import split_options
from dibs.storage.redis.session import SMALL_STEP, STEP, RedisPlace
from dibs.storage.redis.wakeups.blocking_claim import blocking_claim


def open_url(url: str, *, clock: Clock = "system", **options: Any) -> RedisStorage:
    """Return the storage for redis://, rediss://, unix:// or redis+cluster://."""
    place, named = split_options(url, options)
    return RedisStorage(place, clock=clock, **named)


class RedisStorage(RedisPlace):
    """Jobs in Redis 6.2 or newer, for any number of processes."""

    # -- enqueue, claim, settle ----------------------------------------------------------------------

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> list[EnqueueResult]:
        checked = checks.check_enqueue(queue, requests, self.limits)
        if not checked:
            return []
        await self._register(queue)
        reply = await self._run("enqueue", queue, now, *codec.encode_requests(checked))
        return codec.decode_enqueued(requests, reply)

    async def claim(self, queue: str, lease: str, limit: int, *, now: int | None = None) -> ClaimResult:
        checks.check_queue(queue, limit, within=self.limits)
        reply = await self._run("claim", queue, now, codec.encode_lease(lease), min(limit, STEP))
        return await self._whole_claim(queue, lease, limit, now, reply)

    async def claim_blocking(
        self, queue: str, lease: str, limit: int, *, claim_id: str, timeout: float
    ) -> ClaimResult:
        checks.check_claim_blocking(queue, limit, claim_id, timeout, within=self.limits)
        if self._servers is None or not self.capabilities.blocking_claim:
            return await self.claim(queue, lease, limit)
        claim = ["", codec.encode_lease(lease), min(limit, STEP)]
        beginning = self._beginning(queue)
        reply, rest = await blocking_claim(self._servers, self.url, beginning, claim_id, timeout, claim)
        if rest:
            self._allow_blocking_claims(allowed=False)
        if 0 < rest < math.inf:
            asyncio.get_running_loop().call_later(rest, lambda: self._allow_blocking_claims(allowed=True))
        if reply is None:
            return await self.claim(queue, lease, limit)
        return await self._whole_claim(queue, lease, limit, None, reply)

    def _allow_blocking_claims(self, *, allowed: bool) -> None:
        self.capabilities = evolve(self.capabilities, blocking_claim=allowed)

    async def wake_claim(self, queue: str, claim_id: str) -> None:
        checks.check_claim_blocking(queue, 1, claim_id, 1.0, within=self.limits)
        await self._run_bare("wake_claim", queue, [claim_id])

    async def _whole_claim(
        self, queue: str, lease: str, limit: int, now: int | None, reply: list[Any]
    ) -> ClaimResult:
        """Go on where a step ended early: at its bound, or among stale entries."""
        claim, tired = codec.decode_claim(reply)
        wanted = min(limit, STEP)
        while tired or len(claim.jobs) == wanted < limit:
            step = min(limit - len(claim.jobs), STEP)
            reply = await self._run("claim", queue, now, codec.encode_lease(lease), step)
            more, tired = codec.decode_claim(reply)
            wanted += step if not tired else len(more.jobs)
            claim = replace(more, jobs=claim.jobs + more.jobs, lost=more.lost and not claim.jobs)
        if self._waits is not None:
            self._waits.note_time(queue, claim.now)
        return claim

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> list[SettleResult]:
        checks.check_queue(queue, within=self.limits)
        if not settlements:
            self._time(now)
            return []
        settling = await self._settling(queue, settlements)
        reply = await self._run(
            "settle", queue, now, queue, len(settlements), *settling.arguments, *settling.follow_ups,
            others=settling.targets,
        )  # fmt: skip
        return settling.decode(reply)

    async def settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, *, now: int | None = None
    ) -> SettleAndClaimResult:
        checks.check_queue(queue, limit, within=self.limits)
        settling = await self._settling(queue, settlements)
        settled, claimed = await self._run(
            "settle_and_claim", queue, now, queue, len(settlements), codec.encode_lease(lease),
            min(limit, STEP), *settling.arguments, *settling.follow_ups, others=settling.targets,
        )  # fmt: skip
        claim = await self._whole_claim(queue, lease, limit, now, claimed)
        return SettleAndClaimResult(tuple(settling.decode(settled)), claim)

    async def _settling(self, queue: str, settlements: Sequence[Settlement]) -> SettlementBatch:
        settling = SettlementBatch(queue, self.limits, cross_queue=self.capabilities.cross_queue)
        settling.add(settlements)
        await self._register(*settling.created_queues)
        return settling

    async def finish(
        self, queue: str, id: str, end: End, revision: int, *, now: int | None = None
    ) -> FinishStatus:
        checks.check_queue(queue, within=self.limits)
        settling = SettlementBatch(queue, self.limits, cross_queue=self.capabilities.cross_queue)
        settling.check(end)
        word = settling.encode(0, end)
        await self._register(*settling.created_queues)
        reply = await self._run(
            "finish", queue, now, queue, codec.encode_id(id), str(revision), word, *settling.follow_ups,
            others=settling.targets,
        )  # fmt: skip
        return cast("FinishStatus", reply.decode())

    # -- leases --------------------------------------------------------------------------------------

    async def grant(
        self, queues: Sequence[str], ttl: int, holder: str, *, now: int | None = None
    ) -> GrantResult:
        checks.check_grant(queues, ttl, holder, self.limits)
        await self._register(*queues)
        lease = secrets.token_hex(16)
        granted = await self._each("grant", queues, now, lease, ttl, holder)
        times = [(int(at), int(expires_at)) for at, expires_at in granted] or [(0, 0)]
        # Each queue gave at least what is told.
        at, expires_at = min(times, key=lambda pair: pair[1])
        return GrantResult(lease=lease, now=at, expires_at=expires_at)

    async def renew(
        self, queues: Sequence[str], lease: str, ttl: int, *, now: int | None = None
    ) -> dict[str, RenewResult]:
        checks.check_renew(queues, ttl, self.limits)
        replies = await self._each("renew", queues, now, codec.encode_lease(lease), ttl)
        return {queue: codec.decode_renewed(reply) for queue, reply in zip(queues, replies, strict=True)}

    async def drop(
        self, queues: Sequence[str], lease: str, limit: int, *, now: int | None = None
    ) -> dict[str, int]:
        checks.check_drop(queues, limit, self.limits)
        left = await asyncio.gather(*(self._drop(queue, lease, limit, now) for queue in queues))
        return dict(zip(queues, left, strict=True))

    async def _drop(self, queue: str, lease: str, limit: int, now: int | None) -> int:
        left, released = 1, 0
        while left and released < limit:
            step = min(limit - released, SMALL_STEP)
            left = await self._run("drop", queue, now, codec.encode_lease(lease), step)
            released += step
        return left

    async def reap(self, queue: str, limit: int, *, now: int | None = None) -> list[ReapedJob]:
        checks.check_queue(queue, limit, within=self.limits)
        reaped: list[ReapedJob] = []
        while len(reaped) < limit:
            step = min(limit - len(reaped), SMALL_STEP)
            more = codec.decode_reaped(await self._run("reap", queue, now, step))
            reaped += more
            if len(more) < step:
                break
        return reaped

    async def report(
        self, queue: str, id: str, fence: int, progress: bytes, *, now: int | None = None
    ) -> ReportStatus:
        checks.check_report(queue, progress, self.limits)
        reply = await self._run("report", queue, now, codec.encode_id(id), str(fence), progress)
        return cast("ReportStatus", reply.decode())

    # -- by id ---------------------------------------------------------------------------------------

    async def cancel(
        self, queue: str, ids: Sequence[str], *, running: bool = False, now: int | None = None
    ) -> list[CancelStatus]:
        checks.check_queue(queue, ids=ids, within=self.limits)
        replies = await self._in_steps("cancel", queue, ids, now, int(running))
        return [cast("CancelStatus", reply.decode()) for reply in replies]

    async def amend(self, queue: str, id: str, patch: JobPatch, *, now: int | None = None) -> AmendStatus:
        checks.check_amend(queue, patch, self.limits)
        most = self.limits.attributes
        reply = await self._run("amend", queue, now, codec.encode_id(id), most, *codec.encode_patch(patch))
        if reply.startswith(b"large "):
            raise Refused(f"attributes have {int(reply[6:])} bytes; the limit is {most}", field="attributes")
        return cast("AmendStatus", reply.decode())

    async def retry_failed(
        self, queue: str, ids: Sequence[str], *, now: int | None = None
    ) -> list[RetryFailedStatus]:
        checks.check_queue(queue, ids=ids, within=self.limits)
        replies = await self._in_steps("retry_failed", queue, ids, now)
        return [cast("RetryFailedStatus", reply.decode()) for reply in replies]

    async def forget(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> list[bool]:
        checks.check_queue(queue, ids=ids, within=self.limits)
        return [bool(reply) for reply in await self._in_steps("forget", queue, ids, now)]

    async def get(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> list[Slot]:
        checks.check_queue(queue, ids=ids, within=self.limits)
        slots, _ = await self._slots(queue, ids, now)
        return slots

    async def _slots(self, queue: str, ids: Sequence[str], now: int | None) -> tuple[list[Slot], int]:
        slots: list[Slot] = []
        at = 0
        self._time(now)
        for begin in range(0, len(ids), STEP):
            part = ids[begin : begin + STEP]
            reply = await self._run("get", queue, now, *map(codec.encode_id, part), repeatable=True)
            at = int(reply[0])
            slots += [decode_slot(id, reply[4 * i + 1 : 4 * i + 5], at) for i, id in enumerate(part)]
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
        checks.check_list(queue, state, limit, self.limits)
        listing = Listing(self._asking(queue), SOURCES[state], after, until)
        slots_of = partial(self._slots, queue, now=now)
        items, more = await listing.page(limit, slots_of, partial(belongs, state))
        return ListPage(items=tuple(items), after=more)

    async def split(self, queue: str, parts: int, *, state: State | None = None) -> Sequence[str]:
        checks.check_split(queue, parts, state, self.limits)
        sources = EVERYTHING if state is None else SOURCES[state]
        return await Listing(self._asking(queue), sources).split(parts)

    def _asking(self, queue: str) -> Ask:
        return lambda name, words: self._run_bare(name, queue, words)

    # -- queues --------------------------------------------------------------------------------------

    async def counts(self, queues: Sequence[str], *, now: int | None = None) -> dict[str, Counts]:
        checks.check_counts(queues, self.limits)
        replies = await self._each("counts", queues, now)
        names = Counts.__struct_fields__
        return {
            queue: Counts(**dict(zip(names, reply, strict=False)))
            for queue, reply in zip(queues, replies, strict=True)
        }

    async def queues(self) -> Sequence[QueueInfo]:
        names = await self._plain(
            keys.registry_key(self._prefix), "SMEMBERS", keys.registry_key(self._prefix)
        )
        known = []
        for name in sorted(raw.decode() for raw in names):
            key = self._beginning(name) + "meta"
            used, *values = await self._plain(key, "HMGET", key, "number", *codec.SETTINGS)
            if used is not None:
                known.append(QueueInfo(name, codec.decode_settings(values)))
        return known

    async def configure(self, queue: str, patch: SettingsPatch, *, now: int | None = None) -> Settings:
        checks.check_configure(queue, patch, self.limits)
        await self._register(queue)
        return codec.decode_settings(await self._run("configure", queue, now, *codec.encode_settings(patch)))

    async def prune(self, queue: str, limit: int, *, now: int | None = None) -> PruneResult:
        checks.check_queue(queue, limit, within=self.limits)
        outcomes, request_keys, events = await self._run("prune", queue, now, min(limit, STEP))
        more = min(limit, STEP) in (outcomes, request_keys)
        return PruneResult(outcomes=outcomes, request_keys=request_keys, events=events, more=more)

    async def export(
        self, queue: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> ExportPage:
        checks.check_queue(queue, limit, within=self.limits)
        settings = codec.decode_settings(await self._run("configure", queue, None))
        listing = Listing(self._asking(queue), EVERYTHING, after, until)
        items, more = await listing.page(limit, partial(self._slots, queue, now=None), is_there)
        records = tuple(ExportRecord(id=id, slot=slot) for id, slot in items)
        return ExportPage(records=records, settings=settings, after=more)

    async def import_(
        self, queue: str, records: Sequence[ExportRecord], *, now: int | None = None
    ) -> Sequence[ImportStatus]:
        checks.check_import(queue, records, self.limits)
        await self._register(queue)
        statuses: list[ImportStatus] = []
        self._time(now)
        for at in range(0, len(records), STEP):
            reply = await self._run("import", queue, now, *codec.encode_records(records[at : at + STEP]))
            statuses += ["imported" if one else "exists" for one in reply]
        return statuses

    # -- log and wake-ups ----------------------------------------------------------------------------

    async def events(
        self, queue: str, *, after: str | None = None, limit: int = 100, now: int | None = None
    ) -> EventPage:
        checks.check_queue(queue, limit, within=self.limits)
        self._time(now)
        return event_log.decode_page(
            await self._run_bare("events", queue, event_log.encode_page_request(after, limit)), after, limit
        )

    async def wait(
        self,
        queues: Sequence[str],
        *,
        for_: Watch = "work",
        ids: Sequence[str] = (),
        since: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> WaitResult:
        checks.check_wait(queues, for_, ids, self.limits)
        if self._waits is None:
            raise NotRunning(f"{self.url} is not open")
        return await self._waits.wait(queues, for_, ids, since or {}, timeout)
