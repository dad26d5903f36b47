"""The stored values of a job id (contract 1): its job, its outcome, and the values inside them.

Each id of a queue has up to three parts:

- The *current* is a job that waits or is active.
- The *successor* merges the enqueues that arrive while the current is active. It becomes the next current.
- The *outcome* is the retained end of the latest run.

The storage draws three growing numbers. The `revision` identifies an enqueue, the `fence` identifies a claim,
and the `seq` orders jobs that are otherwise equal.

Times are ms since the epoch, UTC. The values are frozen msgspec Structs (docs/decisions/values.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType

from dibs.model.overrides import Overrides

EndKind = Literal["completed", "failed", "cancelled"]
ErrorKind = Literal["error", "permanent", "timeout", "stall"]

#: The retention of an outcome that never expires. It is None because JSON and SQL have that value, too.
FOREVER: Final = None
#: The retention, in ms, of an outcome that expires at the end of its run. Readers never see such an outcome.
NOT_KEPT: Final = 0

#: The ending of the name of a fail queue. A job of `emails` that fails gets a fail job in `emails!fail`, if
#: the task has a handler for failures.
FAIL_SUFFIX: Final = "!fail"

#: The attributes of a job that has none. It is one shared object, so that a check can compare by identity.
NO_ATTRIBUTES: Final[Mapping[str, bytes]] = {}


class OutcomeRetention(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The time in ms for which an outcome is kept, for each kind of end.

    None keeps the outcome for ever, and 0 does not keep it. UNSET asks the next level. The levels are, in
    order: the settlement that ends the run, the job, its queue, and DEFAULT_RETENTION.
    """

    completed: int | UnsetType | None = UNSET
    failed: int | UnsetType | None = UNSET
    cancelled: int | UnsetType | None = UNSET
    #: The kinds of end whose outcome keeps the data of the job: payload, attributes, priority, overrides
    #: and retention.
    keep_payload: tuple[EndKind, ...] | UnsetType = UNSET


#: The retention that applies where the settlement, the job and the queue set none: 1 h, 7 days and 1 h.
DEFAULT_RETENTION: Final = OutcomeRetention(
    completed=3_600_000, failed=7 * 86_400_000, cancelled=3_600_000, keep_payload=("failed",)
)


