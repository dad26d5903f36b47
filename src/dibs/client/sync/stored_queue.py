"""Blocking form of dibs.client.stored_queue.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from msgspec import UNSET, UnsetType

from dibs.client.options.durations import Seconds
from dibs.client.options.queue_settings import QueueSettings
from dibs.client.options.retention import Retention
from dibs.client.status import Status
from dibs.client.stored_queue import StoredQueue
from dibs.client.sync.background_loop import run
from dibs.client.sync.listing import BlockingListing
from dibs.client.sync.schedules import BlockingSchedules
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    Counts,
    FinishStatus,
    PruneResult,
    RetryFailedStatus,
    State,
)


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
        """Return the status of the job with this id, or of its outcome; None for an unknown id."""
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

        - `attributes`: merged into the attributes of the job; after its end into those of its kept outcome.
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

    def clear(self, *, running: bool = False) -> int:
        """Remove all waiting and blocked jobs and all outcomes; return the number of jobs removed.

        Active jobs continue, and their outcomes are kept. With `running=True` they are removed, too: their
        holders get LeaseLost. Waiters of a removed job get JobCancelled or OutcomeNotKept. A job that is
        enqueued during the call may stay, or may be removed.
        """
        return run(self._storage_handle, "await queue.clear(...)", self._source.clear(running=running))

    def configure(self, **changes: Unpack[QueueSettings]) -> None:
        """Change settings of the queue. Each later claim uses them; a setting that is left out stays.

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

        Returns the number of removed records of each kind.
        """
        return run(self._storage_handle, "await queue.prune(...)", self._source.prune())
