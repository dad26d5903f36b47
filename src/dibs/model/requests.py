"""The arguments that storages take: enqueue requests, settlements, patches and queue settings.

A settlement ends one claimed run, or returns its job to the queue. Its action is Complete, Fail, Cancelled,
RetryLater, Release or HandOff.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from dibs.model.job import Error, NewJob, OutcomeRetention
from dibs.model.retry import RetryCause

RunAtRule = Literal["always", "never", "later", "earlier", "wake"]
LogLevel = Literal["off", "runs", "all"]
WhenFull = Literal["refuse", "drop_new"]


class Update(Struct, frozen=True, gc=False, tag="update"):
    """The rule for an enqueue whose id has a job already: update that job.

    A waiting job is updated at once. The update of an active job applies to the next run of the id.
    """

    data: bool | None = None
    """True to replace payload, attributes, priority, key, overrides and retention together; False to keep
    all of them. None means the value of `create`."""
    run_at: RunAtRule = "always"
    """`always` takes the new run_at and `never` keeps the old one; `later` and `earlier` compare the two.
    `wake` makes a parked job due now, and keeps the time of any other job; it needs `create=False`, and the
    request has no time."""
    reset_counts: bool | None = None
    """True to set attempts, retries, stalls and timeouts to 0. None means the value of `data`."""
    create: bool = True
    """False for an update-only request: an id without a live job stays unchanged. Such a request moves only
    `run_at` and the counts of a live job, and merges its attributes into those of the job."""
    supersede: bool = False
    """True to ask the active run that the request meets to end, as `cancel` with `running=True` does. The
    request is its successor, and the run cannot come back. A handed-off run ends as cancelled at once. It is
    refused with `create=False`."""

    @property
    def replaces(self) -> bool:
        """True if the request replaces the data of a live job: `data`, or `create` if `data` is None."""
        return self.create if self.data is None else self.data

    @property
    def resets(self) -> bool:
        """True if the counts become 0: `reset_counts`, or `replaces` if `reset_counts` is None."""
        return self.replaces if self.reset_counts is None else self.reset_counts


class Reject(Struct, frozen=True, gc=False, tag="reject"):
    """The rule that an enqueue leaves a known id unchanged.

    An id is known if it has a live job or a kept completed outcome.
    """

    failed: bool = False
    """True if a kept failed outcome also makes an id known."""


OnConflict = Update | Reject
#: The default rule. It is one shared object, so that a check can compare by identity.
DEFAULT_UPDATE = Update()


class EnqueueRequest(Struct, frozen=True, gc=False, kw_only=True):
    """One job to enqueue, with the rule for an id that is known already."""

    job: NewJob
    #: The rule for an id that is known already.
    on_conflict: OnConflict = DEFAULT_UPDATE
    #: A key of up to 128 bytes, or None. While the queue remembers the key, a second request with it is
    #: ignored and gets the first result.
    request_key: str | None = None
    #: True to get the kept outcome of the id in the result.
    want_outcome: bool = False


class FollowUp(Struct, frozen=True, gc=False, kw_only=True):
    """A job that the storage enqueues in the same atomic step as the end of a run."""

    queue: str
    job: NewJob
    #: The rule for an id that is known already.
    on_conflict: OnConflict = DEFAULT_UPDATE


class Complete(Struct, frozen=True, gc=False, kw_only=True, tag="complete"):
    """The action that ends a run as completed."""

    #: The encoded result; None for no result.
    result: bytes | None = None
    #: The follow-ups, enqueued in the same step.
    then: tuple[FollowUp, ...] = ()
    #: The retention of the outcome; None for the retention of the job.
    retention: OutcomeRetention | None = None


class Fail(Struct, frozen=True, gc=False, kw_only=True, tag="fail"):
    """The action that ends a run as failed."""

    error: Error
    #: The follow-ups, enqueued in the same step.
    then: tuple[FollowUp, ...] = ()
    #: The retention of the outcome; None for the retention of the job.
    retention: OutcomeRetention | None = None


class Cancelled(Struct, frozen=True, gc=False, kw_only=True, tag="cancelled"):
    """The action that ends a run as cancelled."""

    #: The retention of the outcome; None for the retention of the job.
    retention: OutcomeRetention | None = None
    #: The reason, for the outcome and the log; None for no reason.
    error: Error | None = None


class RetryLater(Struct, frozen=True, gc=False, kw_only=True, tag="retry"):
    """The action that makes the job wait again and adds 1 to the count of `cause`.

    Set at most one of `delay` and `run_at`; without both, the job is due at once.
    """

    #: The time until the next run, in ms from the now of the storage.
    delay: int | None = None
    #: The earliest time of the next run, in ms since the epoch.
    run_at: int | None = None
    #: `error` adds to Job.retries, `timeout` to Job.timeouts, `stall` to Job.stalls.
    cause: RetryCause = "error"
    #: The error to keep on the job; None keeps the previous one.
    error: Error | None = None


class Release(Struct, frozen=True, gc=False, kw_only=True, tag="release"):
    """The action that makes the job wait again. Its claim does not count as an attempt.

    Set at most one of `delay` and `run_at`. With one of them, the job waits until that time, behind the jobs
    of the same time (a fresh seq). Without both, it waits as before its claim, and keeps its seq.
    """

    #: The time until the next run, in ms from the now of the storage.
    delay: int | None = None
    #: The earliest time of the next run, in ms since the epoch.
    run_at: int | None = None
    #: True to park the job: it waits until that time, or until an update with the rule `wake`. If a request
    #: came for the id since the claim, the job is due now instead. Needs a time.
    parked: bool = False


class HandOff(Struct, frozen=True, gc=False, tag="hand_off"):
    """The action that removes a run from its lease. Any process may end the run later, with `finish`.

    Until then the run stays active and cannot expire. A settlement with its fence ends the run, too.
    """


#: The actions that end a run.
End = Complete | Fail | Cancelled
#: Every action of a settlement.
SettleAction = Complete | Fail | Cancelled | RetryLater | Release | HandOff


class Settlement(Struct, frozen=True, gc=False, kw_only=True):
    """An action for one claimed run. The storage applies it only if the run with this fence is active."""

    id: str
    #: The number of the claim, from `ActiveRun.fence` of the claimed job.
    fence: int
    action: SettleAction
    #: What the run was worth, in thousandths of a start, 0 to 1,000,000,000; None for one start. It moves the
    #: clocks of the rates of the queue.
    cost: int | None = None


class QueueStep(Struct, frozen=True, gc=False):
    """The part of one queue in a `serve`: the settlements of this queue, then a claim."""

    queue: str
    settlements: Sequence[Settlement] = ()
    #: The most jobs to claim after the settlements. 0 claims no job, and does not read the lease.
    limit: int = 0


class JobPatch(Struct, frozen=True, gc=False, kw_only=True):
    """The fields of a job to change with `amend`. A field that is UNSET keeps its value."""

    #: Encoded JSON by name, merged into the attributes at the top level.
    attributes: Mapping[str, bytes] | UnsetType = UNSET
    payload: bytes | UnsetType = UNSET
    #: The new earliest time of a run, in ms since the epoch.
    run_at: int | UnsetType = UNSET
    #: The new earliest time of a run, in ms after the amend.
    delay: int | UnsetType = UNSET
    #: -1000 to 1000; jobs with a higher priority are claimed first.
    priority: int | UnsetType = UNSET
    retention: OutcomeRetention | UnsetType = UNSET
    #: The least length of the lease under which `receive` holds the job, in ms; an override of the job.
    lease: int | UnsetType = UNSET


class StartRate(Struct, frozen=True, gc=False):
    """A limit on how often runs start: `starts` in `per` ms, after a first burst of `burst` at once."""

    #: 1 to 1,000,000.
    starts: int
    #: The length of the period in ms, up to 31 days.
    per: int
    #: The number of runs that may start at once after a pause, 1 to 1,000,000.
    burst: int = 1


class Settings(Struct, frozen=True, gc=False, kw_only=True):
    """The settings of a queue."""

    #: True if claims take no job.
    paused: bool = False
    #: The number of jobs that may be active under leases at once; None for no limit.
    max_active: int | None = None
    #: The retention of jobs without a retention of their own.
    retention: OutcomeRetention = OutcomeRetention()
    #: The events that the log keeps (contract 3, Events).
    log_level: LogLevel = "runs"
    #: The age at which `prune` removes an event from the log, in ms.
    log_age: int = 86_400_000
    #: The largest size of the log, in bytes.
    log_bytes: int = 64 * 1024 * 1024
    #: The time for which a request key is remembered, in ms.
    request_key_age: int = 3_600_000
    #: True if each job that fails gets a fail job, in the same step as its end.
    fail_handler: bool = False
    #: The longest result that the log keeps with a completed event, in bytes; 0 for none.
    log_results: int = 0
    #: The number of jobs of one key that may be active under leases at once; None for no limit.
    per_key: int | None = None
    #: The limit on how often runs of the queue start; None for no limit.
    rate: StartRate | None = None
    #: The limit on how often runs of one key start; None for no limit.
    key_rate: StartRate | None = None
    #: The number of waiting jobs at which an enqueue makes no new job; None for no bound.
    max_waiting: int | None = None
    #: The answer to an enqueue that `max_waiting` stops: `full` for "refuse", `dropped` for "drop_new".
    when_full: WhenFull = "refuse"
    #: True if the keys with waiting jobs take turns.
    fair: bool = False
    #: By key: the number of starts in a turn, 0 to 1,000. A key without an entry has 1; one with 0 is paused.
    shares: Mapping[str, int] = {}

    @property
    def limits_claims(self) -> bool:
        """True if a setting is set that holds back due jobs."""
        limits = (self.per_key, self.rate, self.key_rate)
        return any(limit is not None for limit in limits) or 0 in self.shares.values()

    @property
    def has_limits(self) -> bool:
        """True if a setting is set that only a storage with the capability `limits` obeys."""
        return self.limits_claims or self.max_waiting is not None


class SettingsPatch(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The fields of Settings to change with `configure`. A field that is UNSET keeps its value."""

    paused: bool | UnsetType = UNSET
    max_active: int | UnsetType | None = UNSET
    retention: OutcomeRetention | UnsetType = UNSET
    log_level: LogLevel | UnsetType = UNSET
    log_age: int | UnsetType = UNSET
    log_bytes: int | UnsetType = UNSET
    request_key_age: int | UnsetType = UNSET
    fail_handler: bool | UnsetType = UNSET
    log_results: int | UnsetType = UNSET
    per_key: int | UnsetType | None = UNSET
    rate: StartRate | UnsetType | None = UNSET
    key_rate: StartRate | UnsetType | None = UNSET
    max_waiting: int | UnsetType | None = UNSET
    when_full: WhenFull | UnsetType = UNSET
    fair: bool | UnsetType = UNSET
    #: By key: the new share; None removes the entry. Other keys keep their shares.
    shares: Mapping[str, int | None] | UnsetType = UNSET
