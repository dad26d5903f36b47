"""Blocking form of dibs.client.queue.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from msgspec import UNSET, UnsetType

from dibs.client.calls.bound_job import Bound
from dibs.client.feed import FeedKind
from dibs.client.options.durations import Seconds
from dibs.client.options.job_settings import JobSettings
from dibs.client.options.queue_settings import QueueSettings
from dibs.client.options.retention import Retention
from dibs.client.queue import Queue
from dibs.client.status import Status
from dibs.client.sync.background_loop import iterate, run, run_with_connection
from dibs.client.sync.feed import BlockingFeed
from dibs.client.sync.receiver import BlockingReceiver
from dibs.client.sync.ticket import BlockingTicket
from dibs.client.ticket import DEFAULT_WAIT
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    Counts,
    FinishStatus,
    PruneResult,
    RetryFailedStatus,
    State,
)


class BlockingQueue:
    """Blocking form of Queue, returned by its property `sync`.

    A named queue of jobs, returned by `app.queue(name)` and by `task.queue`.

    It enqueues jobs, declares the function that runs them, and inspects and changes jobs by id. A queue
    needs no creation: any allowed name can be used at once.
    """

    def __init__(self, source: Queue) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self._source.name

    def enqueue(
        self, data: Any, *, connection: Any = None, **settings: Unpack[JobSettings]
    ) -> BlockingTicket[Any]:
        """Enqueue a job with any data that the queue's serde can encode, and return its ticket.

        If this app has the handler of the queue, the data is checked against its type hint. Concurrent
        calls are sent to the storage in one batch. With a `connection` of psycopg or SQLAlchemy the job is
        enqueued in its transaction.

        The settings of a job, each with its default:

        - `id`: id of the job, 1 to 512 bytes; default: a generated one, which sorts by time.
        - `delay`: seconds until the job may start, as a number or a timedelta. Default 0.
        - `run_at`: datetime with a time zone from which the job may start; excludes `delay`.
        - `priority`: -1000 to 1000; a higher number starts first. Default 0.
        - `on_conflict`: Update(...) or Reject(...): how to treat an id that is known already.
          Default Update().
        - `request_key`: text of at most 128 bytes. A second enqueue with the same key within an hour
          changes nothing and gets the answer of the first. Default: no key.
        - `attributes`: mapping of text to JSON values, for listings and other programs. Default: empty.
        - `retention`: how long the outcome is kept: seconds, None for ever, or a Retention. Default: the
          retention of the queue.
        - `timeout`, `max_retries`, `max_timeouts`, `max_stalls`, `backoff`: replace the limits of the
          handler for this job; the units are the same. Default: the limits of the handler.
        - `lease`: seconds of the lease if the job is claimed with `queue.receive`. Default: the lease of
          the receiver.

        Raises Refused naming the setting at fault, OutcomeUnknown if the reply of the storage was lost,
        StorageError.
        """
        return BlockingTicket(
            run_with_connection(
                self._storage_handle,
                "await queue.enqueue(...)",
                self._source.enqueue(data, connection=connection, **settings),
            )
        )

    def enqueue_and_wait(
        self, data: Any, *, wait: Seconds | None = DEFAULT_WAIT, **settings: Unpack[JobSettings]
    ) -> Any:
        """Enqueue a job, wait for it, and return its result.

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

        With a `connection` of psycopg or SQLAlchemy the jobs are enqueued in its transaction. All jobs are
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

    def bind(self, data: Any, **settings: Unpack[JobSettings]) -> Bound:
        """Return a job to be enqueued later: with `enqueue_many`, or as the follow-up of another job.

        The settings are those of `enqueue`. The call that takes the Bound raises the errors of `enqueue`.
        """
        return self._source.bind(data, **settings)

    def ticket(self, id: str, revision: int) -> BlockingTicket[Any]:
        """Return the ticket of an earlier enqueue by its id and revision, also one of another process."""
        return BlockingTicket(self._source.ticket(id, revision))

    def receive(
        self, max_jobs: int = 10, lease: Seconds = 30, wait: Seconds | None = None
    ) -> BlockingReceiver:
        """Claim jobs without a worker: `with queue.receive() as claims: for claim in claims:`.

        - `max_jobs`: number of claims that may be open at a time. Default 10.
        - `lease`: seconds of the lease, which is renewed in the background. Default 30.
        - `wait`: seconds without a job after which the iteration ends; None never ends it. Default None.

        Raises Refused for a value that is not allowed.
        """
        return BlockingReceiver(self._source.receive(max_jobs, lease, wait))

    def get(self, id: str) -> Status | None:
        """Return the status of the job with this id, or of its outcome; None for an unknown id."""
        return run(self._storage_handle, "await queue.get(...)", self._source.get(id))

    def list(self, state: State) -> Iterator[Status]:
        """Yield the status of every job in a state, in any order.

        A job that stays in the state during the listing is yielded exactly once.
        """
        return iterate(self._storage_handle, "async for ... in queue.list(...)", self._source.list(state))

    def cancel(self, id: str, *, running: bool = False) -> CancelStatus:
        """Cancel a waiting or blocked job. With `running` also ask an active run to stop.

        Returns "cancelled"; "requested" if the active run was asked to stop; "active" if the job runs and
        `running` is False; "completed" or "failed" if it ended before; "not_found".
        """
        return run(self._storage_handle, "await queue.cancel(...)", self._source.cancel(id, running=running))

    def cancel_many(self, ids: Iterable[str], *, running: bool = False) -> Sequence[CancelStatus]:
        """Cancel many jobs, each independently; return one answer of `cancel` for each id, in order."""
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
    ) -> AmendStatus:
        """Change a job in one atomic step (contract 3, amend). An argument that is left out changes nothing.

        - `attributes`: merged into the attributes of the job.
        - `data`, `run_at` or `delay` (seconds), `priority`: only for a waiting job.
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
            ),
        )

    def finish(
        self, id: str, revision: int, result: Any = None, *, error: BaseException | None = None
    ) -> FinishStatus:
        """End a job that was handed off: complete it with `result`, or fail it with `error`.

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

        Returns "queued"; "live" if a job with this id waits or runs; "not_kept" if its data was not kept;
        "completed" or "cancelled" if it did not fail; "not_found".
        """
        return run(self._storage_handle, "await queue.retry_failed(...)", self._source.retry_failed(id))

    def retry_failed_many(self, ids: Iterable[str]) -> Sequence[RetryFailedStatus]:
        """Retry many failed jobs; return one answer of `retry_failed` for each id, in order."""
        return run(
            self._storage_handle, "await queue.retry_failed_many(...)", self._source.retry_failed_many(ids)
        )

    def forget(self, id: str) -> bool:
        """Remove the job and the outcome of an id in any state; return whether there were any."""
        return run(self._storage_handle, "await queue.forget(...)", self._source.forget(id))

    def pause(self) -> None:
        """Stop claims of this queue until `resume`. Active jobs continue, and new jobs wait."""
        return run(self._storage_handle, "await queue.pause(...)", self._source.pause())

    def resume(self) -> None:
        """Allow claims of this queue again."""
        return run(self._storage_handle, "await queue.resume(...)", self._source.resume())

    def counts(self) -> Counts:
        """Return the number of jobs in each state; above 10,000 a number may be approximate."""
        return run(self._storage_handle, "await queue.counts(...)", self._source.counts())

    def configure(self, **changes: Unpack[QueueSettings]) -> None:
        """Change settings of the queue. Each later claim uses them; a setting that is left out stays.

        - `paused`: whether claims are stopped. Default False.
        - `max_active`: number of jobs that may be active at once over all workers; None is no limit.
          Default None.
        - `retention`: how long outcomes are kept if the job has no retention: seconds, None for ever, or a
          Retention. Default: completed and cancelled 1 hour, failed 7 days.
        - `log_level`: events that are logged: "off", "runs" (ends of runs) or "all". Default "runs".
        - `log_age`: seconds that events are kept. Default 86,400.
        - `log_bytes`: size of the log in bytes. Default 64 MiB.
        - `request_key_age`: seconds that a request_key is remembered. Default 3,600.

        Raises Refused naming the setting at fault.
        """
        return run(self._storage_handle, "await queue.configure(...)", self._source.configure(**changes))

    def prune(self) -> PruneResult:
        """Remove expired outcomes and request keys, and events beyond `log_age` and `log_bytes`.

        Returns the number of removed records of each kind.
        """
        return run(self._storage_handle, "await queue.prune(...)", self._source.prune())

    def events(
        self,
        after: str | None = None,
        *,
        ids: Iterable[str] | None = None,
        kinds: Iterable[FeedKind] | None = None,
    ) -> BlockingFeed:
        """Follow the events of this queue: `with queue.events() as events: for event in events:`.

        - `after`: offset of an event; the feed begins with the event after it. "" begins with the oldest
          event of the log. Default None: only new events, and progress, which is best effort.
        - `ids`: only events of these ids. Default: all ids.
        - `kinds`: only events of these kinds. Default: all kinds.

        Entering the feed raises Refused for kinds that the queue's `log_level` leaves out.
        """
        return BlockingFeed(self._source.events(after, ids=ids, kinds=kinds))
