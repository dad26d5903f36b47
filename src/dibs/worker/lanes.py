"""A queue as one worker process sees it: what it knows of it, and what it has to tell it."""

from __future__ import annotations

import time
from typing import Final

from dibs.client.handler import Handler
from dibs.model.answers import Claim, Settled
from dibs.model.decide import after_refusal
from dibs.model.requests import Cancelled, Complete, Fail, How, Retry
from dibs.worker.capacity import fitted
from dibs.worker.execution import Run

#: Seconds a lane rests after an error of the storage, doubling.
REST: Final = (0.1, 2.0)
#: Seconds until room is made again for jobs that were there, but could not be claimed (a paused queue).
SHY: Final = (1.0, 60.0)

Told = tuple[Run, How]


class Lane:
    """A queue, its handler, and at most one request of ours in the air."""

    def __init__(self, handler: Handler, units: int) -> None:
        self.handler = handler
        self.queue = handler.queue
        self.size = fitted(handler.size, units)
        self.priority = handler.queue_priority
        self.served = 0
        #: There may be something to claim; if not, only a wake-up or the slow poll says so.
        self.ready = True
        #: There was something when last looked.
        self.sure = False
        #: The lease of the claim that is on its way; "" for other requests, None for none.
        self.flying: str | None = None
        #: What ended here, until the storage has taken it.
        self.outbox: list[Told] = []
        self.token = ""
        self.due_at: float | None = None
        self._rest = 0.0
        self.rests_until = 0.0
        self._shy = 0.0
        self.shy_until = 0.0

    def saw(self, claim: Claim, limit: int) -> None:
        """Learn from a claim of up to `limit` jobs."""
        self.token = claim.token
        self.ready = self.sure = len(claim.jobs) >= limit
        self.due_at = None
        if claim.next_due is not None:
            self.due_at = time.monotonic() + (claim.next_due - claim.now) / 1000
        if claim.jobs:
            self._shy = 0.0

    def make_room(self, *, due: bool) -> None:
        """Learn whether there is something that room should be made for."""
        self.ready = self.sure = due
        if due:
            self._shy = min(max(self._shy * 2, SHY[0]), SHY[1])
            self.shy_until = time.monotonic() + self._shy

    def may_look(self, now: float) -> bool:
        """Tell whether it is time to ask if room should be made."""
        return now >= self.shy_until

    def rest(self) -> float:
        """Pause after an error, and return for how many seconds."""
        self._rest = min(max(self._rest * 2, REST[0]), REST[1])
        self.rests_until = time.monotonic() + self._rest
        return self._rest

    def went_well(self) -> None:
        self._rest = 0.0

    def wake(self, token: str | None, asked: str, now: float) -> None:
        """Learn from a wake-up: it is ready, unless all that moved is what we did ourselves."""
        moved = token != self.token or asked == self.token
        if moved or (self.due_at is not None and self.due_at <= now):
            self.ready = True


def word_of(how: How, answer: Settled) -> str:
    """Return what became of a run, as a word of WorkReport."""
    if answer.status in ("lost", "refused"):
        return "lost"
    if answer.status == "cancelled" or isinstance(how, Cancelled):
        return "cancelled"
    if isinstance(how, Complete):
        return "completed"
    if isinstance(how, Fail):
        return "failed"
    if isinstance(how, Retry):
        return {"error": "retried", "timeout": "timed_out", "stall": "stalled"}[how.cause]
    return "released"


def second_try(how: How, reason: str, *, handled: bool) -> How | None:
    """Return how a run is settled whose settlement was refused; None when nothing else is left to say."""
    if isinstance(how, Complete):
        return after_refusal(reason, handled=handled)
    if isinstance(how, Fail) and (how.then or how.retention is not None):
        return Fail(error=how.error, handled=how.handled)
    return None
