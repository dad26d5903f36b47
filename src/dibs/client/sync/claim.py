"""Blocking forms of async handles, whose modules are dibs.client.receiver, dibs.client.claim,
dibs.client.feed.

Written by tools/make_blocking.py from the async modules: change those.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from dibs.client.calls.bound_job import Bound
from dibs.client.claim import Claim
from dibs.client.feed import Event, Feed
from dibs.client.options.arguments import Seconds
from dibs.client.options.job_settings import Retention
from dibs.client.receiver import Receiver
from dibs.client.sync.background_loop import (
    next_item,
    run,
    run_with_connection,
)
from dibs.model.results import SettleStatus


class BlockingReceiver:
    """Blocking form of Receiver, returned by its property `sync`.

    The claims of one queue: `with queue.receive() as claims: for claim in claims:`.

    It holds at most `max_jobs` claims: the iteration waits until one of them is settled. The lease of the
    claims is renewed in the background. Jobs under expired leases of other holders return to the queue at
    each renewal, before the first wait for a job, and before the end of the iteration. The end of the block
    releases all claims that are not settled.
    """

    def __init__(self, source: Receiver) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    def __enter__(self) -> Self:
        run(self._storage_handle, "async with", self._source.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return run(self._storage_handle, "async with", self._source.__aexit__(kind, error, trace))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BlockingClaim:
        """Return the next claim. The iteration ends after `wait` seconds without a job."""
        return BlockingClaim(next_item(self._storage_handle, "async for", self._source))


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

            claim.complete({"sent": True}, then=[queue.bind({"to": "bo@example.org"})], retention="1d")

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

            claim.fail(ValueError("no such address"))

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

            assert claim.retry(delay="30s", error=TimeoutError("no answer")) == "returned"

        Returns "returned", or "cancelled" if the run was asked to stop: the job has ended then.
        """
        return run(
            self._storage_handle, "await claim.retry(...)", self._source.retry(at, delay=delay, error=error)
        )

    def release(self, *, delay: Seconds | None = None, until: datetime | None = None) -> SettleStatus:
        """Return the job to the queue without counting an attempt or a retry.

            assert claim.release() == "returned"

        It may start at once, after `delay` s, or from `until`. Without both it keeps its place in the queue.

        Returns "returned", or "cancelled" if the run was asked to stop: the job has ended then.
        """
        return run(
            self._storage_handle, "await claim.release(...)", self._source.release(delay=delay, until=until)
        )

    def hand_off(self) -> int:
        """Hand the job off: it stays active without a lease until `queue.finish(id, revision)` ends it.

            revision = claim.hand_off()
            queue.finish(claim.id, revision, result="signed")  # hours later, from any program

        Returns that revision. A handed-off job never returns to the queue by itself. Raises JobCancelled if
        the run was asked to stop: the job has ended then.
        """
        return run(self._storage_handle, "await claim.hand_off(...)", self._source.hand_off())

    def extend(self, seconds: Seconds) -> None:
        """Renew the lease, so that it ends no earlier than `seconds` from now.

            claim.extend("5m")

        The receiver's other claims under this lease are renewed, too. Raises LeaseLost if it has ended.
        """
        return run(self._storage_handle, "await claim.extend(...)", self._source.extend(seconds))

    def progress(self, value: Any) -> None:
        """Store the progress of the job, any JSON value of at most 1 MiB. `queue.get(id)` returns it.

            claim.progress({"percent": 40})

        Raises LeaseLost if the lease has ended, Refused if JSON cannot encode the value.
        """
        return run(self._storage_handle, "await claim.progress(...)", self._source.progress(value))


class BlockingFeed:
    """Blocking form of Feed, returned by its property `sync`.

    The events of one queue in order: `with queue.events() as events: for event in events:`.

    The iteration waits for new events and never ends.
    """

    def __init__(self, source: Feed) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def offset(self) -> str:
        """Offset of the latest event that the iteration returned: pass it to `queue.events` to continue."""
        return self._source.offset

    def __enter__(self) -> Self:
        """Start the feed. Raises Refused for kinds that the queue's `log_level` leaves out."""
        run(self._storage_handle, "async with", self._source.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return run(self._storage_handle, "async with", self._source.__aexit__(kind, error, trace))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """Wait for the next event and return it."""
        return next_item(self._storage_handle, "async for", self._source)
