"""Waits for the end of one enqueue: subscribe, read the state, poll slowly (contract 1, Done)."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, Final

from msgspec import structs

from dibs.client.calls.current_job import counted_wait
from dibs.client.connection.queue_client import QueueClient
from dibs.client.connection.shared_waits import EndWaiter, WaitGroup
from dibs.client.connection.wait_messages import (
    cancelled_message,
    failure_message,
    not_kept_message,
    timeout_message,
)
from dibs.client.options.job_settings import extend_retention
from dibs.errors import JobCancelled, JobFailed, OutcomeNotKept, StorageBusy, WaitTimeout
from dibs.model.job import Outcome, OutcomeRetention, Slot
from dibs.model.requests import JobPatch
from dibs.model.ticket_state import TicketState, ticket_state

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
