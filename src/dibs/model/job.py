"""The parts of an id (contract 1): current, successor, outcome, and what they carry.

Times are ms since the epoch, UTC. `seq`, `revision` and `fence` are drawn by the storage. Values are
frozen; a changed value is a new one. They are msgspec Structs, see docs/decisions/0001-values.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType

from dibs.model.retry import Backoff

EndKind = Literal["completed", "failed", "cancelled"]

#: Retention that never ends. None, so that it is a value JSON and SQL have too.
FOREVER: Final = None
#: Retention that ends with the job: the outcome is absent from the start.
NOT_KEPT: Final = 0

#: What the reserved fail queue of a queue is called: `emails` has `emails!fail`.
FAIL_SUFFIX: Final = "!fail"

NO_ATTRIBUTES: Final[Mapping[str, bytes]] = {}


class OutcomeRetention(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How long an outcome is kept, in ms from the end; None for ever, 0 not at all."""

    completed: int | UnsetType | None = UNSET
    failed: int | UnsetType | None = UNSET
    cancelled: int | UnsetType | None = UNSET
    #: The ends that keep payload, attributes, priority, overrides and retention.
    keep_payload: tuple[EndKind, ...] | UnsetType = UNSET


#: What holds where neither the job nor the queue says otherwise: 1 h, 7 days, 1 h.
DEFAULT_RETENTION: Final = OutcomeRetention(
    completed=3_600_000, failed=7 * 86_400_000, cancelled=3_600_000, keep_payload=("failed",)
)


class Overrides(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A job's own limits, in place of its handler's; UNSET as the handler says, None without limit."""

    #: How long one run may take, ms.
    timeout: int | UnsetType | None = UNSET
    max_retries: int | UnsetType | None = UNSET
    max_timeouts: int | UnsetType | None = UNSET
    max_stalls: int | UnsetType | None = UNSET
    backoff: Backoff | UnsetType = UNSET
    #: The lease of a claim by hand (`receive`), ms.
    lease: int | UnsetType = UNSET


class JobData(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """What Update(data=True) replaces as one: never in part."""

    #: Opaque: no storage looks inside.
    payload: bytes = b""
    #: Text to one JSON value each, as encoded JSON.
    attributes: Mapping[str, bytes] = NO_ATTRIBUTES
    #: -1000 to 1000, higher first.
    priority: int = 0
    overrides: Overrides | None = None
    retention: OutcomeRetention | None = None


class NewJob(Struct, frozen=True, gc=False, kw_only=True):
    """A job as it is asked for. At most one of `run_at` and `delay`; neither means now."""

    id: str
    data: JobData = JobData()
    run_at: int | None = None
    delay: int | None = None


class Error(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """An exception as text. It is never rebuilt into a live one."""

    type: str
    message: str = ""
    traceback: str = ""
    cause: Error | None = None


class Origin(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """In a fail job: the job that failed (contract 3, the fail job)."""

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


class ActiveRun(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """What only an active job has."""

    fence: int
    #: The lease it is held under; None once it was handed off.
    lease: str | None
    holder: str
    claimed_at: int
    #: The last progress reported, as encoded JSON.
    progress: bytes | None = None
    cancel_requested: bool = False


class Job(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """The current of an id: waiting while `run` is None, else active."""

    id: str
    data: JobData
    run_at: int
    enqueued_at: int
    #: Its place in line among equals.
    seq: int
    #: The range of enqueues folded into it, and their number.
    first: int
    revision: int
    enqueues: int = 1
    #: Claims so far.
    attempts: int = 0
    retries: int = 0
    stalls: int = 0
    timeouts: int = 0
    #: What the latest run that came back said.
    error: Error | None = None
    origin: Origin | None = None
    run: ActiveRun | None = None


class Successor(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """What was enqueued while the id was active: one list of updates, folded (model.fold)."""

    data: JobData
    #: Whether `data` also replaces that of a run that comes back.
    replaces: bool
    #: The reading for a run that ends.
    run_at: int
    #: The reading for a run that comes back: min(max(r, lo), hi); None leaves that side open.
    lo: int | None
    hi: int | None
    resets: bool
    enqueued_at: int
    seq: int
    first: int
    revision: int
    enqueues: int = 1


class Outcome(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """The retained end of the latest run. Absent to every verb from `expires_at` on."""

    kind: EndKind
    #: The fence of the run that ended; 0 when a waiting job was cancelled.
    fence: int
    first: int
    revision: int
    ended_at: int
    #: None: kept for ever.
    expires_at: int | None
    #: Encoded by the client's serde; a result of None is not an absent one.
    result: bytes | None = None
    error: Error | None = None
    enqueues: int = 1
    enqueued_at: int = 0
    run_at: int = 0
    claimed_at: int | None = None
    holder: str = ""
    attempts: int = 0
    retries: int = 0
    stalls: int = 0
    timeouts: int = 0
    #: Kept for the ends that Retention.keep_payload names.
    data: JobData | None = None
    origin: Origin | None = None


#: A range of revisions, both ends in it.
RevisionRange = tuple[int, int]


class Slot(Struct, frozen=True, gc=False, array_like=True):
    """All there is of one id in one queue."""

    current: Job | None = None
    successor: Successor | None = None
    outcome: Outcome | None = None
    #: Ranges of successors that a cancel dropped, oldest first, at most eight.
    dropped: tuple[RevisionRange, ...] = ()


#: The slot of an id nobody knows.
EMPTY: Final = Slot()
