"""Blocking forms of async handles, whose modules are dibs.client.listing, dibs.client.schedules,
dibs.client.ticket, dibs.client.stored_queue, dibs.client.queue.

Written by tools/make_blocking.py from the async modules: change those.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Self, TypeVar, Unpack

from msgspec import UNSET, UnsetType

from dibs.client.calls.bound_job import Bound
from dibs.client.feed import FeedKind
from dibs.client.listing import Listing
from dibs.client.options.arguments import Seconds
from dibs.client.options.job_settings import JobSettings, Retention
from dibs.client.options.queue_settings import QueueSettings
from dibs.client.queue import Queue
from dibs.client.schedules import Schedules, ScheduleStatus
from dibs.client.status import Status
from dibs.client.stored_queue import StoredQueue
from dibs.client.sync.background_loop import (
    iterate,
    next_item,
    run,
    run_enqueue,
    run_with_connection,
)
from dibs.client.sync.claim import BlockingFeed, BlockingReceiver
from dibs.client.ticket import DEFAULT_WAIT, Ticket
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    Counts,
    EnqueueStatus,
    FinishStatus,
    PruneResult,
    RetryFailedStatus,
    State,
)

R = TypeVar("R")


class BlockingListing:
    """Blocking form of Listing, returned by its property `sync`.

    The jobs of a queue in one state: `for status in queue.list("failed"):`.
    """

    def __init__(self, source: Listing) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def cursor(self) -> str | None:
        """Cursor after the statuses that were yielded; pass it as `after` to a later `queue.list`.

        None if no status is left. After a `break` it may lie some statuses before the last one.
        """
        return self._source.cursor

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Status:
        """Return the next status. Raises Refused for an unknown state or cursor."""
        return next_item(self._storage_handle, "async for", self._source)


class BlockingSchedules:
    """Blocking form of Schedules, returned by its property `sync`.

    The schedules of a queue, each with a name: `report.queue.schedules.pause("tenant-7")`.

    A schedule is stored in the job of its next run, whose id is "schedule:" and the name. The end of each run
    enqueues the next one in the same atomic step. Schedules cost a worker nothing at its start, however many.
    """

    def __init__(self, source: Schedules) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    def set(
        self,
        name: str,
        call: Bound[Any],
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        tz: str | None = None,
        catch_up: bool = True,
    ) -> ScheduleStatus:
        """Make a schedule, or change the one with this name in place. It may be repeated.

            queue.schedules.set("digest", queue.bind({"to": "ada"}), cron="0 7 * * *")

        - `name`: 1 to 503 bytes.
        - `call`: the job of each run, made with `task.bind(...)` or `queue.bind(...)` of this queue. It may
          have options such as `priority` and `timeout`, but no id, time, `on_conflict` and `start_by`.
        - `cron` and `tz`, or `every`, and `catch_up`: as in `app.task(...)`.

        New times apply from now on; a run that is due already still comes. A change of the call alone keeps
        the time of the next run. An active run ends with its own arguments. A paused schedule stays paused.
        Returns the schedule. Raises Refused naming the argument at fault, StorageError, OutcomeUnknown.
        """
        return run(
            self._storage_handle,
            "await queue.schedules.set(...)",
            self._source.set(name, call, cron=cron, every=every, tz=tz, catch_up=catch_up),
        )

    def get(self, name: str) -> ScheduleStatus | None:
        """Return the schedule with this name; None if there is none.

        Example: `schedule = queue.schedules.get("digest")`
        """
        return run(self._storage_handle, "await queue.schedules.get(...)", self._source.get(name))

    def list(self, *, limit: int | None = None) -> Sequence[ScheduleStatus]:
        """Return the schedules of the queue, in any order, with the one that the task declares.

            names = [schedule.name for schedule in queue.schedules.list()]

        It reads all waiting and active jobs of the queue. `limit`: most schedules to return; None for all.
        """
        return run(self._storage_handle, "await queue.schedules.list(...)", self._source.list(limit=limit))

    def pause(self, name: str) -> bool:
        """Stop a schedule until `resume`. Return False if there is none with this name.

            paused = queue.schedules.pause("digest")

        An active run goes on. A retry of it waits for `resume`, too.
        """
        return run(self._storage_handle, "await queue.schedules.pause(...)", self._source.pause(name))

    def resume(self, name: str) -> bool:
        """Resume a paused schedule at its next time. Return False if no schedule has this name.

        Example: `resumed = queue.schedules.resume("digest")`
        """
        return run(self._storage_handle, "await queue.schedules.resume(...)", self._source.resume(name))

    def remove(self, name: str) -> bool:
        """End a schedule. Return False if there is none with this name.

            removed = queue.schedules.remove("digest")

        An active run goes on; no retry of it and no further run comes.
        """
        return run(self._storage_handle, "await queue.schedules.remove(...)", self._source.remove(name))


class BlockingTicket(Generic[R]):
    """Blocking form of Ticket, returned by its property `sync`.

    One enqueue of a job: its id and revision, its state, its result.
    """

    def __init__(self, source: Ticket[R]) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self._source.queue

    @property
    def id(self) -> str:
        """Id of the job. If `repeated`, the id of the first enqueue with that request_key."""
        return self._source.id

    @property
    def revision(self) -> int:
        """Number of this enqueue. `queue.ticket(id, revision)` returns this ticket again, in any process.

        0 for a request that is "absent".
        """
        return self._source.revision

    @property
    def verdict(self) -> EnqueueStatus | None:
        """Effect of the enqueue: "queued", "updated" or "blocked".

        With Reject also "duplicate", "completed" or "failed", with Update(create=False) also "absent". None
        for a ticket of `queue.ticket(...)`.
        """
        return self._source.verdict

    @property
    def repeated(self) -> bool:
        """True if the request_key was known.

        The enqueue changed no job then, and this ticket has the answer of the first enqueue with that key.
        """
        return self._source.repeated

    def result(self, wait: Seconds | None = DEFAULT_WAIT) -> R:
        """Wait for the end of this enqueue and return the result of its job.

            try:
                text = ticket.result(wait="10s")
            except JobFailed as failed:
                print(failed.error)

        `wait` is in seconds; None waits until the job ends. Only the run of this enqueue counts, or the run
        of a later enqueue that replaced it (contract 1, Done). The outcome is kept at least for `wait` and
        one minute.

        Raises JobFailed, JobCancelled, OutcomeNotKept if the outcome is no longer kept, JobAbsent at once for
        an Update(create=False) that found no live job, and WaitTimeout; after WaitTimeout the job stays in
        the queue.
        """
        return run(self._storage_handle, "await ticket.result(...)", self._source.result(wait))

    def progress(self) -> Iterator[Any]:
        """Yield each value that the job reports with `progress`, until this enqueue has ended.

            for value in ticket.progress():
                print(value)

        Use it as `for value in ticket.progress():`. A value that was reported before comes first. Of
        several reports in a row, only the latest may come. The last value of the run that ended comes last,
        if its outcome is kept. A retried run goes on with the values of its next run. Afterwards
        `ticket.result()` returns at once.

        Raises JobAbsent, StorageError.
        """
        return iterate(self._storage_handle, "async for ... in ticket.progress(...)", self._source.progress())

    def status(self) -> Status:
        """Return the state of this enqueue. It is `not_kept` after the outcome has expired.

        Example: `state = (ticket.status()).state`
        """
        return run(self._storage_handle, "await ticket.status(...)", self._source.status())

    def cancel(self, *, running: bool = False) -> CancelStatus:
        """Cancel the job of this ticket's id, and return the effect; see Queue.cancel.

        Example: `effect = ticket.cancel(running=True)`
        """
        return run(self._storage_handle, "await ticket.cancel(...)", self._source.cancel(running=running))


class BlockingStoredQueue:
    """Blocking form of StoredQueue, returned by its property `sync`.

    The base class of Queue: everything but enqueue, handlers, claims and events.
    """

    def __init__(self, source: StoredQueue) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self._source.name

    @property
    def schedules(self) -> BlockingSchedules:
        """The schedules of the queue: list, get, set, pause, resume and remove them by name."""
        return BlockingSchedules(self._source.schedules)

    def get(self, id: str) -> Status | None:
        """Return the status of the job with this id, or of its outcome; None for an unknown id.

        Example: `status = queue.get("mail-1")`
        """
        return run(self._storage_handle, "await queue.get(...)", self._source.get(id))

    def list(self, state: State, *, limit: int | None = None, after: str | None = None) -> BlockingListing:
        """Return the jobs in a state, in any order: `for status in queue.list("failed"):`.

        - `limit`: most statuses to yield. Default None: all of them.
        - `after`: `Listing.cursor` of an earlier listing of this state, which continues there. Default None:
          from the beginning.

        A job that stays in the state during the listing, over all pages, is yielded exactly once.
        """
        return BlockingListing(self._source.list(state, limit=limit, after=after))

    def cancel(self, id: str, *, running: bool = False) -> CancelStatus:
        """Cancel a waiting or blocked job. With `running` also ask an active run to stop.

            assert queue.cancel("mail-1", running=True) in ("cancelled", "not_found")

        Returns "cancelled"; "requested" if the active run was asked to stop; "active" if the job runs and
        `running` is False; "completed" or "failed" if it ended before; "not_found".
        """
        return run(self._storage_handle, "await queue.cancel(...)", self._source.cancel(id, running=running))

    def cancel_many(self, ids: Iterable[str], *, running: bool = False) -> Sequence[CancelStatus]:
        """Cancel many jobs, each independently; return one answer of `cancel` for each id, in order.

        Example: `answers = queue.cancel_many(["mail-1", "mail-2"])`
        """
        return run(
            self._storage_handle,
            "await queue.cancel_many(...)",
            self._source.cancel_many(ids, running=running),
        )

    def amend(
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

            queue.amend("mail-1", delay="1h", attributes={"moved_by": "ada"})

        - `attributes`: merged into the attributes of the job; after its end into those of its kept outcome.
        - `data`, `run_at` or `delay` (seconds), `priority`: only for a waiting job.
        - `lease`: least seconds of the lease when `receive()` claims the job; only for a waiting job.
        - `retention`: how long the outcome is kept: seconds, None for ever, or a Retention.

        Returns "amended"; "active" if the job runs and the change needs a waiting job; "not_found".
        """
        return run(
            self._storage_handle,
            "await queue.amend(...)",
            self._source.amend(
                id,
                attributes=attributes,
                data=data,
                run_at=run_at,
                delay=delay,
                priority=priority,
                retention=retention,
                lease=lease,
            ),
        )

    def finish(
        self, id: str, revision: int, result: Any = None, *, error: BaseException | None = None
    ) -> FinishStatus:
        """End a job that was handed off: complete it with `result`, or fail it with `error`.

            revision = claim.hand_off()  # another program does the work, and then:
            queue.finish(claim.id, revision, result="delivered")

        A failure gets a job of the failure handler, if a worker has one (setting `fail_handler`).
        `revision` is the number that `claim.hand_off()` returned. The call may be repeated safely. Returns
        "done"; "lost" if the revision is not of this run, or the run ended in another way; "refused" if the
        job waits or has a lease; "not_found".
        """
        return run(
            self._storage_handle,
            "await queue.finish(...)",
            self._source.finish(id, revision, result, error=error),
        )

    def retry_failed(self, id: str) -> RetryFailedStatus:
        """Return a failed job to the queue, with its counts of attempts and retries at 0.

            for failed in queue.list("failed", limit=100):
                queue.retry_failed(failed.id)

        Returns "queued"; "live" if a job with this id waits or runs; "not_kept" if its data was not kept;
        "completed" or "cancelled" if it did not fail; "not_found".
        """
        return run(self._storage_handle, "await queue.retry_failed(...)", self._source.retry_failed(id))

    def retry_failed_many(self, ids: Iterable[str]) -> Sequence[RetryFailedStatus]:
        """Retry many failed jobs; return one answer of `retry_failed` for each id, in order.

        Example: `answers = queue.retry_failed_many(["mail-1", "mail-2"])`
        """
        return run(
            self._storage_handle, "await queue.retry_failed_many(...)", self._source.retry_failed_many(ids)
        )

    def forget(self, id: str) -> bool:
        """Remove the job and the outcome of an id in any state; return whether there were any.

        Example: `existed = queue.forget("mail-1")`
        """
        return run(self._storage_handle, "await queue.forget(...)", self._source.forget(id))

    def pause(self) -> None:
        """Stop claims of this queue until `resume`. Active jobs continue, and new jobs wait.

        Example: `queue.pause()`
        """
        return run(self._storage_handle, "await queue.pause(...)", self._source.pause())

    def resume(self) -> None:
        """Allow claims of this queue again."""
        return run(self._storage_handle, "await queue.resume(...)", self._source.resume())

    def counts(self) -> Counts:
        """Return the number of jobs in each state; above 10,000 a number may be approximate.

        Example: `print((queue.counts()).waiting)`
        """
        return run(self._storage_handle, "await queue.counts(...)", self._source.counts())

    def clear(self, *, running: bool = False) -> int:
        """Remove all waiting and blocked jobs and all outcomes; return the number of jobs removed.

            removed = queue.clear(running=True)

        Active jobs continue, and their outcomes are kept. With `running=True` they are removed, too: their
        holders get LeaseLost. Waiters of a removed job get JobCancelled or OutcomeNotKept. A job that is
        enqueued during the call may stay, or may be removed.
        """
        return run(self._storage_handle, "await queue.clear(...)", self._source.clear(running=running))

    def configure(self, **changes: Unpack[QueueSettings]) -> None:
        """Change settings of the queue. Each later claim uses them; a setting that is left out stays.

            queue.configure(max_active=5, rate=Rate(100, per="1m"), retention="7d")

        - `paused`: whether claims are stopped. Default False.
        - `max_active`: number of jobs that may be active at once over all workers; None is no limit.
          Default None.
        - `per_key`: number of jobs of one key that may be active at once over all workers; None is no limit.
          Default None.
        - `rate`: how often runs may start over all workers, as in Rate(5, per=1); None is no limit.
          Default None.
        - `key_rate`: how often runs of one key may start, as in Rate(10, per=60); None is no limit.
          Default None.
        - `retention`: how long outcomes are kept if the job has no retention: seconds, None for ever, or a
          Retention. Default: completed and cancelled 1 hour, failed 7 days.
        - `log_level`: events that are logged: "off", "runs" (ends of runs) or "all". Default "runs".
        - `log_age`: seconds that events are kept. Default 86,400.
        - `log_bytes`: size of the log in bytes. Default 64 MiB.
        - `log_results`: longest result that the log keeps, in bytes, at most 4,096; 0 is none. Default 0.
        - `request_key_age`: seconds that a request_key is remembered. Default 3,600.
        - `fail_handler`: whether each job that fails gets a job of the failure handler, whoever ends it.
          Workers with a failure handler set it. Default False.

        Raises Refused naming the setting at fault, and for `per_key`, `rate` or `key_rate` on a storage
        without the capability `limits`.
        """
        return run(self._storage_handle, "await queue.configure(...)", self._source.configure(**changes))

    def prune(self) -> PruneResult:
        """Remove expired outcomes and request keys, and events beyond `log_age` and `log_bytes`.

            removed = (queue.prune()).outcomes

        Returns the number of removed records of each kind.
        """
        return run(self._storage_handle, "await queue.prune(...)", self._source.prune())


