"""Blocking form of dibs.client.claim.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from dibs.client.calls.bound_job import Bound
from dibs.client.claim import Claim
from dibs.client.options.durations import Seconds
from dibs.client.options.retention import Retention
from dibs.client.sync.background_loop import run, run_with_connection
from dibs.model.results import SettleStatus


class BlockingClaim:
    """Blocking form of Claim, returned by its property `sync`.

    An active job that this program holds until the claim is settled or its lease ends.

    `complete`, `fail`, `retry`, `release` and `hand_off` settle the claim. All methods raise LeaseLost after
    the lease has ended: the job may run elsewhere then.
    """

    def __init__(self, source: Claim) -> None:
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
        """Id of the job."""
        return self._source.id

    @property
    def fence(self) -> int:
        """Number of this run, which grows with each claim of the id.

        Pass it to other systems, so that they can refuse writes of an earlier run.
        """
        return self._source.fence

    @property
    def attempt(self) -> int:
        """Number of this claim of the job, from 1."""
        return self._source.attempt

    @property
    def retries(self) -> int:
        """Number of times the job returned to the queue after an error."""
        return self._source.retries

    @property
    def stalls(self) -> int:
        """Number of times the job returned to the queue because its holder was gone."""
        return self._source.stalls

    @property
    def timeouts(self) -> int:
        """Number of times the job returned to the queue after a timeout."""
        return self._source.timeouts

    @property
    def lost(self) -> bool:
        """True after a heartbeat found that the lease has ended."""
        return self._source.lost

    @property
    def cancelled(self) -> bool:
        """True if the run was asked to stop. A cancelled job does not return to the queue."""
        return self._source.cancelled

    @property
    def data(self) -> Any:
        """The data of the job; for a task {"args": [...], "kwargs": {...}}.

        Raises ValueError if the queue's serde cannot decode it.
        """
        return self._source.data

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the job at the time of the claim."""
        return self._source.attributes

    def complete(
        self,
        result: Any = None,
        *,
        then: Iterable[Bound[Any]] = (),
        retention: Retention | Seconds | None = None,
        connection: Any = None,
    ) -> None:
        """Complete the job with a result that the queue's serde can encode.

        - `then`: jobs, made with `bind`, that are enqueued in the same atomic step.
        - `retention`: how long the outcome is kept, in seconds or as a Retention. Default: the retention of
          the job.
        - `connection`: connection of psycopg, SQLAlchemy or Django, whose transaction settles the claim.
          After a rollback it may be settled again until its lease ends; this lease is no longer renewed.

        Raises LeaseLost, Refused, OutcomeUnknown if the reply of the storage was lost.
        """
        return run_with_connection(
            self._storage_handle,
            "await claim.complete(...)",
            self._source.complete(result, then=then, retention=retention, connection=connection),
        )

    def fail(
        self, error: BaseException | str, *, then: Iterable[Bound[Any]] = (), connection: Any = None
    ) -> None:
        """Fail the job with an error, without a retry.

        If the queue has a failure handler, its job is enqueued in the same atomic step. `then` and
        `connection` are those of `complete`.
        """
        return run_with_connection(
            self._storage_handle,
            "await claim.fail(...)",
            self._source.fail(error, then=then, connection=connection),
        )

    def retry(
        self, at: datetime | None = None, *, delay: Seconds | None = None, error: BaseException | None = None
    ) -> SettleStatus:
        """Return the job to the queue and count a retry. It may start at once, after `delay` s, or from `at`.

        Returns "returned", or "cancelled" if the run was asked to stop: the job has ended then.
        """
        return run(
            self._storage_handle, "await claim.retry(...)", self._source.retry(at, delay=delay, error=error)
        )

    def release(self, *, delay: Seconds | None = None, until: datetime | None = None) -> SettleStatus:
        """Return the job to the queue without counting an attempt or a retry.

        It may start at once, after `delay` s, or from `until`. Without both it keeps its place in the queue.

        Returns "returned", or "cancelled" if the run was asked to stop: the job has ended then.
        """
        return run(
            self._storage_handle, "await claim.release(...)", self._source.release(delay=delay, until=until)
        )

    def hand_off(self) -> int:
        """Hand the job off: it stays active without a lease until `queue.finish(id, revision)` ends it.

        Returns that revision. A handed-off job never returns to the queue by itself. Raises JobCancelled if
        the run was asked to stop: the job has ended then.
        """
        return run(self._storage_handle, "await claim.hand_off(...)", self._source.hand_off())

    def extend(self, seconds: Seconds) -> None:
        """Renew the lease, so that it ends no earlier than `seconds` from now.

        The receiver's other claims under this lease are renewed, too. Raises LeaseLost if it has ended.
        """
        return run(self._storage_handle, "await claim.extend(...)", self._source.extend(seconds))

    def progress(self, value: Any) -> None:
        """Store the progress of the job, any JSON value of at most 1 MiB. `queue.get(id)` returns it.

        Raises LeaseLost if the lease has ended, Refused if JSON cannot encode the value.
        """
        return run(self._storage_handle, "await claim.progress(...)", self._source.progress(value))
