"""The optional abilities of a storage, each a protocol, and `ability`, the one way to find them.

A storage declares in its `Capabilities` what the contract and the kit must know. `ManyQueues`, and
`BlockingClaims` and `Transactions` in dibs.storage.protocol, are the verbs of such flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

from dibs.model.check_jobs import CheckedBatch
from dibs.model.findings import Finding
from dibs.model.job import Outcome
from dibs.model.request_columns import RequestColumns
from dibs.model.requests import QueueStep
from dibs.model.results import ClaimResult, EnqueueResult, EnqueueStatus, SettleAndClaimResult
from dibs.storage.protocol import Storage

A = TypeVar("A")


def ability(storage: object, kind: type[A]) -> A | None:
    """Return the storage as `kind`, a protocol of this module, if it has all methods of it; None otherwise.

    The methods of a second way to call a verb, such as `DirectEnqueue`, are looked up in the class: a wrapper
    with `__getattr__` would return those of the storage inside it, and the calls would bypass the wrapper.
    """
    holder = type(storage) if kind in _SECOND_WAYS else storage
    return cast("A", storage) if all(hasattr(holder, name) for name in _METHODS[kind]) else None


#: Called once with the results of a direct enqueue, with its error, or with None if the server surely did
#: not run it.
OnEnd = Callable[[Sequence[EnqueueResult] | Exception | None], None]


class DirectEnqueue(Protocol):
    """The optional method of a storage that can send an enqueue at once."""

    def start_enqueue(self, queue: str, requests: CheckedBatch, on_end: OnEnd) -> bool:
        """Send an enqueue now, and call `on_end` in the event loop when it has ended.

        Return False, and send nothing, if this takes more than a write to an open connection; the caller then
        uses `enqueue`. The effect is that of `enqueue`. Call it on the event loop of the storage.
        """
        ...


class BlockingEnqueue(Protocol):
    """The optional methods of a storage with which a thread without an event loop enqueues."""

    def enqueue_blocking(
        self, queue: str, requests: CheckedBatch, seconds: float | None = None
    ) -> Sequence[EnqueueResult] | None:
        """Enqueue on this thread, which may be any thread of the process, and wait for the results.

        `seconds` is the deadline of the call; None for the storage's own limit.

        Return None if no connection is ready, or the server surely did not run it; the caller then uses
        `enqueue` on the event loop of the storage. The effect is that of `enqueue`. Raise the errors of
        `enqueue`.
        """
        ...

    def prepare_blocking(self) -> None:
        """Start to open a connection for `enqueue_blocking`. Call it on the event loop of the storage."""
        ...


#: Called once, on the event loop, when an id may have ended: with the outcome, or with None if the caller
#: must read the state of the id.
OnOutcome = Callable[[Outcome | None], None]
#: Ends a watch. Without effect after its callback was called.
StopWatching = Callable[[], None]


class EndWatches(Protocol):
    """The optional method of a storage that calls back when a job has ended."""

    def watch_end(self, queue: str, id: str, revision: int, on_outcome: OnOutcome) -> StopWatching | None:
        """Call `on_outcome` at the next end of the id after the enqueue `revision`, and return a function.

        The outcome may be that of an earlier run, if the enqueue was blocked: compare its revisions. The
        function ends the watch. Return None, and call nothing, if the id may have ended before the call,
        or if the storage receives no messages about the queue; the caller then uses `wait`. As with `wait`, a
        message may be lost, so the caller reads the state now and then.
        """
        ...


class StoredMembers(NamedTuple):
    """A page of the members of a key set, with the statuses of their requests."""

    statuses: dict[bytes, EnqueueStatus]
    #: The number of the last batch of the page; 0 for a set without batches.
    number: int
    #: True if the set may have more batches after this page.
    more: bool


class KeySets(Protocol):
    """The methods of a storage that keeps key sets.

    A key set has the request keys of one writer, for example of one partition of a write of Spark. Writers of
    the same set number their batches, each from the last number it has read. So two writers that run at the
    same time send the same number, and only one of them succeeds.
    """

    async def read_key_set(
        self, queue: str, name: str, *, after: int = 0, now: int | None = None
    ) -> StoredMembers:
        """Return the members of the batches above the number `after`. Expired members are left out.

        If the set has expired and was begun again since, its batches may be read from the first one.
        """
        ...

    async def enqueue_batch(
        self, queue: str, name: str, number: int, columns: RequestColumns, *, now: int | None = None
    ) -> Sequence[EnqueueStatus] | None:
        """Enqueue the requests in one atomic step, and add the batch with their keys to the key set.

        Return their statuses, or None if the set has a batch of this number already: then nothing is
        enqueued, and the caller reads the set and sends the members that it lacks. If a status is `full`, the
        step has changed nothing, too. The keys are remembered for the `request_key_age` of the queue. Raise
        the errors of `enqueue`.
        """
        ...


class ManyQueues(Protocol):
    """The verbs of a storage with the capability `many_queues`: one round trip for several queues."""

    async def serve(
        self, steps: Sequence[QueueStep], lease: str, *, now: int | None = None
    ) -> Sequence[SettleAndClaimResult]:
        """Settle and claim in 1 to 1,000 queues. Return one result per step, in the order of the steps.

        Each step is a `settle_and_claim` of its queue, with the same atomic steps and results. A step with
        `limit=0` claims no job, and its claim result has only `now`. A queue occurs in one step. An error
        may come after some steps were applied, as with a lost reply.
        """
        ...

    async def claim_blocking_any(
        self, queues: Sequence[str], lease: str, limit: int, *, claim_id: str, timeout: float
    ) -> Mapping[str, ClaimResult]:
        """Claim up to `limit` jobs in all when a job may be due in any of 1 to 1,000 queues.

        Only a storage with the capability `blocking_claim` has this verb. It is a `claim_blocking` of all
        the queues: a change that would release a blocking claim of one queue releases this one.
        `wake_claim` with any of the queues ends it. The result has the queues in which it claimed, each with
        the result of a `claim` at that moment.
        """
        ...


class Compaction(Protocol):
    """The method of a storage that rewrites its data now and then, as in a checkpoint or a vacuum."""

    async def compact(self) -> None:
        """Do the rare work of the storage now: a checkpoint, a vacuum, or a merge of files.

        Jobs, leases, settings, numbers and the log stay the same. The conformance kit calls this method
        between other calls, and while other clients make calls.
        """
        ...


class Diagnosis(Protocol):
    """The method of a storage that knows which settings of its server or its folder endanger jobs."""

    async def diagnose(self) -> Sequence[Finding]:
        """Return findings about the server or the folder.

        The storage need not be open. The method uses connections of its own, reads settings and sizes but no
        jobs, and changes nothing. Raise StorageError if the server cannot be reached.
        """
        ...


class LockWaits(Protocol):
    """The optional method of a storage whose verbs can wait for a lock of an open transaction."""

    def limit_lock_waits(self, seconds: float) -> Storage:
        """Return the same storage with verbs that raise StorageBusy after `seconds` at a lock."""
        ...


#: Ability -> its methods, as `ability` looks for them.
_METHODS: Final[dict[type[Any], tuple[str, ...]]] = {
    kind: tuple(name for name in vars(kind) if not name.startswith("_"))
    for kind in (
        *(DirectEnqueue, BlockingEnqueue, EndWatches, LockWaits),
        *(KeySets, Compaction, Diagnosis),
    )
}
_SECOND_WAYS: Final[frozenset[type[Any]]] = frozenset((DirectEnqueue, BlockingEnqueue, EndWatches, LockWaits))
