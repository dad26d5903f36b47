"""The stored jobs of a queue, read and changed by id, and the settings of the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from msgspec import UNSET, UnsetType

from dibs.client.calls.arrival import check_untyped_data
from dibs.client.calls.failure import error_from_exception
from dibs.client.calls.handler_registry import HandlerRegistry
from dibs.client.calls.signals import SIGNAL_STATUSES, SignalStatus, signal_request
from dibs.client.connection.queue_client import QueueClient, split_ids
from dibs.client.listing import PAGE_SIZE, Listing
from dibs.client.options.arguments import Seconds, check_error, duration_ms
from dibs.client.options.job_settings import Retention, build_retention, due_fields, encode_attributes
from dibs.client.options.queue_settings import QueueSettings, build_patch
from dibs.client.output import Chunk, read_output
from dibs.client.schedules import Schedules
from dibs.client.status import Status, slot_status
from dibs.errors import Refused
from dibs.model.check_arguments import MOST_SHARE
from dibs.model.check_values import check_duration, check_whole_number
from dibs.model.job import Slot
from dibs.model.limits import LIMITS
from dibs.model.requests import Complete, End, Fail, JobPatch
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    Counts,
    FinishStatus,
    PruneResult,
    RetryFailedStatus,
    State,
)
from dibs.model.wakeup import CANCELLED_HINT, EVALUATIONS, FLOWS, flow_of, wake_up_request
from dibs.storage.protocol import Storage

#: Most records that one step of `StoredQueue.prune` removes, so that other calls can run between two steps.
PRUNE_BATCH = 1000
#: Ids of `retry_failed_many` with `over` that become due together.
SPREAD_IDS = 100


def spread_retries(ids: Iterable[str], over: int) -> Iterator[tuple[Sequence[str], int]]:
    """Yield the batches of a retry that is spread over a time in ms, each with its delay in ms.

    Raises Refused for a negative time, before the first batch.
    """
    check_duration("over", over)
    if not over:
        yield from ((batch, 0) for batch in split_ids(ids))
        return
    batches = list(split_ids(ids, SPREAD_IDS))
    yield from ((batch, number * over // len(batches)) for number, batch in enumerate(batches))


class StoredQueue:
    """The base class of Queue: everything but enqueue, handlers, claims and events."""

    def __init__(self, client: QueueClient, handlers: HandlerRegistry) -> None:
        self._client = client
        self._handlers = handlers
        self.name: str = client.name
        """Name of the queue."""
        self.schedules: Schedules = Schedules(client)
        """The schedules of the queue: list, get, set, pause, resume and remove them by name."""

    def __repr__(self) -> str:
        return f"<Queue {self._client.label}>"

    def _encode_payload(self, data: Any) -> bytes:
        handler = self._handlers.get(self.name)
        dump = None if handler is None else handler.dump_data
        payload = self._client.serde.encode(data if dump is None else dump(data))
        if handler is not None and handler.check_data is not None:
            handler.check_data(data, payload)
        elif handler is None:
            check_untyped_data(self._client.serde, data, payload)
        return payload

    # -- by id ---------------------------------------------------------------------------------------

    async def get(self, id: str) -> Status | None:
        """Return the status of the job with this id, or of its outcome; None for an unknown id.

        Example: `status = await queue.get("mail-1")`
        """
        return slot_status(self._client, id, await self._client.get(id))

    def list(self, state: State, *, limit: int | None = None, after: str | None = None) -> Listing:
        """Return the jobs in a state, in any order: `async for status in queue.list("failed"):`.

        - `limit`: most statuses to yield. Default None: all of them.
        - `after`: `Listing.cursor` of an earlier listing of this state, which continues there. Default None:
          from the beginning.

        A job that stays in the state during the listing, over all pages, is yielded exactly once.
        """
        return Listing(self._client, state, limit, after)

    async def cancel(self, id: str, *, running: bool = False) -> CancelStatus:
        """Cancel a waiting or blocked job. With `running` also ask an active run to stop.

            assert await queue.cancel("mail-1", running=True) in ("cancelled", "not_found")

        Returns "cancelled"; "requested" if the active run was asked to stop; "active" if the job runs and
        `running` is False; "completed" or "failed" if it ended before; "not_found".
        """
        return (await self.cancel_many([id], running=running))[0]

    async def cancel_many(self, ids: Iterable[str], *, running: bool = False) -> Sequence[CancelStatus]:
        """Cancel many jobs, each independently; return one answer of `cancel` for each id, in order.

        Example: `answers = await queue.cancel_many(["mail-1", "mail-2"])`
        """
        storage = await self._client.bounded_storage()
        answers: list[CancelStatus] = []
        for batch in split_ids(ids):
            answers += await storage.cancel(self.name, batch, running=running)
            cancelled = [
                id for id, one in zip(batch, answers[-len(batch) :], strict=True) if one == "cancelled"
            ]
            if cancelled and EVALUATIONS in self._handlers:
                await wake_flows_of(storage, self.name, cancelled)
        return answers

    async def amend(
        self,
        id: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        data: Any = UNSET,
        run_at: datetime | None = None,
        delay: Seconds | None = None,
        priority: int | UnsetType = UNSET,
        retention: Retention | Seconds | UnsetType | None = UNSET,
        lease: Seconds | UnsetType = UNSET,
    ) -> AmendStatus:
        """Change a job in one atomic step (contract 3, amend). An argument that is left out changes nothing.

            await queue.amend("mail-1", delay="1h", attributes={"moved_by": "ada"})

        - `attributes`: merged into the attributes of the job; after its end into those of its kept outcome.
        - `data`, `run_at` or `delay` (seconds), `priority`: only for a waiting job.
        - `lease`: least seconds of the lease when `receive()` claims the job; only for a waiting job.
        - `retention`: how long the outcome is kept: seconds, None for ever, or a Retention.

        Returns "amended"; "active" if the job runs and the change needs a waiting job; "not_found".
        """
        patch = JobPatch(
            attributes=UNSET if attributes is None else encode_attributes(attributes),
            payload=UNSET if data is UNSET else self._encode_payload(data),
            priority=priority,
            retention=UNSET if retention is UNSET else build_retention(retention),
            lease=UNSET if lease is UNSET else duration_ms("lease", lease),
            **due_fields({"run_at": run_at, "delay": delay}),
        )
        return await (await self._client.bounded_storage()).amend(self.name, id, patch)

    async def signal(
        self, id: str, name: str, value: Any = None, *, request_key: str | None = None, connection: Any = None
    ) -> SignalStatus:
        """Send a value to a live job, for the `current_job().wait_for(name)` of its handler.

            answer = await queue.signal("order-7", "approved", {"by": "ada"})

        The job keeps the signal until its end, also if its handler does not wait yet, and through retries. A
        job that waits for a signal is due at once.

        - `name`: text of 1 to 96 bytes.
        - `value`: any value that the queue's serde can encode; None for a signal without a value.
        - `request_key`: text of at most 128 bytes; a repeat within an hour sends nothing and gets the first
          answer. Default: no key.
        - `connection`: psycopg, SQLAlchemy or Django; the signal is sent with its transaction.

        Returns "delivered"; "absent" if no job with this id waits or runs; "full" if the attributes of the
        job, with all its signals, would have more than 64 KiB.
        """
        request = signal_request(self._client.serde, id, name, value, request_key)
        return SIGNAL_STATUSES[(await self._client.send(request, connection)).status]

    async def output(self, id: str, *, after: str | None = None, follow: bool = True) -> AsyncIterator[Chunk]:
        """Yield what the runs of a job write with `current_job().write`, until the id has no job.

            async for chunk in queue.output("report-7", follow=False):
                print(chunk.value)

        Use it as `async for chunk in queue.output(id):`. The output of the kept outcome comes first, then
        that of the job, if it was enqueued again.

        - `after`: `Chunk.offset` of the last chunk that a reader has. Default None: from the beginning.
        - `follow`: False ends with what is written now.

        Raises Refused for a bad offset, and on a storage that keeps no output; StorageError.
        """
        async for chunk in read_output(self._client, id, None, after, follow=follow):
            yield chunk

    async def finish(
        self, id: str, revision: int, result: Any = None, *, error: BaseException | None = None
    ) -> FinishStatus:
        """End a job that was handed off: complete it with `result`, or fail it with `error`.

            revision = await claim.hand_off()  # another program does the work, and then:
            await queue.finish(claim.id, revision, result="delivered")

        A failure gets a job of the failure handler, if a worker has one (setting `fail_handler`).
        `revision` is the number that `claim.hand_off()` returned. The call may be repeated safely. Returns
        "done"; "lost" if the revision is not of this run, or the run ended in another way; "refused" if the
        job waits or has a lease; "not_found".
        """
        end: End = Complete(result=self._client.serde.encode(result))
        if error is not None:
            check_error(error)
            end = Fail(error=error_from_exception(error))
        storage = await self._client.bounded_storage()
        answer = await storage.finish(self.name, id, end, revision)
        if answer == "done":
            await wake_flows_of(storage, self.name, [id])
        return answer

    async def retry_failed(self, id: str, *, delay: Seconds = 0) -> RetryFailedStatus:
        """Return a failed job to the queue, with its counts of attempts and retries at 0.

            async for failed in queue.list("failed", limit=100):
                await queue.retry_failed(failed.id, delay="1m")

        `delay` is the time until it may run: seconds, text such as "5m", or a timedelta.

        Returns "queued"; "live" if a job with this id waits or runs; "not_kept" if its data was not kept;
        "completed" or "cancelled" if it did not fail; "not_found".
        """
        ms = duration_ms("delay", delay)
        return (await (await self._client.bounded_storage()).retry_failed(self.name, [id], delay=ms))[0]

    async def retry_failed_many(
        self, ids: Iterable[str], *, over: Seconds = 0
    ) -> Sequence[RetryFailedStatus]:
        """Retry many failed jobs; return one answer of `retry_failed` for each id, in order.

            answers = await queue.retry_failed_many(["mail-1", "mail-2"], over="10m")

        `over` spreads their starts evenly over a time, so that they do not all come back at once. Each 100
        ids share a start.
        """
        storage = await self._client.bounded_storage()
        return [
            answer
            for batch, delay in spread_retries(ids, duration_ms("over", over))
            for answer in await storage.retry_failed(self.name, batch, delay=delay)
        ]

    async def forget(self, id: str) -> bool:
        """Remove the job and the outcome of an id in any state; return whether there were any.

        Example: `existed = await queue.forget("mail-1")`
        """
        return (await (await self._client.bounded_storage()).forget(self.name, [id]))[0]

    # -- the queue -----------------------------------------------------------------------------------

    async def pause(self, *, key: str | None = None) -> None:
        """Stop claims of this queue, or of its jobs with a key, until `resume`.

            await queue.pause()
            await queue.pause(key="acme")

        Active jobs continue, and new jobs wait. With a key, its share is 0 from then on; it forgets the share
        that it had. Raises Refused for a key on a storage without the capability `fair`.
        """
        await self.configure(**{"paused": True} if key is None else {"shares": {key: 0}})

    async def resume(self, *, key: str | None = None, share: int = 1) -> None:
        """Allow claims of this queue again, or of its jobs with a key.

            await queue.resume()
            await queue.resume(key="acme", share=3)

        - `key`: resume this key. A queue that is paused itself stays paused.
        - `share`: number of starts in a turn of the key, 1 to 1,000. Default 1.

        Raises Refused for a bad share, and for a key on a storage without the capability `fair`.
        """
        if key is None and share != 1:
            raise Refused(f"share is {share!r:.60} without a key; pass key=, too", field="share")
        if key is not None:
            check_whole_number("share", share, 1, MOST_SHARE)
        await self.configure(
            **{"paused": False} if key is None else {"shares": {key: None if share == 1 else share}}
        )

    async def counts(self) -> Counts:
        """Return the number of jobs in each state; above 10,000 a number may be approximate.

        Example: `print((await queue.counts()).waiting)`
        """
        return (await (await self._client.bounded_storage()).counts([self.name]))[self.name]

    async def clear(self, *, running: bool = False) -> int:
        """Remove all waiting and blocked jobs and all outcomes; return the number of jobs removed.

            removed = await queue.clear(running=True)

        Active jobs continue, and their outcomes are kept. With `running=True` they are removed, too: their
        holders get LeaseLost. Waiters of a removed job get JobCancelled or OutcomeNotKept. A job that is
        enqueued during the call may stay, or may be removed.
        """
        removed = 0
        for state in ("waiting", "blocked"):
            async for page in self._pages(state):
                # Unlike `forget`, a cancel leaves a job that was claimed meanwhile.
                removed += (await self.cancel_many([id for id, _ in page])).count("cancelled")
        if running:
            async for page in self._pages("active"):
                removed += await self._forget_many([id for id, _ in page])
        for end in ("completed", "failed", "cancelled"):
            async for page in self._pages(end):
                await self._forget_many([id for id, slot in page if slot.current is None])
        return removed

    async def _pages(self, state: State) -> AsyncIterator[Sequence[tuple[str, Slot]]]:
        storage, after = await self._client.bounded_storage(), None
        while True:
            page = await storage.list(self.name, state, after=after, limit=PAGE_SIZE)
            yield page.items
            if (after := page.after) is None:
                return

    async def _forget_many(self, ids: Sequence[str]) -> int:
        return sum(await (await self._client.bounded_storage()).forget(self.name, ids)) if ids else 0

    async def configure(self, **changes: Unpack[QueueSettings]) -> None:
        """Change settings of the queue. Each later claim uses them; a setting that is left out stays.

            await queue.configure(max_active=5, rate=Rate(100, per="1m"), retention="7d")

        - `paused`: whether claims are stopped. Default False.
        - `max_active`: number of jobs that may be active at once over all workers; None is no limit.
          Default None.
        - `per_key`: number of jobs of one key that may be active at once over all workers; None is no limit.
          Default None.
        - `rate`: how often runs may start over all workers, as in Rate(5, per=1); None is no limit.
          Default None.
        - `key_rate`: how often runs of one key may start, as in Rate(10, per=60); None is no limit.
          Default None.
        - `max_waiting`: number of waiting jobs, due or not, at which an enqueue makes no new one, 1 to
          1,000,000,000; None is no bound. Default None.
        - `when_full`: what such an enqueue does. "refuse" raises QueueFull; "drop_new" returns a ticket with
          the verdict "dropped". Default "refuse".
        - `fair`: whether keys take turns, so that no key waits behind all jobs of another one. Default False.
        - `shares`: number of starts in a turn by key, 0 to 1,000, as in {"acme": 3}; 0 pauses the key, None
          removes its entry, and other keys keep theirs. A key without an entry has 1. At most 1,000 entries.
        - `retention`: how long outcomes are kept if the job has no retention: seconds, None for ever, or a
          Retention. Default: completed and cancelled 1 hour, failed 7 days.
        - `log_level`: events that are logged: "off", "runs" (ends of runs) or "all". Default "runs".
        - `log_age`: seconds that events are kept. Default 86,400.
        - `log_bytes`: size of the log in bytes. Default 64 MiB.
        - `log_results`: longest result that the log keeps, in bytes, at most 4,096; 0 is none. Default 0.
        - `request_key_age`: seconds that a request_key is remembered. Default 3,600.
        - `fail_handler`: whether each job that fails gets a job of the failure handler, whoever ends it.
          Workers with a failure handler set it. Default False.

        Raises Refused naming the setting at fault, for `per_key`, `rate`, `key_rate` or `max_waiting` on a
        storage without the capability `limits`, and for `fair` or `shares` on one without `fair`.
        """
        await self._client.configure(build_patch(changes))

    async def prune(self) -> PruneResult:
        """Remove expired outcomes and request keys, and events beyond `log_age` and `log_bytes`.

            removed = (await queue.prune()).outcomes

        Returns the number of removed records of each kind.
        """
        storage = await self._client.bounded_storage()
        steps = [await storage.prune(self.name, PRUNE_BATCH)]
        while steps[-1].more:
            steps.append(await storage.prune(self.name, PRUNE_BATCH))
        return PruneResult(
            outcomes=sum(step.outcomes for step in steps),
            request_keys=sum(step.request_keys for step in steps),
            events=sum(step.events for step in steps),
        )


async def wake_flows_of(storage: Storage, queue: str, ids: Sequence[str]) -> None:
    """Wake the flows of jobs that have ended without a follow-up, by `finish` or `cancel`.

    The attributes are read from the outcomes, which nodes keep for days.
    """
    slots = await storage.get(queue, ids)
    outcomes = [slot.outcome for slot in slots if slot.outcome is not None]
    flows = dict.fromkeys(filter(None, (flow_of(outcome.kept_attributes) for outcome in outcomes)))
    requests = [wake_up_request(id) for id in flows]
    if queue == FLOWS:
        requests += [wake_up_request(id, CANCELLED_HINT) for id in ids]
    for begin in range(0, len(requests), LIMITS.batch):
        await storage.enqueue(EVALUATIONS, requests[begin : begin + LIMITS.batch])
