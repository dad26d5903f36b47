"""The contract of a storage, as a Protocol; docs/explanation/contract.md is the same contract in prose.

Rules for all verbs:

- A verb is an async method that works on jobs. It makes one atomic step per queue. A batch is a list of
  independent items: each item is atomic, the items are applied in order, and the verb returns one result per
  item, in the same order.
- A verb checks its arguments with dibs.storage.checks before it reads or writes. Bad input raises Refused, or
  BatchRefused for an enqueue, and changes nothing.
- Times are ms since the epoch by the one clock of the storage, which never steps back. `now` is allowed only
  with clock="manual"; other storages raise Refused. A manual time before an earlier one counts as that one.
- A verb raises NotRunning while the storage is not open. A lost reply raises OutcomeUnknown.

Terms for one id of a queue, its slot:

- current: the job that waits or runs. successor: later enqueues of the same id, merged into one job that is
  blocked until the run of the current ends. outcome: the kept end of the latest run.
- seq: the number that orders jobs of equal priority and run_at. fence: the number of a claim, which a worker
  must return to settle that run. revision: the number of an enqueue; a job has the range of the revisions
  that were merged into it.
- lease: the right of a worker to its claimed jobs, which expires unless the worker renews it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeVar, runtime_checkable

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
Watch = Literal["work", "events", "ids", "progress"]

#: The value of `after` with which `events` starts at the current end of the log.
LATEST = "~"
#: The verbs of a storage that change no stored state.
READS: Final[set[str]] = set()
F = TypeVar("F", bound=Callable[..., Any])


def reads(verb: F) -> F:
    """Declare that a verb changes no stored state: without an answer, nothing was written."""
    READS.add(verb.__name__)
    return verb


@runtime_checkable
class Storage(Protocol):
    """A storage of jobs, for use from one event loop. Open and close it with `async with`.

    A storage object that several event loops may use at once has an attribute `thread_safe = True`. It may be
    entered again while it is open, and one exit closes it.
    """

    @property
    def url(self) -> str:
        """The URL of the storage without passwords, for messages and logs."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """The optional abilities of this storage object, with its options and its server."""
        ...

    @property
    def durability(self) -> str:
        """A sentence for people about the crashes and power losses that accepted jobs survive.

        It begins with "power loss" if they survive a power loss. The conformance kit tries this claim.
        """
        ...

    async def __aenter__(self) -> Self:
        """Open the storage, and create it if it does not exist. Raise StorageError if it cannot be opened."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the storage.

        Pending waits end, later verbs raise NotRunning, and leases stay until they expire.
        """
        ...

    # -- enqueue, claim, settle ----------------------------------------------------------------------

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> Sequence[EnqueueResult]:
        """Enqueue up to 1,000 requests. An id may occur more than once.

        An id without a live job becomes waiting (`queued`). Update changes a waiting job in place
        (`updated`), and merges a request for an active job into its successor (`blocked`); with
        `create=False` it leaves an id without a live job unchanged (`absent`). Reject leaves a
        live job unchanged (`duplicate`), and also an id with a kept completed outcome. Reject with `failed`
        leaves an id with a kept failed outcome unchanged, too. A known request_key returns the first result
        and changes no job.
        """
        ...

    async def claim(self, queue: str, lease: str, limit: int, *, now: int | None = None) -> ClaimResult:
        """Make up to `limit` due jobs active under the lease. Each gets a new fence and 1 more attempt.

        The order is priority descending, run_at ascending, seq ascending. An id has at most one active run,
        and a queue at most `max_active`. Jobs that `per_key`, `rate` or `key_rate` hold back are passed over.
        A paused queue returns no jobs. An unknown, expired or dropped lease returns `lost`.
        """
        ...

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> Sequence[SettleResult]:
        """End claimed runs or return their jobs to waiting.

        The result is `done` for an end, `returned`, `handed_off`, or `refused` for a bad action. If no run of
        the id is active with this fence, the result is `lost` and the id stays unchanged. There is one
        exception, while the outcome with this fence is kept: a repeated end returns `done`, and a RetryLater,
        Release or HandOff after a cancellation returns `cancelled`. After a requested cancellation,
        RetryLater, Release and HandOff end the run as cancelled.
        """
        ...

    async def settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, *, now: int | None = None
    ) -> SettleAndClaimResult:
        """Settle, then claim, in one round trip. The two are separate atomic steps."""
        ...

    async def finish(
        self, queue: str, id: str, end: End, revision: int, *, now: int | None = None
    ) -> FinishStatus:
        """End a handed-off run without its fence. `revision` is any revision in the range of the job.

        The first of these cases decides:

        - The revision is in the range of the outcome: `done` if `end` has the same kind, else `lost`.
        - The id has no current: `not_found`.
        - The revision is outside the range of the current: `lost`.
        - The current waits or is under a lease: `refused`.
        - Otherwise the run ends: `done`.
        """
        ...

    # -- leases --------------------------------------------------------------------------------------

    async def grant(
        self, queues: Sequence[str], ttl: int, holder: str, *, now: int | None = None
    ) -> GrantResult:
        """Create a lease of `ttl` ms on each of the queues, with a new random id.

        `holder` is a name for people and the log; several leases may have the same one.
        """
        ...

    async def renew(
        self, queues: Sequence[str], lease: str, ttl: int, *, now: int | None = None
    ) -> dict[str, RenewResult]:
        """Extend the lease to `ttl` ms from now, in each of the queues. A renewal never shortens a lease.

        In a queue where the lease is unknown, expired or dropped, the result has `alive` False. A renewal
        cannot revive such a lease.
        """
        ...

    async def drop(
        self, queues: Sequence[str], lease: str, limit: int, *, now: int | None = None
    ) -> dict[str, int]:
        """Release up to `limit` jobs of the lease in each queue, and return the number of jobs left under it.

        Repeat the call until each number is 0; an unknown lease has 0 jobs. From the first call on, renew and
        claim treat the lease as lost.
        """
        ...

    async def reap(self, queue: str, limit: int, *, now: int | None = None) -> Sequence[ReapedJob]:
        """Return up to `limit` jobs under expired leases to waiting, due at once and with 1 more stall.

        Jobs of a dropped lease are released instead, and jobs with a requested cancellation end as cancelled.
        An expired lease is removed with its last job. A reap without work costs O(1), and any number of
        processes may reap.
        """
        ...

    async def report(
        self,
        queue: str,
        id: str,
        fence: int,
        progress: bytes | None = None,
        memo: bytes | None = None,
        *,
        output: Sequence[bytes] = (),
        now: int | None = None,
    ) -> ReportStatus:
        """Store what the run with this fence reports: progress, a memo for later runs of its job, output.

        `progress` is one value as JSON text, in bytes; an empty `memo` removes the memo. `output` is a list
        of chunks, which are appended to the output of the id in this order; if the id then has more than 1
        MiB, its oldest chunks are removed. A storage without the capability `output` refuses chunks. Return
        `lost` if the run with this fence is no longer active.
        """
        ...

    # -- by id ---------------------------------------------------------------------------------------

    async def cancel(
        self, queue: str, ids: Sequence[str], *, running: bool = False, now: int | None = None
    ) -> Sequence[CancelStatus]:
        """Cancel waiting jobs and successors, and with `running` also active runs.

        A waiting job ends as cancelled, and a successor is dropped: `cancelled`. An active job without a
        successor stays unchanged: `active`. With `running`, the run under a lease also gets
        `cancel_requested`: `requested`; a handed-off run ends at once: `cancelled`. Without a live job the
        result is the kind of the kept outcome, else `not_found`.
        """
        ...

    async def amend(self, queue: str, id: str, patch: JobPatch, *, now: int | None = None) -> AmendStatus:
        """Apply a patch to an id, as a whole or not at all.

        Attributes are merged into current and successor. Payload, run_at, delay, priority and lease are taken
        only by a waiting job; else the result is `active`. The lease becomes an override of the job, beside
        the others. Retention changes current, successor and outcome, and the expiry of the outcome counts
        from now. Without a current, only a patch of attributes, retention or both is taken, for an outcome
        that is kept; else the result is `not_found`.
        """
        ...

    async def retry_failed(
        self, queue: str, ids: Sequence[str], *, delay: int = 0, now: int | None = None
    ) -> Sequence[RetryFailedStatus]:
        """Enqueue failed jobs again from their outcomes, due `delay` ms from now: `queued`.

        All counts become 0, the revision is new, and the outcome is removed. An id with a live job is `live`;
        a failed outcome without data is `not_kept`; another outcome returns its kind; an id without a kept
        outcome is `not_found`.
        """
        ...

    async def forget(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> Sequence[bool]:
        """Remove the job, successor and outcome of each id. Return for each id whether it had one of them.

        If an active run is removed, its worker gets `lost` when it settles.
        """
        ...

    @reads
    async def get(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> Sequence[Slot]:
        """Return the slot of each id, without an expired outcome. The slot of an unknown id is empty."""
        ...

    @reads
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
        """Return a page of the ids in a state, in any order, after the cursor `after` and up to `until`.

        An id that stays in the state during the whole listing appears exactly once. A page before the last
        may have fewer ids than `limit`, also none. A cursor that was not used for an hour may be refused.
        `until` is a cursor of `split`.
        """
        ...

    @reads
    async def split(self, queue: str, parts: int, *, state: State | None = None) -> Sequence[str]:
        """Return up to `parts` - 1 cursors that divide an export, or the listing of a state, into parts.

        `parts` is 1 to 1,000. A part lies after one cursor (`after`) and up to the next (`until`); the first
        part has no `after` and the last no `until`. Parts may be read in parallel, in any order, and more
        than once. An id that exists, or is in the state, from the split until all parts are read appears in
        exactly one part, once. The parts have about equal sizes where the storage knows them; else it returns
        fewer cursors, or none.
        """
        ...

    # -- queues --------------------------------------------------------------------------------------

    @reads
    async def counts(self, queues: Sequence[str], *, now: int | None = None) -> dict[str, Counts]:
        """Return the number of ids in each state. Above 10,000 it may be inexact (`approximate`)."""
        ...

    @reads
    async def queues(self) -> Sequence[QueueInfo]:
        """Return the queues that were used or configured, with their settings. The list may lag behind."""
        ...

    async def configure(self, queue: str, patch: SettingsPatch, *, now: int | None = None) -> Settings:
        """Change the settings of a queue, and return all of them.

        A claim that begins after the call returned obeys the new settings, however many jobs wait.
        """
        ...

    async def prune(self, queue: str, limit: int, *, now: int | None = None) -> PruneResult:
        """Remove up to `limit` expired outcomes, up to `limit` expired request keys, and old log entries.

        Log entries are old beyond `log_age` and `log_bytes`. Prune again while `more` is True.
        """
        ...

    @reads
    async def export(
        self, queue: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> ExportPage:
        """Return a page of ids with all their parts, after `after` and up to `until`, a cursor of `split`."""
        ...

    async def import_(
        self, queue: str, records: Sequence[ExportRecord], *, now: int | None = None
    ) -> Sequence[ImportStatus]:
        """Restore exported ids. An id that exists here stays unchanged: `exists`.

        Later seqs, fences and revisions are above those of the records. A job that was under a lease arrives
        as waiting, as after a release.
        """
        ...

    # -- log and wake-ups ----------------------------------------------------------------------------

    @reads
    async def events(
        self,
        queue: str,
        *,
        after: str | None = None,
        limit: int = 100,
        id: str | None = None,
        now: int | None = None,
    ) -> EventPage:
        """Return a page of the log after an offset, oldest event first; with `id`, of the output of this id.

        `after` is None for the start of the log and LATEST for its end. Offsets are opaque text of at most 64
        characters that sorts in the order of the log. After a reader has received an offset, no event appears
        at or before it. "" is the offset of an empty log: unlike None, it gets `fell_off` after a trim.

        The output of an id has an event of the kind `output` for each chunk, with the chunk as `result`. Its
        offsets obey the same rules. A storage without the capability `output` refuses `id`.
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
        """Wait for work, events, ids or progress, until a scheduled job falls due, or for `timeout` s.

        `ids` waits until a run of one of `ids` ends or its enqueue is cancelled; `progress` also until a run
        of one of `ids` reports progress, or of any id if `ids` is empty. `since` maps a queue to the token of
        its latest claim or wait: a change after that token ends the wait at once. A wait may miss a change,
        so callers also poll at a slow rate.
        """
        ...


