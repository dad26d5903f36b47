"""Waits for the end of one enqueue: subscribe, read the state, poll slowly (contract 1, Done). Waits for
the changes of a queue and for the progress of one enqueue, one call of `Storage.wait` after another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import define, field
from msgspec import structs

from dibs.client.calls.current_job import counted_wait
from dibs.client.connection.queue_client import QueueClient
from dibs.client.connection.shared_waits import EndWaiter, WaitGroup
from dibs.client.options.arguments import utc_datetime
from dibs.client.options.job_settings import extend_retention
from dibs.errors import JobCancelled, JobFailed, OutcomeNotKept, StorageBusy, StorageError, WaitTimeout
from dibs.model.job import Error, Job, Outcome, OutcomeRetention, Slot
from dibs.model.requests import JobPatch
from dibs.model.results import WaitResult
from dibs.model.rules import TicketState, ticket_state
from dibs.storage.protocol import Storage, Watch


def timeout_message(label: str, slot: Slot, revision: int) -> str:
    """Return the message for a wait that ended before the enqueue `revision` of the id did.

    `label` is "queue/id". `slot` is the slot of the id that the wait read last.
    """
    return f"{label} did not end in time: {_describe_pending(slot, revision)}"


def _describe_pending(slot: Slot, revision: int) -> str:
    current = slot.current
    if current is None:
        return "wait again or cancel it"
    if slot.successor is not None and slot.successor.first <= revision:
        return (
            f"it waits until the active run of the same id ends (attempt {current.attempts}); wait again or "
            "cancel it"
        )
    if current.run is not None:
        return f"attempt {current.attempts} is active; wait again, or cancel it with running=True"
    return _describe_waiting(current)


def _describe_waiting(job: Job) -> str:
    if job.attempts == 0 and job.run_at <= job.enqueued_at:
        return "it was never claimed. Is a worker running for this queue, and is the queue not paused?"
    since = "it was never claimed" if job.attempts == 0 else f"it waits again after attempt {job.attempts}"
    due = utc_datetime(job.run_at).isoformat(timespec="seconds")
    return f"{since} and is due at {due}; wait longer, or check that a worker runs for this queue"


def not_kept_message(label: str, state: TicketState, revision: int) -> str:
    """Return the message for an enqueue that ended and has no kept outcome. `label` is "queue/id"."""
    ended = f"{label}: the enqueue with revision {revision} ended, and its outcome is no longer kept"
    match state.later:
        case "ended":
            return (
                f"{ended}: a later run of the same id replaced it, and an id keeps only its latest outcome; "
                "use an id of its own for each result, or read the result before the next run ends"
            )
        case "live":
            return (
                f"{ended}. The id was enqueued again, and that job is live, so it is not the result of this "
                "ticket; wait for the ticket of the later enqueue, or raise the retention"
            )
        case None:
            return (
                f"{label}: the storage keeps neither a job nor an outcome of the enqueue with revision "
                f"{revision}. Either it ended and its outcome expired or was removed: raise its retention to "
                "read it later. Or the storage lost it, as a failover or a restored backup may: enqueue it "
                "again"
            )


def failure_message(label: str, outcome: Outcome) -> str:
    """Return the message for a failed job: its attempts and its error. `label` is "queue/id"."""
    error = outcome.error
    reason = f"{error.type}: {error.message}" if error else "the storage kept no error"
    attempts = "1 attempt" if outcome.attempts == 1 else f"{outcome.attempts} attempts"
    return f"{label} failed permanently after {attempts}: {reason}"


def cancelled_message(label: str, reason: Error) -> str:
    """Return the message for a job that was cancelled with a reason. `label` is "queue/id"."""
    return f"{label} was cancelled: {reason.type}: {reason.message}"


#: Seconds of one call of `Storage.wait`, and so the longest delay that a lost wake-up causes.
WAIT_SECONDS: Final = 1.0


@define(eq=False)
class RepeatedWaits:
    """Calls of `Storage.wait` for one queue, one after another.

    Each call continues at the token of the call before, so a change between two calls ends the second one at
    once. The caller reads the state after `begin`, and again after each `next`.
    """

    _queue: str
    _watch: Watch
    #: Ids to wait for; empty for all ids of the queue.
    _ids: Sequence[str] = ()
    _since: Mapping[str, str] | None = field(default=None, init=False)

    async def begin(self, storage: Storage) -> None:
        """Get the first token, unless a call before has it."""
        if self._since is None:
            await self.next(storage, 0)

    async def next(self, storage: Storage, seconds: float | None = None) -> WaitResult | None:
        """Wait for the next change, by default for WAIT_SECONDS. Return None then if the storage failed."""
        seconds = WAIT_SECONDS if seconds is None else seconds
        try:
            result = await storage.wait(
                [self._queue], for_=self._watch, ids=self._ids, since=self._since, timeout=seconds
            )
        except StorageError:
            await asyncio.sleep(seconds)
            return None
        self._since = result.since
        return result


async def watch_progress(client: QueueClient, id: str, revision: int) -> AsyncIterator[bytes]:
    """Yield the progress that runs of the enqueue `revision` report, as JSON, until the enqueue has ended.

    The last value of a run that ends between two reads comes from its outcome.
    """
    reports, latest = RepeatedWaits(client.name, "progress", [id]), None
    while True:
        storage = await client.storage()
        await reports.begin(storage)
        slot = await _read_slot(client, id)
        state = ticket_state(slot, revision)
        # The active run may be an older one, while the enqueue is in the successor.
        is_current = slot.current is not None and slot.current.first <= revision <= slot.current.revision
        report = find_report(slot.current if is_current else state.outcome)
        if report is not None and report != latest:
            latest = report
            yield report[1]
        if state.kind != "pending":
            return
        await reports.next(storage)


async def _read_slot(client: QueueClient, id: str) -> Slot:
    """Return the slot of the id. After StorageBusy read again, because `call_timeout` must not end a wait."""
    while True:
        try:
            return await client.get(id)
        except StorageBusy:
            await asyncio.sleep(WAIT_SECONDS)


def find_report(part: Job | Outcome | None) -> tuple[int, bytes] | None:
    """Return the fence and the last progress of the run of an active job, or of an outcome; None without a
    run, or if it reported no progress.
    """
    run = part.run if isinstance(part, Job) else part
    return None if run is None or run.progress is None else (run.fence, run.progress)


#: Seconds between two reads of the state, and so the longest delay that a lost wake-up causes.
SLOW_POLL_SECONDS: Final = 1.0
#: Seconds that the last read of a wait may take after the end of the wait. Then the wait ends without it.
READ_SECONDS: Final = 2.0


class OutcomeWait(EndWaiter):
    """A wait for the end of one enqueue, with an optional deadline.

    `seconds` is the longest wait; None waits until the job ends. `own` is the retention of a new job, from
    its request. It is None if the job may have ended, or if its retention is unknown: the wait then begins
    with a read.
    """

    def __init__(
        self,
        client: QueueClient,
        id: str,
        revision: int,
        seconds: float | None,
        own: OutcomeRetention | None = None,
    ) -> None:
        super().__init__(id)
        self._client = client
        self._revision = revision
        self._own = own
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._group: WaitGroup | None = None

    async def wait_for_end(self) -> TicketState:
        """Return the final state of the enqueue. Raises WaitTimeout, which does not affect the job.

        The `call_timeout` of the app does not end a wait: after StorageBusy the wait reads again.
        """
        with counted_wait():
            return await self._wait_for_end()

    async def _wait_for_end(self) -> TicketState:
        if (state := await self._watch_end()) is not None:
            return state
        limit = asyncio.timeout(None if self._deadline is None else self._seconds_left() + READ_SECONDS)
        try:
            async with limit:
                while True:
                    try:
                        return await self._wait_until_busy()
                    except StorageBusy:
                        await asyncio.sleep(max(0.05, self._seconds_until_poll()))
        except TimeoutError:
            if not limit.expired():
                raise
            raise WaitTimeout(
                f"{self._client.name}/{self.id}: the storage did not answer before the wait ended; wait again"
            ) from None
        finally:
            if self._group is not None:
                self._group.leave(self)

    async def _watch_end(self) -> TicketState | None:
        """Wait for a message with the outcome of a new job, until the first poll is due.

        Return None if none came. No other task passes the message on, as in a shared wait.
        """
        own = self._own
        if own is None or not await self._is_kept(own):
            return None
        ended: asyncio.Future[Outcome | None] = self.loop.create_future()
        stop = await self._client.watch_end(self.id, self._revision, partial(_set_outcome, ended))
        if stop is None:
            return None
        timer = self.loop.call_later(self._seconds_until_poll(), _set_outcome, ended, None)
        try:
            return self._state_of(await ended)
        finally:
            timer.cancel()
            stop()

    async def _wait_until_busy(self) -> TicketState:
        """Return the final state of the enqueue. Raises StorageBusy if the storage does not answer a read."""
        while True:
            # Subscribe before reading the state, so that a change in between is not missed.
            await self._join_group()
            if ended := await self._read_end():
                return ended
            await self.sleep(self._seconds_until_poll())
            if ended := self._take_wakeup():
                return ended

    async def _join_group(self) -> None:
        """Join a shared wait, unless this waiter already is in a wait that continues."""
        if self._group is None or self._group.is_ended:
            self._group = await self._client.join_wait(self)
            await asyncio.sleep(0)  # let the wait begin; a storage in memory answers without a pause

    async def _is_kept(self, own: OutcomeRetention) -> bool:
        """Return whether the retention `own` surely keeps the outcome until the wait ends.

        Return False if it depends on the settings of the queue, which are not cached yet.
        """
        of_queue = await self._client.known_retention()
        return of_queue is not None and self._extended(of_queue, own) == own

    def _extended(
        self, of_queue: OutcomeRetention, own: OutcomeRetention, *others: OutcomeRetention
    ) -> OutcomeRetention:
        return extend_retention(of_queue, round(self._seconds_left() * 1000), own, *others)

    async def _read_end(self) -> TicketState | None:
        """Read the state, and return it if the enqueue has ended. Raises WaitTimeout at the deadline."""
        slot = await self._client.get(self.id)
        state = ticket_state(slot, self._revision)
        if state.kind != "pending":
            return state
        await self._extend_retention(slot)
        self._check_deadline(slot)
        return None

    def _take_wakeup(self) -> TicketState | None:
        """Reset the wake-up, and return the final state of the enqueue if the wake-up carried its outcome.

        Raises the error with which the shared wait ended.
        """
        return self._state_of(self.take_outcome())

    def _state_of(self, outcome: Outcome | None) -> TicketState | None:
        """Return the final state of the enqueue by an outcome of its id; None if only the slot shows it."""
        # A revision between `first` and `revision` may have been cancelled, which only the slot knows. The
        # outcome always covers these two revisions themselves.
        if outcome is None or self._revision not in (outcome.first, outcome.revision):
            return None
        return TicketState(outcome.kind, outcome)

    def _seconds_left(self) -> float:
        return 0.0 if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _seconds_until_poll(self) -> float:
        return SLOW_POLL_SECONDS if self._deadline is None else min(SLOW_POLL_SECONDS, self._seconds_left())

    def _check_deadline(self, slot: Slot) -> None:
        if self._deadline is not None and self._seconds_left() == 0.0:
            raise WaitTimeout(timeout_message(f"{self._client.name}/{self.id}", slot, self._revision))

    async def _extend_retention(self, slot: Slot) -> None:
        """Extend the stored retention, so that the outcome is kept until the wait ends.

        Called before each pause, because an update of the job during the wait may replace the retention.
        """
        own, *others = stored_retentions(slot, self._revision)
        longer = self._extended(await self._client.retention(), own, *others)
        if longer != own:
            storage = await self._client.storage()
            await storage.amend(self._client.name, self.id, JobPatch(retention=longer))


def _set_outcome(ended: asyncio.Future[Outcome | None], outcome: Outcome | None) -> None:
    if not ended.done():
        ended.set_result(outcome)


def abandon_wakeup(wakeup: asyncio.Future[Any]) -> None:
    """Cancel a wait for a wake-up, and ignore its result or exception."""
    wakeup.cancel()
    wakeup.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def stored_retentions(slot: Slot, revision: int) -> list[OutcomeRetention]:
    """Return the retentions in a slot that an amend of its id would overwrite.

    The first is the retention of the job that contains the enqueue with the number `revision`.
    """
    live = [part for part in (slot.current, slot.successor) if part is not None]
    live.sort(key=lambda part: not part.first <= revision <= part.revision)
    retentions = [part.data.retention or OutcomeRetention() for part in live]
    if (outcome := slot.outcome) is not None:
        age = None if outcome.expires_at is None else outcome.expires_at - outcome.ended_at
        retentions.append(structs.replace(OutcomeRetention(), **{outcome.kind: age}))
    return retentions


def encoded_result(client: QueueClient, id: str, revision: int, state: TicketState) -> bytes | None:
    """Return the encoded result of a completed job. Raises JobFailed, JobCancelled, OutcomeNotKept."""
    outcome = state.outcome
    if state.kind == "completed" and outcome is not None:
        return outcome.result
    job: dict[str, Any] = {"queue": client.name, "id": id}
    label = f"{client.name}/{id}"
    if state.kind == "failed" and outcome is not None:
        raise JobFailed(failure_message(label, outcome), error=outcome.error, **job)
    if state.kind == "cancelled":
        reason = None if outcome is None else outcome.error
        raise JobCancelled("" if reason is None else cancelled_message(label, reason), error=reason, **job)
    raise OutcomeNotKept(not_kept_message(label, state, revision), **job)
