"""The waiting rule (contract 1, Done): subscribe, read the state, and read it again at a slow poll."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec import structs

from dibs.client.connection.queue_client import QueueClient
from dibs.client.options.retention import extend_retention
from dibs.errors import JobCancelled, JobFailed, OutcomeNotKept, StorageError, WaitTimeout
from dibs.model.job import Outcome, OutcomeRetention, Slot
from dibs.model.requests import JobPatch
from dibs.model.results import WaitResult
from dibs.model.ticket_state import TicketState, ticket_state
from dibs.storage.protocol import Storage

#: How long a lost hint may delay anything, in seconds.
SLOW_POLL: Final = 1.0


class OutcomeWait:
    """Somebody waits for the end of one enqueue, until a deadline or without one."""

    def __init__(self, client: QueueClient, id: str, revision: int, seconds: float | None) -> None:
        self._client = client
        self._id = id
        self._revision = revision
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._since: Mapping[str, str] | None = None

    async def end(self) -> TicketState:
        """Return how it ended. Raises WaitTimeout, which leaves the job alone."""
        while True:
            storage = await self._client.storage()
            # Subscribed before the state is read: what happens in between is not missed. After a hint its
            # token does that: what happened since it was drawn ends the next wait at once.
            hint = None if self._since else asyncio.ensure_future(self._hint(storage))
            try:
                slot = await self._client.get(self._id)
                found = ticket_state(slot, self._revision)
                if found.kind != "pending":
                    return found
                await self._keep(storage, slot)
                self._check_deadline()
                wake = await (hint or self._hint(storage))
                if told := self._told(wake):
                    return told
                self._since = wake.since
            finally:
                if hint is not None:
                    abandon_hint(hint)

    def _told(self, wake: WaitResult) -> TicketState | None:
        """Return how it ended if the wake-up says so."""
        outcome = wake.outcomes.get(self._id)
        # Between the two may lie what was cancelled, as only the slot tells; they themselves always ran.
        if outcome is None or self._revision not in (outcome.first, outcome.revision):
            return None
        return TicketState(outcome.kind, outcome)

    async def _hint(self, storage: Storage) -> WaitResult:
        name = self._client.name
        seconds = SLOW_POLL if self._deadline is None else min(SLOW_POLL, self._left())
        with suppress(StorageError):
            return await storage.wait([name], for_="ids", ids=[self._id], since=self._since, timeout=seconds)
        # Losing every hint costs latency, never correctness: the state is what tells of real trouble.
        await asyncio.sleep(seconds)
        return WaitResult(woken=False, since={})

    def _left(self) -> float:
        return 0.0 if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _check_deadline(self) -> None:
        if self._deadline is not None and self._left() == 0.0:
            raise WaitTimeout(
                f"{self._client.name}/{self._id} has not ended yet; it goes on, and may be waited for again"
            )

    async def _keep(self, storage: Storage, slot: Slot) -> None:
        """Let the outcome outlive the wait, also after an update has brought a retention of its own."""
        own, *others = stored_retentions(slot, self._revision)
        longer = extend_retention(await self._client.retention(), round(self._left() * 1000), own, *others)
        if longer != own:
            await storage.amend(self._client.name, self._id, JobPatch(retention=longer))


def abandon_hint(hint: asyncio.Future[Any]) -> None:
    """Stop listening; what becomes of a hint is of no interest any more, not even an error."""
    hint.cancel()
    hint.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def stored_retentions(slot: Slot, revision: int) -> list[OutcomeRetention]:
    """Return what an amend of the retention would write over, that of the pending enqueue first."""
    live = [part for part in (slot.current, slot.successor) if part is not None]
    live.sort(key=lambda part: not part.first <= revision <= part.revision)
    said = [part.data.retention or OutcomeRetention() for part in live]
    if (outcome := slot.outcome) is not None:
        age = None if outcome.expires_at is None else outcome.expires_at - outcome.ended_at
        said.append(structs.replace(OutcomeRetention(), **{outcome.kind: age}))
    return said


def outcome_result(client: QueueClient, id: str, found: TicketState) -> bytes | None:
    """Return the encoded result of an end that has one. Raises JobFailed, JobCancelled, OutcomeNotKept."""
    outcome = found.outcome
    if found.kind == "completed" and outcome is not None:
        return outcome.result
    whose: dict[str, Any] = {"queue": client.name, "id": id}
    if found.kind == "failed" and outcome is not None:
        raise JobFailed(_story(client, id, outcome), error=outcome.error, **whose)
    if found.kind == "cancelled":
        raise JobCancelled(**whose)
    raise OutcomeNotKept(**whose)


def _story(client: QueueClient, id: str, outcome: Outcome) -> str:
    error = outcome.error
    what = f"{error.type}: {error.message}" if error else "no error was kept"
    return f"{client.name}/{id} failed for good after {outcome.attempts} attempts: {what}"
