"""Blocking form of dibs.client.queue.

Written by tools/make_blocking.py from the async module: change that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from msgspec import UNSET

from dibs.client.calls.bound_job import Bound
from dibs.client.feed import FeedKind
from dibs.client.options.durations import Seconds
from dibs.client.options.job_settings import JobSettings
from dibs.client.queue import Queue
from dibs.client.sync.background_loop import run, run_with_connection
from dibs.client.sync.feed import BlockingFeed
from dibs.client.sync.receiver import BlockingReceiver
from dibs.client.sync.stored_queue import BlockingStoredQueue
from dibs.client.sync.thread_calls import run_enqueue
from dibs.client.sync.ticket import BlockingTicket
from dibs.client.ticket import DEFAULT_WAIT


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

    def events(
        self,
        after: str | None = None,
        *,
        ids: Iterable[str] | None = None,
        kinds: Iterable[FeedKind] | None = None,
    ) -> BlockingFeed:
        """Follow the events of this queue: `with queue.events() as events: for event in events:`.

        - `after`: offset of an event; the feed begins with the event after it. "" is the start of the log,
          also if its first events were trimmed. Default None: new events, and the progress that runs report.
        - `ids`: only events of these ids. Default: all ids.
        - `kinds`: only events of these kinds. Default: all kinds.

        Of several reports of a run in a row, only the last may be an event. The last report of a run is one
        if its outcome is kept, usually before the end of the run.

        Entering the feed raises Refused for kinds that the queue's `log_level` leaves out.
        """
        return BlockingFeed(self._source.events(after, ids=ids, kinds=kinds))
