"""The contract of a storage, as a Protocol (docs/explanation/contract.md is the same in prose).

Each verb is one intention and one atomic step per queue. Hot verbs take and return batches: success is
per item, in order, and bad input is refused for the whole batch before anything is written. Times are ms
since the epoch by the storage's one clock; `now` is taken only by a storage opened with clock="manual",
elsewhere it is refused. A manual time before one that was seen counts as that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from dibs.model.job import Slot
from dibs.model.requests import End, EnqueueRequest, JobPatch, Settings, SettingsPatch, Settlement
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    ClaimResult,
    Counts,
    EnqueueResult,
    EventPage,
    ExportPage,
    ExportRecord,
    FinishStatus,
    GrantResult,
    ImportStatus,
    ListPage,
    PruneResult,
    QueueInfo,
    ReapedJob,
    RenewResult,
    ReportStatus,
    RetryFailedStatus,
    SettleAndClaimResult,
    SettleResult,
    State,
    WaitResult,
)
from dibs.storage.capabilities import Capabilities

Clock = Literal["system", "manual"]
Watch = Literal["work", "events", "ids"]

#: As `after` of events(): where the log ends now.
LATEST = "~"


@runtime_checkable
class Storage(Protocol):
    """Where jobs live. Usable from one event loop; opened and closed as an async context manager."""

    @property
    def url(self) -> str:
        """The place, fit to be shown: without passwords."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do beyond the contract."""
        ...

    @property
    def durability(self) -> str:
        """One sentence on what survives what."""
        ...

    async def __aenter__(self) -> Self:
        """Open the place, making it if it is new. Raises StorageError."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it. Waits end, later verbs raise NotRunning, leases stay until they expire."""
        ...

    # -- enqueue, claim, settle ----------------------------------------------------------------------

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> Sequence[EnqueueResult]:
        """Take up to 1,000 requests in, each atomic, in list order; an id may occur twice.

        An id without a live job becomes waiting; a waiting one is updated in place; beside an active one
        a successor is made or folded into. Under Reject a live job stays as it is (`duplicate`), and so
        does a completed outcome, with failed=True also a failed one. A known request_key changes nothing.
        Raises BatchRefused, and then nothing was written.
        """
        ...

    async def claim(self, queue: str, lease: str, limit: int, *, now: int | None = None) -> ClaimResult:
        """Make up to `limit` due jobs active under the lease, each with a new fence, attempts + 1.

        Order: priority descending, run_at ascending, seq ascending. Never two active runs of one id,
        never more than max_active. Paused: takes nothing. Unknown, expired or dropped lease: `lost`.
        """
        ...

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> Sequence[SettleResult]:
        """End claimed runs or send them back, each atomic, in list order.

        Not active with exactly that fence: `lost`, nothing changes; but where the outcome remembers the
        fence, the same end answers `done`, and a return on a cancelled one `cancelled`. A run whose
        cancellation was requested never comes back: its return is an end as cancelled.
        """
        ...

    async def settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, *, now: int | None = None
    ) -> SettleAndClaimResult:
        """Settle, then claim, in one round trip; two atomic steps."""
        ...

    async def finish(
        self, queue: str, id: str, end: End, revision: int, *, now: int | None = None
    ) -> FinishStatus:
        """End a handed-off run from elsewhere, named by a revision in its range.

        In this order: the revision lies in the outcome's range: `done` for the same end, else `lost`;
        no current: `not_found`; not in the current's range: `lost`; waiting or under a lease: `refused`.
        """
        ...

    # -- leases --------------------------------------------------------------------------------------

    async def grant(self, queues: Sequence[str], ttl: int, holder: str, *, now: int | None = None) -> GrantResult:
        """Create a lease of `ttl` ms on each of the queues. `holder` is a name for people and the log."""
        ...

    async def renew(
        self, queues: Sequence[str], lease: str, ttl: int, *, now: int | None = None
    ) -> dict[str, RenewResult]:
        """Let the lease end `ttl` ms from now, never earlier than it would have.

        Unknown, expired (reaped or not) or dropped: not alive, and it stays so.
        """
        ...

    async def drop(
        self, queues: Sequence[str], lease: str, limit: int, *, now: int | None = None
    ) -> dict[str, int]:
        """Release up to `limit` jobs of the lease per queue, and return how many are left there.

        Repeat until 0. From the first call on the lease is lost for renew and claim. Unknown: 0.
        """
        ...

    async def reap(self, queue: str, limit: int, *, now: int | None = None) -> Sequence[ReapedJob]:
        """Bring back up to `limit` jobs under expired leases: waiting at now, stalls + 1.

        Those of a dropped lease are released without a mark; those asked to cancel end. An expired lease
        goes with its last job. Finding nothing costs O(1); any number of processes may reap.
        """
        ...

    async def report(
        self, queue: str, id: str, fence: int, progress: bytes, *, now: int | None = None
    ) -> ReportStatus:
        """Keep progress, any JSON value encoded, on the active run; `lost` under any other fence."""
        ...

    # -- by id ---------------------------------------------------------------------------------------

    async def cancel(
        self, queue: str, ids: Sequence[str], *, running: bool = False, now: int | None = None
    ) -> Sequence[CancelStatus]:
        """Waiting: gone, outcome cancelled. Blocked: the successor is dropped. Both answer `cancelled`.

        Active without a successor answers `active`. With `running` the successor, if any, is dropped and
        the active run is asked to stop: `requested`; a handed-off one ends at once: `cancelled`.
        Ended: `completed` or `failed`, or `cancelled`. Unknown: `not_found`.
        """
        ...

    async def amend(self, queue: str, id: str, patch: JobPatch, *, now: int | None = None) -> AmendStatus:
        """Change what the patch names, whole or not at all.

        Attributes merge into current and successor; payload, run_at and priority only while waiting, else
        `active`; retention on current, successor and outcome, counted from now. Without a current only
        a patch of nothing but retention is taken, on an outcome that is kept; else `not_found`.
        """
        ...

    async def retry_failed(
        self, queue: str, ids: Sequence[str], *, now: int | None = None
    ) -> Sequence[RetryFailedStatus]:
        """Consume the failed outcome: waiting at now, counts 0, fresh revision: `queued`.

        A live job: `live`; a failed outcome without a payload: `not_kept`; another outcome: its word;
        none: `not_found`.
        """
        ...

    async def forget(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> Sequence[bool]:
        """Remove everything of each id, and tell whether there was anything; a holder finds it lost."""
        ...

    async def get(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> Sequence[Slot]:
        """Return each id's slot, empty where nothing is known; an expired outcome is absent."""
        ...

    async def list(
        self,
        queue: str,
        state: State,
        *,
        after: str | None = None,
        until: str | None = None,
        limit: int = 100,
        now: int | None = None,
    ) -> ListPage:
        """Return a page of the ids in a state, in no promised order; up to `until`, a cursor of split.

        What stays in the state for the whole listing appears exactly once.
        """
        ...

    async def split(self, queue: str, parts: int, *, state: State | None = None) -> Sequence[str]:
        """Return up to `parts` - 1 cursors that cut an export in parts, or the listing of a state.

        A part is what lies behind one (`after`) and up to the next (`until`); the first begins and the last
        ends with the whole. Parts may be read side by side, in any order, and again. What is there (or in
        the state) from the split until every part was read is in exactly one of them, once. They are about
        equal where the storage can tell; where it cannot, cursors are fewer, or none. `parts`: 1 to 1,000.
        """
        ...

    # -- queues --------------------------------------------------------------------------------------

    async def counts(self, queues: Sequence[str], *, now: int | None = None) -> dict[str, Counts]:
        """Count the ids in each state; above 10,000 the numbers may be off, and then say so."""
        ...

    async def queues(self) -> Sequence[QueueInfo]:
        """Return the queues that were used or configured, with their settings. May lag."""
        ...

    async def configure(self, queue: str, patch: SettingsPatch, *, now: int | None = None) -> Settings:
        """Change what the patch names, and return all that holds now.

        Every claim that begins after it returned obeys it, whatever the queue's length.
        """
        ...

    async def prune(self, queue: str, limit: int, *, now: int | None = None) -> PruneResult:
        """Remove up to `limit` expired outcomes and request keys, and what the log need not keep."""
        ...

    async def export(
        self, queue: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> ExportPage:
        """Return a page of whole ids, up to `until`, a cursor of split.

        They have everything that import_ needs to make them the same elsewhere.
        """
        ...

    async def import_(
        self, queue: str, records: Sequence[ExportRecord], *, now: int | None = None
    ) -> Sequence[ImportStatus]:
        """Take whole ids in; one that exists here is left alone: `exists`.

        Counters are raised above what comes in. An active job that is not handed off arrives as waiting,
        as if released.
        """
        ...

    # -- log and wake-ups ----------------------------------------------------------------------------

    async def events(
        self, queue: str, *, after: str | None = None, limit: int = 100, now: int | None = None
    ) -> EventPage:
        """Return what the log has after an offset, oldest first; None is its start, LATEST its end.

        Offsets are opaque text of at most 64 characters that sorts in log order. Once a reader has been
        handed one, nothing ever appears at or before it.
        """
        ...

    async def wait(
        self,
        queues: Sequence[str],
        *,
        for_: Watch = "work",
        ids: Sequence[str] = (),
        since: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> WaitResult:
        """Return when there may be something, when the next scheduled job falls due, or after `timeout` s.

        `since` maps a queue to the token of its latest claim (or of an earlier wait): a change after it
        returns at once. With for_="ids", a change of one of `ids` counts. It is a hint: losing every one
        costs latency, never correctness.
        """
        ...


class BlockingClaims(Protocol):
    """Verbs of a storage with the capability `blocking_claim`: it holds a claim until a job comes."""

    async def claim_blocking(
        self, queue: str, lease: str, limit: int, *, claim_id: str, timeout: float
    ) -> ClaimResult:
        """Claim when there may be something, when the place is unparked, or after `timeout` s at the latest.

        What it answers is what a claim at that moment answers, whatever ended the wait. When it waits is a
        hint, as in `wait`: each change that would end a wait lets at least one parked claim of the queue go
        on, and one that takes all it may and leaves some, the next. `place` is a name of the caller's, not
        used twice: 1 to 64 characters of ASCII. Cancelled: it is made now, or never. With a manual clock
        it does not wait.
        """
        ...

    async def wake_claim(self, queue: str, claim_id: str) -> None:
        """Let the claim that is parked there, or comes to be within some seconds, go on at once."""
        ...


class Transactions(Protocol):
    """What a storage with the capability `transactions` has besides."""

    def in_transaction(self, connection: Any) -> Any:
        """Return `enqueue` and `settle`, as above, as part of whatever transaction the connection is in.

        For a connection that blocks they are plain functions, called on the caller's own thread. Raises
        Refused for what is no connection of the storage's kind.
        """
        ...