class BlockingQueue(BlockingStoredQueue):
    """Blocking form of Queue, returned by its property `sync`.

    A named queue of jobs, returned by `app.queue(name)` and by `task.queue`.

    It enqueues jobs, declares the function that runs them, and inspects and changes jobs by id. A queue
    needs no creation: any allowed name can be used at once.
    """

    def __init__(self, source: Queue) -> None:
        super().__init__(source)
        self._source: Queue = source

    def enqueue(
        self, data: Any = UNSET, *, connection: Any = None, **settings: Unpack[JobSettings]
    ) -> BlockingTicket[Any]:
        """Enqueue a job with any data that the queue's serde can encode, and return its ticket.

            ticket = queue.enqueue({"to": "ada@example.org"}, id="mail-1", delay="5m")

        If this app has the handler of the queue, the data is checked against its type hint, and refused if
        it would arrive changed. Concurrent calls are sent to the storage in one batch. With a `connection`
        of psycopg, SQLAlchemy or Django the job is enqueued in its transaction.

        The settings of a job, each with its default:

        - `id`: id of the job, 1 to 512 bytes; default: a generated one, which sorts by time.
        - `delay`: seconds until the job may start, text such as "5m", or a timedelta. Default 0.
        - `run_at`: datetime with a time zone from which the job may start; excludes `delay`.
        - `priority`: -1000 to 1000; a higher number starts first. Default 0.
        - `on_conflict`: Update(...) or Reject(...): how to treat an id that is known already.
          Update(create=False) takes no data, and changes nothing for an id without a live job.
          Default Update().
        - `request_key`: text of at most 128 bytes. A second enqueue with the same key within an hour
          changes nothing and gets the ticket of the first. Default: no key.
        - `key`: key of the job, to which `per_key` and `key_rate` of the queue apply: text of 1 to 128 bytes,
          a whole number, or None for no key. Default: no key, also in a queue whose task derives one.
        - `attributes`: mapping of text to JSON values, for listings and other programs. Default: empty.
        - `retention`: how long the outcome is kept: seconds, None for ever, or a Retention. Default: the
          retention of the queue.
        - `timeout`, `max_retries`, `max_timeouts`, `max_stalls`, `backoff`: replace the limits of the
          handler for this job; the units are the same. Default: the limits of the handler.
        - `start_by`: datetime with a time zone from which no run may start, or seconds from now by the clock
          of this machine. A worker that claims the job later cancels it. Default: no deadline.
        - `lease`: least seconds of the lease if the job is claimed with `queue.receive`, from the claim on.
          Default: the lease of the receiver. Workers ignore it: they renew a lease of their own.

        Raises Refused naming the setting at fault, OutcomeUnknown if the reply of the storage was lost,
        StorageError.
        """
        return BlockingTicket(
            run_enqueue(
                self._storage_handle,
                "await queue.enqueue(...)",
                self._source.enqueue(data, connection=connection, **settings),
            )
        )

    def enqueue_and_wait(
        self, data: Any = UNSET, *, wait: Seconds | None = DEFAULT_WAIT, **settings: Unpack[JobSettings]
    ) -> Any:
        """Enqueue a job, wait for it, and return its result.

            result = app.queue("echo").enqueue_and_wait({"n": 1}, wait="10s")

        It waits at most `wait` seconds, by default 60; None waits until the job ends. The settings are
        those of `enqueue`. Raises the errors of `enqueue` and of `ticket.result`. After WaitTimeout the job
        stays in the queue.
        """
        return run(
            self._storage_handle,
            "await queue.enqueue_and_wait(...)",
            self._source.enqueue_and_wait(data, wait=wait, **settings),
        )

    def enqueue_many(self, items: Iterable[Any], *, connection: Any = None) -> Sequence[BlockingTicket[Any]]:
        """Enqueue many jobs in their order. An item is the data of a job, or `queue.bind(data, ...)`.

            tickets = queue.enqueue_many([{"to": "ada"}, queue.bind({"to": "bo"}, priority=5)])

        A `connection` of psycopg, SQLAlchemy or Django enqueues the jobs in its transaction. All jobs are
        checked before the first is sent: raises BatchRefused with one Refused for each bad job.
        """
        return [
            BlockingTicket(one)
            for one in run_with_connection(
                self._storage_handle,
                "await queue.enqueue_many(...)",
                self._source.enqueue_many(items, connection=connection),
            )
        ]

    def bind(self, data: Any = UNSET, **settings: Unpack[JobSettings]) -> Bound[Any]:
        """Return a job to be enqueued later: with `enqueue_many`, in a flow, or as a job's follow-up.

            claim.complete(then=[queue.bind({"to": "bo@example.org"}, delay="1h")])

        The settings are those of `enqueue`. The call that takes the Bound raises the errors of `enqueue`.
        """
        return self._source.bind(data, **settings)

    def ticket(self, id: str, revision: int) -> BlockingTicket[Any]:
        """Return the ticket of an earlier enqueue by its id and revision, also one of another process.

        Example: `status = queue.ticket(ticket.id, ticket.revision).status()`
        """
        return BlockingTicket(self._source.ticket(id, revision))

    def receive(
        self, max_jobs: int = 10, lease: Seconds = 30, wait: Seconds | None = None
    ) -> BlockingReceiver:
        """Claim jobs without a worker: `with queue.receive() as claims: for claim in claims:`.

            with queue.receive(max_jobs=5, wait=1) as claims:
                for claim in claims:
                    claim.complete("done")

        - `max_jobs`: number of claims that may be open at a time. Default 10.
        - `lease`: seconds of the lease, which is renewed in the background. Default 30.
        - `wait`: seconds without a job after which the iteration ends; None never ends it. Default None.

        Raises Refused for a value that is not allowed.
        """
        return BlockingReceiver(self._source.receive(max_jobs, lease, wait))

    def events(
        self,
        after: str | None = None,
        *,
        ids: Iterable[str] | None = None,
        kinds: Iterable[FeedKind] | None = None,
    ) -> BlockingFeed:
        """Follow the events of this queue: `with queue.events() as events: for event in events:`.

            with queue.events(kinds=["completed"]) as events:
                claim.complete("sent")
                for event in events:
                    print(event.id, event.kind)
                    break

        - `after`: offset of an event; the feed begins with the event after it. "" is the start of the log,
          also if its first events were trimmed. Default None: new events, and the progress that runs report.
        - `ids`: only events of these ids. Default: all ids.
        - `kinds`: only events of these kinds. Default: all kinds.

        Of several reports of a run in a row, only the last may be an event. The last report of a run is one
        if its outcome is kept, usually before the end of the run.

        Entering the feed raises Refused for kinds that the queue's `log_level` leaves out.
        """
        return BlockingFeed(self._source.events(after, ids=ids, kinds=kinds))