class JobData(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """The part of a job that `Update(data=True)` replaces, always as a whole."""

    #: The encoded arguments of the handler. No storage reads them.
    payload: bytes = b""
    #: One JSON value for each name, encoded as JSON.
    attributes: Mapping[str, bytes] = NO_ATTRIBUTES
    #: -1000 to 1000; jobs with a higher priority are claimed first.
    priority: int = 0
    #: Limits for this job alone; None for those of the handler.
    overrides: Overrides | None = None
    #: The retention of the outcome of this job; None for that of the queue.
    retention: OutcomeRetention | None = None
    #: The key to which the settings `per_key` and `key_rate` of the queue apply, 1 to 128 bytes; None for a
    #: job that only the setting `rate` holds back.
    key: str | None = None
    #: Bytes that a run stored with `report` for later runs of the job; None for no memo. No storage reads
    #: them. A request has no memo.
    memo: bytes | None = None


#: The data of an update-only request, which has none. It is one shared object, as NO_ATTRIBUTES.
NO_DATA: Final = JobData()


class NewJob(Struct, frozen=True, gc=False, kw_only=True):
    """A job to enqueue. Set at most one of `run_at` and `delay`; without both, the job is due at once."""

    id: str
    data: JobData = JobData()
    #: The earliest time of a run, in ms since the epoch.
    run_at: int | None = None
    #: The earliest time of a run, in ms after the storage accepts the job.
    delay: int | None = None


class Error(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """An exception as text. dibs never turns it into an exception object again."""

    type: str
    """The name of the class of the exception."""
    message: str = ""
    """The text of the exception."""
    traceback: str = ""
    """The formatted traceback; may be empty."""
    cause: Error | None = None
    """The exception that caused this one, or None."""
    kind: ErrorKind = "error"
    """The reason why the run ended: "error", an error of the handler; "permanent", an error that allows no
    retry; "timeout", the run exceeded its timeout; "stall", its worker process died or its lease expired."""


class Origin(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """The failed job that a fail job is about (contract 3, The fail job).

    The fields are those of the failed job at its end; `fence` is 0 if it was not claimed.
    """

    queue: str
    id: str
    revision: int
    fence: int
    attempts: int
    retries: int
    stalls: int
    timeouts: int
    enqueued_at: int
    error: Error
    run_at: int
    attributes: Mapping[str, bytes] = NO_ATTRIBUTES


class ActiveRun(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """The part of an active job that begins with its claim and is removed when the run ends or comes back."""

    #: The number of the claim. A settlement must name it, so that the holder of an older claim is refused.
    fence: int
    #: The id of the lease that holds the run. None after a hand-off; then any process may end the run.
    lease: str | None
    #: The name that the holder gave when the storage granted it the lease.
    holder: str
    #: The time of the claim, in ms since the epoch.
    claimed_at: int
    #: The last reported progress, encoded as JSON; None before the first report.
    progress: bytes | None = None
    #: True after a `cancel` with `running=True`. From then on the run can end, but cannot return.
    cancel_requested: bool = False


class Job(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """The job that an id holds now. It waits if `run` is None; otherwise it is active."""

    id: str
    data: JobData
    #: The earliest time of the next run, in ms since the epoch.
    run_at: int
    #: The time of the first enqueue, in ms since the epoch.
    enqueued_at: int
    #: The position among jobs of equal priority and run_at: a lower number is claimed first. A
    #: parked job has 0.
    seq: int
    #: The revision of the oldest enqueue that was merged into this job.
    first: int
    #: The revision of the newest enqueue that was merged into this job.
    revision: int
    #: The number of enqueues that were merged into this job.
    enqueues: int = 1
    #: The number of claims, including the claim of `run`. A release subtracts its claim.
    attempts: int = 0
    #: The number of retries after errors.
    retries: int = 0
    #: The number of times that the job returned because its process died or its lease expired.
    stalls: int = 0
    #: The number of retries after timeouts.
    timeouts: int = 0
    #: The error of the latest run that was retried; None before the first retry.
    error: Error | None = None
    #: The failed job, if this job is a fail job; else None.
    origin: Origin | None = None
    #: The run of an active job; None while the job waits.
    run: ActiveRun | None = None

    @property
    def is_parked(self) -> bool:
        """True if the job waits for a wake: a release with `parked` made it wait, and nothing ended that."""
        return self.run is None and self.seq == 0

    @property
    def is_retrying(self) -> bool:
        """True if the job waits and an earlier run ended in an error, a timeout or a stall."""
        return self.run is None and bool(self.retries or self.stalls or self.timeouts)


class Successor(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """The enqueues of an id while its current is active: a list of updates, folded by dibs.model.fold.

    If the run ends, the successor becomes the waiting job. If the run comes back, as for a retry, the updates
    are applied to the returned job. Some fields serve only one of the two cases.
    """

    data: JobData
    #: True if `data` also replaces the data of a job that comes back.
    replaces: bool
    #: The run_at after the run has ended, in ms since the epoch.
    run_at: int
    #: The lower bound for the run_at of a job that comes back; None for no bound.
    lo: int | None
    #: The upper bound for the run_at of a job that comes back; None for no bound.
    hi: int | None
    #: True if the counts of a job that comes back become 0.
    resets: bool
    #: The time of the first enqueue in the list, in ms since the epoch.
    enqueued_at: int
    #: The position among jobs of equal priority and run_at, once the successor waits.
    seq: int
    #: The revision of the first enqueue in the list.
    first: int
    #: The revision of the last enqueue in the list.
    revision: int
    #: The length of the list.
    enqueues: int = 1
    #: False while the list has only update-only requests (`Update(create=False)`). Such a successor has no
    #: data, and its run_at and seq are 0. If the run ends, it makes no job, and its
    #: range joins that of the run.
    creates: bool = True


class Outcome(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """The retained end of the latest run of an id. From `expires_at` on, every operation ignores it."""

    kind: EndKind
    #: The fence of the run that ended; 0 if the job was cancelled while it waited.
    fence: int
    #: The revision of the oldest enqueue that was merged into the ended job.
    first: int
    #: The revision of the newest enqueue that was merged into the ended job.
    revision: int
    #: The time of the end, in ms since the epoch.
    ended_at: int
    #: The time at which the retention ends, in ms since the epoch; None for an outcome that is kept for ever.
    expires_at: int | None
    #: The result of a completed run, encoded by the serde of the client. A handler that returned None has an
    #: encoded None here; the field is None if the run did not complete.
    result: bytes | None = None
    #: The error of a failed run, or the reason that a cancellation gave; else None.
    error: Error | None = None
    #: The number of enqueues that were merged into the ended job.
    enqueues: int = 1
    enqueued_at: int = 0
    run_at: int = 0
    #: The time of the claim; None if the job was cancelled while it waited.
    claimed_at: int | None = None
    #: The holder of the run; empty if the job was cancelled while it waited.
    holder: str = ""
    attempts: int = 0
    retries: int = 0
    stalls: int = 0
    timeouts: int = 0
    #: The data of the job, for the kinds of end in OutcomeRetention.keep_payload; else None.
    data: JobData | None = None
    #: The failed job, if the job was a fail job; else None.
    origin: Origin | None = None
    #: The attributes of the job, if `data` is None. With data they are `data.attributes`, and this is empty.
    attributes: Mapping[str, bytes] = NO_ATTRIBUTES
    #: The last progress of the run that ended, encoded as JSON; None if it reported none.
    progress: bytes | None = None

    @property
    def kept_attributes(self) -> Mapping[str, bytes]:
        """The attributes of the ended job, which a kept outcome has with and without data."""
        return self.attributes if self.data is None else self.data.attributes


#: The first and the last revision of a range; both belong to it.
RevisionRange = tuple[int, int]


class Slot(Struct, frozen=True, gc=False, array_like=True):
    """Everything that a queue holds about one id. See the module docstring for the parts."""

    #: The waiting or active job, or None.
    current: Job | None = None
    #: The blocked job; None unless `current` is active.
    successor: Successor | None = None
    #: The end of the latest run; None if there was none or it is not kept.
    outcome: Outcome | None = None
    #: The revisions of cancelled successors: at most eight ranges, oldest first. Waiters for an enqueue in
    #: one of these ranges get `JobCancelled`.
    dropped: tuple[RevisionRange, ...] = ()


#: The slot of an id that the queue does not know.
EMPTY: Final = Slot()
