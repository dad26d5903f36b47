"""What a storage answers: one small value for each verb, one per item where the verb takes a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from dibs.model.events import LogEvent
from dibs.model.job import Job, Outcome, Slot
from dibs.model.requests import Settings

EnqueueStatus = Literal["queued", "updated", "blocked", "duplicate", "completed", "failed"]
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
    """What one request of an enqueue came to.

    `first..revision` is the range of what holds the request: of the current or successor it went into,
    of the current that a duplicate found, of the outcome that was found. `revision`, its end, is what a
    waiter waits for.
    """

    status: EnqueueStatus
    found: FoundState
    first: int
    revision: int
    outcome: Outcome | None = None
    #: The request_key was known: nothing changed, and this is what the first one got.
    repeated: bool = False


class ClaimResult(Struct, frozen=True, gc=False, kw_only=True):
    """What a claim took. `lost`: the lease is unknown, expired or dropped, and nothing was taken."""

    jobs: tuple[Job, ...] = ()
    now: int
    #: The earliest run_at later than now; None when nothing is scheduled, or the queue is paused.
    next_due: int | None = None
    #: For wait(since=...): there may be more once the queue has moved past it.
    token: str = ""
    lost: bool = False


class SettleResult(Struct, frozen=True, gc=False):
    """What one settlement came to. `reason` says why it was refused; `revision` answers a hand-off."""

    status: SettleStatus
    reason: str = ""
    revision: int = 0


class SettleAndClaimResult(Struct, frozen=True, gc=False):
    """The answers of a settle and of the claim that followed it."""

    settled: tuple[SettleResult, ...]
    claim: ClaimResult


class GrantResult(Struct, frozen=True, gc=False, kw_only=True):
    """A new lease, unique for ever, on each of the queues it was asked for."""

    lease: str
    now: int
    expires_at: int


class RenewResult(Struct, frozen=True, gc=False, kw_only=True):
    """What a heartbeat found in one queue; `cancel_requested` holds the ids it should stop."""

    alive: bool
    now: int
    expires_at: int = 0
    cancel_requested: tuple[str, ...] = ()


class ReapedJob(Struct, frozen=True, gc=False):
    """One job that came back, or ended as cancelled, because its lease had expired."""

    id: str
    fence: int
    kind: ReapedKind


class ListPage(Struct, frozen=True, gc=False, kw_only=True):
    """One page of a listing; `after` continues it, None when this page was the last."""

    items: tuple[tuple[str, Slot], ...]
    after: str | None


class Counts(Struct, frozen=True, gc=False, kw_only=True):
    """How many ids are in each state. `waiting` includes `scheduled`; `active` includes `handed_off`."""

    waiting: int = 0
    scheduled: int = 0
    active: int = 0
    handed_off: int = 0
    blocked: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    #: The numbers above 10,000 may be off.
    approximate: bool = False


class QueueInfo(Struct, frozen=True, gc=False):
    """A queue the storage knows, and what it is set to."""

    name: str
    settings: Settings


class EventPage(Struct, frozen=True, gc=False, kw_only=True):
    """Some of a queue's log, in order. `offset` is where to go on, also when the page is empty."""

    events: tuple[tuple[str, LogEvent], ...]
    offset: str
    #: Entries between the `after` that was asked for and the first one here have been trimmed.
    fell_off: bool = False


class PruneResult(Struct, frozen=True, gc=False, kw_only=True):
    """What prune removed; `more` says that the limit stopped it."""

    outcomes: int = 0
    request_keys: int = 0
    events: int = 0
    more: bool = False


class WaitResult(Struct, frozen=True, gc=False, kw_only=True):
    """Why a wait returned. `woken`: there may be something; else its time was up. `since` is for the next."""

    woken: bool
    since: Mapping[str, str]
    #: How ids that were waited for ended, where the storage was told; of one that is missing nothing is said.
    outcomes: Mapping[str, Outcome] = {}


class ExportRecord(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """A whole id on its way from one storage to another."""

    id: str
    slot: Slot


class ExportPage(Struct, frozen=True, gc=False, kw_only=True):
    """One page of an export; `after` continues it, None when this page was the last."""

    records: tuple[ExportRecord, ...]
    settings: Settings
    after: str | None
