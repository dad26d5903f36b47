"""The results that storages return. An operation on a batch returns one result per item, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from dibs.model.events import LogEvent
from dibs.model.job import Job, Outcome, Slot
from dibs.model.requests import Settings

EnqueueStatus = Literal[
    "queued", "updated", "blocked", "duplicate", "completed", "failed", "absent", "full", "dropped"
]
FoundState = Literal["nothing", "waiting", "active", "active+blocked"]
SettleStatus = Literal["done", "returned", "handed_off", "cancelled", "lost", "refused"]
FinishStatus = Literal["done", "lost", "refused", "not_found"]
CancelStatus = Literal["cancelled", "requested", "active", "completed", "failed", "not_found"]
AmendStatus = Literal["amended", "active", "not_found"]
RetryFailedStatus = Literal["queued", "live", "not_kept", "completed", "cancelled", "not_found"]
ReportStatus = Literal["reported", "lost"]
ImportStatus = Literal["imported", "exists"]
ReapedKind = Literal["stalled", "released", "cancelled"]
State = Literal["waiting", "scheduled", "active", "handed_off", "blocked", "completed", "failed", "cancelled"]


class EnqueueResult(Struct, frozen=True, gc=False):
    """The result of one request of an enqueue.

    A revision is the number of one accepted enqueue. `first..revision` is the range of revisions of the part
    of the id that holds the request now. This is the current or successor that the request went into, or the
    current that made it a duplicate, or the outcome for which `Reject` refused it.
    """

    #: The effect of the request (contract 3, enqueue).
    status: EnqueueStatus
    #: The state of the id before the request.
    found: FoundState
    #: The first revision of the range.
    first: int
    #: The last revision of the range. `dibs.model.rules.ticket_state` needs it to find the outcome.
    revision: int
    #: The outcome that is kept for the id; None unless the request has `want_outcome`, or none is kept.
    outcome: Outcome | None = None
    #: True if the request_key was known: the request was ignored, and this is the first result again.
    repeated: bool = False
    #: The id of the first request with the request_key, if `repeated`; else "", because the result is about
    #: the id of the request. It is also "" for a key that a version of dibs without this field has stored.
    id: str = ""


class ClaimResult(Struct, frozen=True, gc=False, kw_only=True):
    """The jobs that a claim took, and the times and token that help to choose the time of the next claim."""

    #: The claimed jobs, each with its `run`, in the order of claims.
    jobs: tuple[Job, ...] = ()
    #: The time of the storage by which a job was due, in ms since the epoch. No run begins before it.
    now: int
    #: The earliest time later than `now` at which a claim may take more jobs, because a scheduled job
    #: falls due or a rate allows a start; None if time alone changes nothing, or the queue is paused.
    next_due: int | None = None
    #: Pass it to `wait` as `since`: a change after this claim then ends the wait at once.
    token: str = ""
    #: True if the lease is unknown, expired or dropped; the claim then took no job.
    lost: bool = False


class SettleResult(Struct, frozen=True, gc=False):
    """The result of one settlement. A bad settlement gets the status `refused` instead of an exception."""

    #: The effect of the settlement (contract 3, settle).
    status: SettleStatus
    #: The reason for the status `refused`; else empty.
    reason: str = ""
    #: The last revision of the job, for the status `handed_off`; else 0.
    revision: int = 0


class SettleAndClaimResult(Struct, frozen=True, gc=False):
    """The results of `settle_and_claim`: those of the settlements, and that of the claim after them."""

    #: One result per settlement, in the order of the settlements.
    settled: tuple[SettleResult, ...]
    claim: ClaimResult


class GrantResult(Struct, frozen=True, gc=False, kw_only=True):
    """A new lease on one or more queues."""

    #: The id of the lease: 128 random bits as text, used only once.
    lease: str
    #: The time of the storage, in ms since the epoch.
    now: int
    #: The end of the lease, in ms since the epoch.
    expires_at: int


class RenewResult(Struct, frozen=True, gc=False, kw_only=True):
    """The result of the renewal of a lease, for one of its queues."""

    #: False if the lease is unknown, expired or dropped there.
    alive: bool
    #: The time of the storage, in ms since the epoch.
    now: int
    #: The new end of the lease, in ms since the epoch; 0 if it is not alive.
    expires_at: int = 0
    #: The ids under the lease whose cancellation was requested: the holder should stop these runs.
    cancel_requested: tuple[str, ...] = ()


class ReapedJob(Struct, frozen=True, gc=False):
    """A job that `reap` took from an expired or dropped lease."""

    id: str
    #: The fence of the run that lost its lease.
    fence: int
    #: `stalled` and `released` jobs wait again; a `cancelled` job has ended.
    kind: ReapedKind


class ListPage(Struct, frozen=True, gc=False, kw_only=True):
    """One page of the ids in a state, in no promised order."""

    #: Each id with its slot.
    items: tuple[tuple[str, Slot], ...]
    #: Pass it as `after` to get the next page; None on the last page.
    after: str | None


class Counts(Struct, frozen=True, gc=False, kw_only=True):
    """The number of ids in each state of one queue. An id with a live job and an outcome counts in both."""

    waiting: int = 0
    """Jobs that wait, including the scheduled ones."""
    scheduled: int = 0
    """Jobs that wait for a run_at in the future."""
    retrying: int = 0
    """Jobs that wait, due or scheduled, and have a failed run behind them (`Job.is_retrying`)."""
    active: int = 0
    """Jobs that are claimed, including the handed-off ones."""
    handed_off: int = 0
    """Active jobs without a lease: a process will end them with `finish`."""
    blocked: int = 0
    """Successors of active jobs."""
    completed: int = 0
    """Completed outcomes that have not expired."""
    failed: int = 0
    """Failed outcomes that have not expired."""
    cancelled: int = 0
    """Cancelled outcomes that have not expired."""
    approximate: bool = False
    """True if the numbers above 10,000 may be inexact."""


class QueueInfo(Struct, frozen=True, gc=False):
    """The name and settings of one queue of a storage."""

    name: str
    settings: Settings


class EventPage(Struct, frozen=True, gc=False, kw_only=True):
    """One page of the log of a queue, oldest event first."""

    #: Each event with its offset.
    events: tuple[tuple[str, LogEvent], ...]
    #: Pass it as `after` to read on. An empty page has one, too, so that a reader can poll for new events.
    offset: str
    #: True if the log was trimmed between the requested `after` and the first event of this page.
    fell_off: bool = False


class PruneResult(Struct, frozen=True, gc=False, kw_only=True):
    """The numbers of entries that `prune` removed from one queue."""

    #: Expired outcomes.
    outcomes: int = 0
    #: Expired request keys.
    request_keys: int = 0
    #: Events beyond the age or size of the log.
    events: int = 0
    #: True if the limit ended the prune, so that another prune may remove more.
    more: bool = False


class WaitResult(Struct, frozen=True, gc=False, kw_only=True):
    """The result of `wait`, which waits for a change in some queues or ids."""

    #: True if a change ended the wait; False if its timeout did.
    woken: bool
    #: A token for each queue. Pass the mapping as `since` to the next wait, so that it misses no change.
    since: Mapping[str, str]
    #: Outcomes of awaited ids, where the storage received them. A missing id may have ended, too.
    outcomes: Mapping[str, Outcome] = {}
    #: For a wait for ids: the awaited ids that have ended. None if the storage does not know them.
    ended: frozenset[str] | None = None
    #: For a wait for progress: awaited ids whose progress was reported. None if the storage does not
    #: know them.
    reported: frozenset[str] | None = None


class ExportRecord(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """One id with all its parts, as `export` returns it and `import_` takes it."""

    id: str
    slot: Slot


class ExportPage(Struct, frozen=True, gc=False, kw_only=True):
    """One page of the export of a queue."""

    records: tuple[ExportRecord, ...]
    #: The settings of the queue.
    settings: Settings
    #: Pass it as `after` to get the next page; None on the last page.
    after: str | None