#: The verbs that answer without waiting for a change, so that a caller may give each a deadline.
VERBS: Final = frozenset(
    name for name, verb in vars(Storage).items() if iscoroutinefunction(verb) and name[0] != "_"
) - {"wait"}


class BlockingClaims(Protocol):
    """The verbs of a storage with the capability `blocking_claim`: a claim waits at the server for jobs."""

    async def claim_blocking(
        self, queue: str, lease: str, limit: int, *, claim_id: str, timeout: float
    ) -> ClaimResult:
        """Claim when a job may be due, when `wake_claim` is called, or after `timeout` s at the latest.

        The result is that of a `claim` at that moment. Each change that would end a `wait` for work releases
        at least one blocking claim of the queue. A claim that reaches its limit and leaves due jobs releases
        the next one. As with `wait`, a wake-up may be lost. `claim_id` is a name that the caller uses once: 1
        to 64 printable ASCII characters. A cancelled call claims at once or never. With a manual clock the
        claim does not wait.
        """
        ...

    async def wake_claim(self, queue: str, claim_id: str) -> None:
        """Make the blocking claim `claim_id` claim now. It may also begin some seconds after this call."""
        ...


class Transactions(Protocol):
    """The method of a storage with the capability `transactions`: jobs commit with the caller's own rows."""

    def in_transaction(self, connection: Any) -> Any:
        """Return an object whose `enqueue`, `settle` and `report` run inside the transaction of `connection`.

        `report` takes the queue, and the id, fence and memo as one tuple. The property `is_open` is True
        while the connection is in a transaction. For a blocking connection, the verbs are plain functions
        that run on the thread of the caller. Raise Refused if `connection` is not a connection of the
        storage's driver, or leads to another storage. Errors of the transaction itself, such as a
        serialization failure, are those of the driver.
        """
        ...
