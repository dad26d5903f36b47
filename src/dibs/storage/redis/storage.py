"""The verbs of the Redis storage: each checks its arguments, runs one Lua script, and decodes the reply.

The scripts in storage/redis/lua decide what a verb does; each verb has one file. dibs.storage.protocol
documents the verbs.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from struct import Struct as Layout
from typing import Any, Final, cast

from attrs import evolve
from msgspec.structs import replace
from redis.exceptions import RedisError

from dibs.errors import OutcomeUnknown, Refused, StorageError
from dibs.model.check_arguments import check_share_count
from dibs.model.check_jobs import CheckedBatch
from dibs.model.job import Job, Slot
from dibs.model.request_columns import MEMBER_BYTES, RequestColumns
from dibs.model.requests import End, EnqueueRequest, JobPatch, QueueStep, Settings, SettingsPatch, Settlement
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    ClaimResult,
    Counts,
    EnqueueResult,
    EnqueueStatus,
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
from dibs.storage.abilities import OnEnd, OnOutcome, StopWatching, StoredMembers
from dibs.storage.protocol import Clock, Watch
from dibs.storage.redis import keys
from dibs.storage.redis.codec import event_log, jobs
from dibs.storage.redis.codec import requests as codec
from dibs.storage.redis.codec.settlements import SettlementBatch, StepBatch, StepReply
from dibs.storage.redis.codec.slots import decode_slots
from dibs.storage.redis.listing import (
    ALL_SOURCES,
    SOURCES,
    RunScript,
    SortedListing,
    StateListing,
    exists,
    is_in_state,
)
from dibs.storage.redis.network.client_settings import ClientSettings
from dibs.storage.redis.network.errors import translate_error
from dibs.storage.redis.network.opening import split_options
from dibs.storage.redis.network.script_calls import ScriptCalls, did_not_run
from dibs.storage.redis.network.wire import pack
from dibs.storage.redis.session import SMALL_STEP, STEP, RedisSession
from dibs.storage.redis.wakeups.blocking_claim import (
    MEMBERSHIP,
    BlockingRequest,
    blocking_claim,
    released_list,
)

#: Batches of a key set in one page: up to 1.6 MB.
_PAGE: Final = 100

#: Seconds until a payload expires that no job has. It is sent right before its job.
PAYLOAD_AGE: Final = 600

#: The answer of enqueue_batch.lua if the number of the batch is taken.
_TAKEN: Final = -1

_HEAD: Final = Layout(">QI")


def open_url(
    url: str, *, clock: Clock = "system", client: ClientSettings | None = None, **options: Any
) -> RedisStorage:
    """Return the storage of a URL, not yet opened.

    The URL begins with redis://, rediss:// (TLS), unix://, redis+cluster:// or redis+sentinel://. `client` is
    the second value of `client_options`.
    """
    plain, own_options = split_options(url, options)
    return RedisStorage(plain, clock=clock, client=client, **own_options)


class RedisStorage(RedisSession):
    """Jobs in Redis 6.2 or newer. Any number of processes may use it at the same time."""

    # -- enqueue, finish ----------------------------------------------------------------------

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> list[EnqueueResult]:
        checked = checks.check_enqueue(queue, requests, self.limits)
        if not checked:
            return []
        await self._register(queue, adds_jobs=True)
        arguments, payloads = codec.encode_requests(checked)
        ahead = self._payload_commands(queue, payloads)
        reply = await self._run_script("enqueue", queue, now, *arguments, ahead=ahead)
        return self._decode(queue, codec.decode_enqueued, requests, reply)

    def start_enqueue(self, queue: str, requests: CheckedBatch, on_end: OnEnd) -> bool:
        if self._calls is None or not self._is_plain_step(queue):
            return False
        key, commands = self._enqueue_commands(self._calls, queue, requests)
        packed = b"".join(map(pack, commands))
        on_reply = partial(self._end_enqueue, queue, requests, on_end)
        return self._calls.servers.start(key, packed, on_reply, earlier=len(commands) - 1)

    def enqueue_blocking(
        self, queue: str, requests: CheckedBatch, seconds: float | None = None
    ) -> Sequence[EnqueueResult] | None:
        calls = self._calls
        if calls is None or calls.servers.for_threads is None or not self._is_plain_step(queue):
            return None
        _, commands = self._enqueue_commands(calls, queue, requests)
        if len(commands) > 1:
            return None
        reply = calls.servers.for_threads.call(pack(commands[0]), seconds)
        result = None if reply is None else self._read_enqueue_reply(queue, requests, reply)
        if isinstance(result, Exception):
            raise result
        return result

    def prepare_blocking(self) -> None:
        if self._calls is not None and self._calls.servers.for_threads is not None:
            self._calls.servers.for_threads.open_one()

    def _is_plain_step(self, queue: str) -> bool:
        """Return False for a manual clock, whose times are compared, and for the first use of a queue."""
        return not self._manual and queue in self._registered

    def _enqueue_commands(
        self, calls: ScriptCalls, queue: str, requests: CheckedBatch
    ) -> tuple[str, list[tuple[Any, ...]]]:
        """Return a key of the queue, and the commands of an enqueue."""
        declared = self._declared_keys(queue)
        arguments, payloads = codec.encode_requests(requests)
        call = calls.command("enqueue", declared, ["", *arguments])
        return declared[0], [*self._payload_commands(queue, payloads), call]

    def _payload_commands(self, queue: str, payloads: Mapping[str, bytes]) -> list[tuple[Any, ...]]:
        """Return the commands that store large payloads for a while: the script that needs one keeps it."""
        prefix = self._queue_prefix(queue)
        return [
            ("SET", f"{prefix}payload:{name}", payload, "EX", PAYLOAD_AGE)
            for name, payload in payloads.items()
        ]

    def _end_enqueue(self, queue: str, requests: CheckedBatch, on_end: OnEnd, reply: Any) -> None:
        on_end(self._read_enqueue_reply(queue, requests, reply))

    def _read_enqueue_reply(
        self, queue: str, requests: CheckedBatch, reply: Any
    ) -> Sequence[EnqueueResult] | Exception | None:
        """Return the results or the error of an enqueue; None if it surely did not run."""
        if isinstance(reply, RedisError):
            return None if did_not_run(reply) else translate_error(reply, self.url)
        if isinstance(reply, Exception):
            return reply
        try:
            return self._decode(queue, codec.decode_enqueued, requests, reply)
        except Exception as error:  # noqa: BLE001 - the caller must get the error
            return error

    async def read_key_set(
        self, queue: str, name: str, *, after: int = 0, now: int | None = None
    ) -> StoredMembers:
        checks.check_queue(queue, within=self.limits)
        last, number, *batches = await self._run_script(
            "read_key_set", queue, now, name, after, _PAGE, repeatable=True
        )
        found = self._decode(queue, _decode_batches, name, batches)
        return StoredMembers(found, int(number), int(last) > int(number))

    async def enqueue_batch(
        self, queue: str, name: str, number: int, columns: RequestColumns, *, now: int | None = None
    ) -> Sequence[EnqueueStatus] | None:
        checks.check_enqueue(queue, (), self.limits)
        await self._register(queue, adds_jobs=True)
        requests = CheckedBatch.of(columns.requests(None), self.limits, plain=columns.is_plain)
        members, (arguments, payloads) = b"".join(columns.members), codec.encode_requests(requests)
        reply = await self._run_script(
            "enqueue_batch", queue, now, name, number, members, *arguments,
            ahead=self._payload_commands(queue, payloads),
        )  # fmt: skip
        if reply == _TAKEN:
            return None
        results = self._decode(queue, codec.decode_enqueued, requests, reply)
        return [result.status for result in results]

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

    # -- claim, settle ----------------------------------------------------------------------------------

    async def claim(self, queue: str, lease: str, limit: int, *, now: int | None = None) -> ClaimResult:
        checks.check_claim(queue, lease, limit, self.limits)
        reply = await self._run_script("claim", queue, now, codec.encode_lease(lease), min(limit, STEP))
        return await self._finish_claim(queue, lease, limit, now, reply)

    async def claim_blocking(
        self, queue: str, lease: str, limit: int, *, claim_id: str, timeout: float
    ) -> ClaimResult:
        checks.check_claim_blocking(queue, limit, claim_id, timeout, self.limits, lease=lease)
        if self._calls is None or not self.capabilities.blocking_claim:
            return await self.claim(queue, lease, limit)
        prefix = self._queue_prefix(queue)
        request = BlockingRequest(
            (prefix + "claim_tokens", f"{prefix}claim_tokens:{claim_id}"), timeout, "claim",
            self._declared_keys(queue),
            ["", codec.encode_lease(lease), min(limit, STEP)],
        )  # fmt: skip
        reply = await self._send_blocking(self._calls, request)
        if reply is None:
            return await self.claim(queue, lease, limit)
        return await self._finish_claim(queue, lease, limit, None, reply)

    async def _send_blocking(self, calls: ScriptCalls, request: BlockingRequest) -> list[Any] | None:
        """Send a blocking claim and return its reply; None if the server refused it."""
        reply, pause = await blocking_claim(calls, request)
        if pause:
            self._allow_blocking_claims(allowed=False)
        if 0 < pause < math.inf:
            asyncio.get_running_loop().call_later(pause, lambda: self._allow_blocking_claims(allowed=True))
        return reply

    def _allow_blocking_claims(self, *, allowed: bool) -> None:
        self.capabilities = evolve(self.capabilities, blocking_claim=allowed)

    async def wake_claim(self, queue: str, claim_id: str) -> None:
        checks.check_claim_blocking(queue, 1, claim_id, 1.0, within=self.limits)
        of_many = [] if self._cluster else [keys.claim_key(self._prefix, claim_id)]
        await self._run_script_untimed("wake_claim", queue, [claim_id, *of_many])

    async def _finish_claim(
        self, queue: str, lease: str, limit: int, now: int | None, reply: list[Any]
    ) -> ClaimResult:
        """Claim again until `limit` jobs are claimed or no job is due, and return all claimed jobs.

        One script call claims at most STEP jobs. A call may also return fewer jobs because it had to skip
        many stale entries, or to look at many closed keys again; its reply is then `incomplete`.
        """
        claim, incomplete = await self._decode_claim(queue, reply)
        may_have_more = incomplete or len(claim.jobs) == STEP
        while may_have_more and len(claim.jobs) < limit:
            step = min(limit - len(claim.jobs), STEP)
            reply = await self._run_script("claim", queue, now, codec.encode_lease(lease), step)
            more, incomplete = await self._decode_claim(queue, reply)
            may_have_more = incomplete or len(more.jobs) == step
            claim = replace(more, jobs=claim.jobs + more.jobs, lost=more.lost and not claim.jobs)
        if self._waits is not None:
            self._waits.note_time(queue, claim.now)
        return claim

    async def _decode_claim(self, queue: str, reply: list[Any]) -> tuple[ClaimResult, bool]:
        """Return the result of a claim, with the large payloads, and whether the script gave up early."""
        payloads = await self._read_payloads(queue, reply[5]) if len(reply) > 5 else []
        claim, incomplete = self._decode(queue, codec.decode_claim, reply, [one or b"" for one in payloads])
        if None in payloads:
            # A run has ended since the claim, and its payload is gone. The jobs of the others are read again.
            slots, _ = await self._read_slots(queue, [job.id for job in claim.jobs], None)
            claim = replace(claim, jobs=tuple(still_running(claim.jobs, slots)))
        return claim, incomplete

    async def _read_payloads(self, queue: str, references: bytes) -> list[bytes | None]:
        """Return the payloads of a claim; None for one that is gone.

        The script of a claim does not return them, because a script copies what it returns several times.
        """
        prefix, payloads = self._queue_prefix(queue), []
        try:
            for names in codec.names_of_payloads(references):
                stored = [f"{prefix}payload:{name}" for name in names]
                payloads += await self._run_command(stored[0], "MGET", *stored)
        except StorageError as error:
            raise OutcomeUnknown(f"jobs were claimed, and their payloads not received: {error}") from error
        return payloads

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> list[SettleResult]:
        checks.check_settle(queue, settlements, self.limits)
        if not settlements:
            self._time_argument(now)
            return []
        batch = await self._encode_settlements(queue, settlements)
        ((_, settled, _),) = await self._run_steps([(queue, batch, 0)], "", now)
        return batch.decode(settled)

    async def settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, *, now: int | None = None
    ) -> SettleAndClaimResult:
        checks.check_claim(queue, lease, limit, self.limits)
        checks.check_settle(queue, settlements, self.limits)
        batch = await self._encode_settlements(queue, settlements)
        ((_, settled, claimed),) = await self._run_steps(
            [(queue, batch, limit)], codec.encode_lease(lease), now
        )
        claim = await self._finish_claim(queue, lease, limit, now, claimed)
        return SettleAndClaimResult(tuple(batch.decode(settled)), claim)

    # -- many queues: a cluster has none of these verbs, as all keys of a script are on one server -----

    async def serve(
        self, steps: Sequence[QueueStep], lease: str, *, now: int | None = None
    ) -> list[SettleAndClaimResult]:
        checks.check_serve(steps, lease, self.limits)
        self._check_single_server()
        batches = [self._batch_of(step.queue, step.settlements) for step in steps]
        await self._register(*{queue: None for batch in batches for queue in batch.queues})
        replies: list[StepReply] = []
        try:
            while len(replies) < len(steps):
                replies += await self._run_serve(steps[len(replies) :], batches[len(replies) :], lease, now)
            return [
                await self._step_result(step, batch, reply, lease, now)
                for step, batch, reply in zip(steps, batches, replies, strict=True)
            ]
        except StorageError as error:
            if not replies or len(steps) == 1:
                raise
            raise OutcomeUnknown(f"a request for {len(steps)} queues ended early: {error}") from error

    async def _run_serve(
        self, steps: Sequence[QueueStep], batches: Sequence[SettlementBatch], lease: str, now: int | None
    ) -> list[StepReply]:
        """Run the script for the first steps, and return their replies. It stops early after many runs."""
        part = [
            (step.queue, batch, step.limit) for step, batch in zip(steps[:SMALL_STEP], batches, strict=False)
        ]
        replies = await self._run_steps(part, codec.encode_lease(lease), now)
        if isinstance(replies[-1], RedisError):
            error = translate_error(replies[-1], self.url)
            raise OutcomeUnknown(f"a request for {len(steps)} queues ended early: {error}") from error
        return replies

    async def _run_steps(
        self, steps: Sequence[tuple[str, SettlementBatch, int]], lease: str, now: int | None
    ) -> list[Any]:
        """Run the script for steps (a queue, its settlements, and a limit of jobs). Return its replies."""
        part = StepBatch()
        for queue, batch, limit in steps:
            part.add(queue, batch, min(limit, STEP))
        first, *others = part.queues
        replies: list[Any] = await self._run_script(
            "serve", first, now, lease, part.count, *part.arguments, more_queues=others
        )
        return replies

    async def _step_result(
        self, step: QueueStep, batch: SettlementBatch, reply: StepReply, lease: str, now: int | None
    ) -> SettleAndClaimResult:
        at, settled, claimed = reply
        claim = ClaimResult(now=at)
        if step.limit:
            claim = await self._finish_claim(step.queue, lease, step.limit, now, claimed)
        return SettleAndClaimResult(tuple(batch.decode(settled)), claim)

    async def claim_blocking_any(
        self, queues: Sequence[str], lease: str, limit: int, *, claim_id: str, timeout: float
    ) -> Mapping[str, ClaimResult]:
        checks.check_claim_blocking_any(queues, limit, claim_id, timeout, self.limits, lease=lease)
        self._check_single_server()
        by_prefix = {self._queue_prefix(queue): queue for queue in queues}
        group = self._groups.key_of(by_prefix)
        if self._calls is not None and self.capabilities.blocking_claim:
            await self._join(group, queues)
            request = BlockingRequest(
                (released_list(group), keys.claim_key(self._prefix, claim_id)), timeout, "claim_any",
                [group], ["", codec.encode_lease(lease), min(limit, STEP)],
            )  # fmt: skip
            reply = await self._send_blocking(self._calls, request)
            if reply is not None and reply[0]:
                return await self._finish_claims(by_prefix, lease, limit, reply[1:])
        return await self._claim_in_all(group, by_prefix, lease, limit)

    async def _join(self, group: str, queues: Sequence[str]) -> None:
        """Make the queues members of the group, unless this session did it less than REJOIN seconds ago."""
        if not self._groups.must_join(group):
            return
        for first in range(0, len(queues), SMALL_STEP):
            queue, *others = queues[first : first + SMALL_STEP]
            await self._run_script(
                "join_group", queue, None, group, round(MEMBERSHIP * 1000), more_queues=others
            )
        self._groups.note_joined(group)

    async def _claim_in_all(
        self, group: str, by_prefix: Mapping[str, str], lease: str, limit: int
    ) -> dict[str, ClaimResult]:
        """Claim in all queues without waiting."""
        claims: dict[str, ClaimResult] = {}
        prefixes, left = list(by_prefix), limit
        for first in range(0, len(prefixes), SMALL_STEP):
            declared = [group, *prefixes[first : first + SMALL_STEP]]
            arguments = [self._time_argument(None), codec.encode_lease(lease), min(left, STEP)]
            reply = await self._open_calls().run("claim_any", declared, arguments)
            claims.update(await self._finish_claims(by_prefix, lease, left, reply[1:]))
            left = limit - sum(len(claim.jobs) for claim in claims.values())
            if left == 0:
                break
        return claims

    async def _finish_claims(
        self, by_prefix: Mapping[str, str], lease: str, limit: int, pairs: Sequence[Any]
    ) -> dict[str, ClaimResult]:
        """Return the claims by queue. Complete those that the script ended early, up to `limit` in all."""
        replies = {
            by_prefix[prefix.decode()]: reply for prefix, reply in zip(pairs[::2], pairs[1::2], strict=True)
        }
        left = limit - sum(len(reply[4]) // 2 for reply in replies.values())
        claims: dict[str, ClaimResult] = {}
        for queue, reply in replies.items():
            claimed = len(reply[4]) // 2
            claims[queue] = await self._finish_claim(queue, lease, claimed + left, None, reply)
            left -= len(claims[queue].jobs) - claimed
        return claims

    def _check_single_server(self) -> None:
        if self._cluster:
            raise Refused(f"{self.url} is a cluster: it has no many_queues, so send a request for each queue")

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
        output: Sequence[bytes] = (),
        now: int | None = None,
    ) -> ReportStatus:
        checks.check_report(
            queue,
            progress,
            memo,
            self.limits,
            id=id,
            fence=fence,
            output=output,
            keeps_output=self.capabilities.output,
        )
        arguments: list[Any] = [codec.encode_id(id), str(fence), progress or b""]
        if memo is not None or output:
            arguments += [memo or b"", b"0" if memo is None else b"1", *output]
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
        self, queue: str, ids: Sequence[str], *, delay: int = 0, now: int | None = None
    ) -> list[RetryFailedStatus]:
        checks.check_retry_failed(queue, ids, delay, self.limits)
        replies = await self._run_in_steps("retry_failed", queue, ids, now, delay)
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
        return await SortedListing(self._script_runner(queue), sources).split(parts)

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
            number, *values = await self._run_command(key, "HMGET", key, "numbers", *codec.SETTINGS)
            if number is not None:
                known.append(QueueInfo(name, self._decode(name, codec.decode_settings, values)))
        return known

    async def configure(self, queue: str, patch: SettingsPatch, *, now: int | None = None) -> Settings:
        able = self.capabilities
        checks.check_configure(queue, patch, self.limits, limits=able.limits, fair=able.fair)
        arguments = codec.encode_settings(patch)
        if arguments:  # else the call only reads, perhaps from a replica
            await self._register(queue, *codec.fail_queue(queue, patch))
        # "again" is the reply while keys that an earlier change of a limit may open are not all placed.
        while (reply := await self._run_script("configure", queue, now, *arguments)) == b"again":
            pass
        if isinstance(reply, int):
            check_share_count(reply)
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
        listing = SortedListing(self._script_runner(queue), ALL_SOURCES, after, until)
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
        self,
        queue: str,
        *,
        after: str | None = None,
        limit: int = 100,
        id: str | None = None,
        now: int | None = None,
    ) -> EventPage:
        checks.check_events(queue, limit, self.limits, id=id, keeps_output=self.capabilities.output)
        if id is not None:
            wanted = codec.encode_id(id), event_log.encode_output_request(after), limit
            reply = await self._run_script("output", queue, now, *wanted, repeatable=True)
            return self._decode(queue, event_log.decode_output, reply, id, after)
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
        """Call back when an id has ended; see dibs.storage.abilities.EndWatches."""
        return None if self._waits is None else self._waits.watch_end(queue, id, revision, on_outcome)


def still_running(claimed: Iterable[Job], slots: Iterable[Slot]) -> Iterator[Job]:
    """Return the jobs of the slots whose run is that of the claimed job with the same place."""
    for job, slot in zip(claimed, slots, strict=True):
        current = slot.current
        if current and current.run and job.run and current.run.fence == job.run.fence:
            yield current


def _decode_batches(name: str, batches: Sequence[bytes]) -> dict[bytes, EnqueueStatus]:
    found: dict[bytes, EnqueueStatus] = {}
    try:
        for batch in batches:
            found.update(_decode_batch(batch))
    except jobs.DECODE_ERRORS:
        raise jobs.UnreadableRecord("request_key", name) from None
    return found


def _decode_batch(packed: bytes) -> dict[bytes, EnqueueStatus]:
    """Return the statuses by member; include/key_set.lua has the layout."""
    _, count = _HEAD.unpack_from(packed)
    start, end = _HEAD.size, _HEAD.size + count * MEMBER_BYTES
    if len(packed) not in (end, end + count):
        raise ValueError("the batch has another size than its number of keys")
    members = [packed[at : at + MEMBER_BYTES] for at in range(start, end, MEMBER_BYTES)]
    statuses = packed[end:] or b"\1" * count
    return {
        member: codec.ENQUEUE_STATUSES[status - 1] for member, status in zip(members, statuses, strict=True)
    }
