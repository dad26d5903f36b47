"""A queue as one worker process sees it: what it knows of it, and what it has to tell it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from dibs.client.calls.handler import Handler
from dibs.model.results import ClaimResult
from dibs.worker.dispatch.capacity import fitted
from dibs.worker.dispatch.round_trip import Brought, Flight
from dibs.worker.execution.invocation import Invocation

#: Seconds a lane rests after an error of the storage, doubling.
REST: Final = (0.1, 2.0)
#: Seconds until room is made again for jobs that were there, but could not be claimed (a paused queue).
SHY: Final = (1.0, 60.0)
#: Seconds until a queue is asked again of which nothing was heard, where waits look for themselves.
SILENCE: Final = 60.0
#: Claimed ahead is what this process runs in so many seconds, so a job waits here no longer than that ...
AHEAD: Final = 0.01
#: ... and not more jobs than these, those on their way included: two requests full while a queue is drained.
MOST_AHEAD: Final = 400
#: How many of these are begun until more are claimed: so what is left lasts until they come from afar. Two
#: requests in the air bear smaller ones, but with 100 each of them half as many more are needed for a job.
WORTH_A_TRIP: Final = 150
#: Seconds that ends wait for those of what was claimed ahead: a request for each handful would cost more.
TOGETHER: Final = 0.005
#: Seconds after which jobs that were claimed ahead are given back: a run has taken longer than those before.
STALE: Final = 0.5
#: Seconds after its latest job for which a queue is waited for apart from those that are quiet.
LIVELY: Final = 5.0


class Lane:
    """A queue, its handler, and at most one request of ours in the air, or two while both are worth it."""

    def __init__(self, handler: Handler, units: int, patience: float = SILENCE) -> None:
        self.handler = handler
        self.queue = handler.queue
        self.size = fitted(handler.size, units)
        self.priority = handler.queue_priority
        self.served = 0
        #: There may be something to claim; if not, only a wake-up or its time to be asked says so.
        self.ready = True
        #: There was something when last looked.
        self.found = False
        #: Its jobs have no room, and it is left alone for a time: a wait would tell of them again at once.
        self.dozing = False
        #: It is being asked whether room should be made for its jobs.
        self.looked_at = False
        #: What is in the air, in the order of its launches.
        self.flights: deque[Flight] = deque()
        #: Claimed, and not begun for want of room.
        self.ahead: deque[Invocation] = deque()
        #: What ended here, until the storage has taken it.
        self.outbox: list[Invocation] = []
        #: Until when they wait for more, by time.monotonic(); 0 is not at all.
        self.together_until = 0.0
        self.token = ""
        self.due_at: float | None = None
        #: When it is asked although nothing was heard of it.
        self.asked_at = 0.0
        #: Until when it is likely to have more.
        self.lively_until = 0.0
        self._patience = patience
        self._slots = units // self.size
        #: Seconds that its runs take; None is not known, or of no use.
        self._pace: float | None = None
        self._rest = 0.0
        self.rests_until = 0.0
        self._shy = 0.0
        self._shy_until = 0.0

    @property
    def sure(self) -> bool:
        """Whether it has jobs that room is worth being kept for."""
        return self.found or bool(self.ahead)

    @property
    def most(self) -> int | None:
        """How many of its jobs could begin now at most; None is not known."""
        return None if self.ready and not self.asks else len(self.ahead)

    @property
    def asks(self) -> bool:
        """Whether a request of ours is in the air."""
        return self.looked_at or bool(self.flights)

    def at_rest(self, now: float) -> bool:
        """Tell whether a request may go out."""
        return not self.asks and self.rests_until <= now

    def worth_another(self, now: float) -> bool:
        """Tell whether a request may go out beside the one in the air: only one that fills both ways.

        Then neither the storage nor this process waits for the other while a queue is drained. Where jobs
        come one by one, where runs are long, and in memory, where nothing stays in the air, it never goes.
        """
        one_flies = len(self.flights) == 1 and not self.looked_at and self.rests_until <= now
        if not one_flies or not self.ready or not self.found or len(self.outbox) < WORTH_A_TRIP:
            return False
        return self.wants_ahead() >= WORTH_A_TRIP

    def could_claim(self, now: float) -> bool:
        """Tell whether a claim may go out, and may find something."""
        return self.ready and self.at_rest(now)

    @property
    def quiet(self) -> bool:
        """Whether it takes a wake-up to go on."""
        return not self.ready and not self.dozing and not self.asks

    def saw(self, claim: ClaimResult, limit: int, *, sure: bool = True) -> None:
        """Learn from a claim of up to `limit` jobs; one that is not `sure` may have missed some."""
        now = time.monotonic()
        self.token = claim.token
        self.found = len(claim.jobs) >= limit
        self.ready = self.found or not sure
        self.due_at = None
        self.asked_at = now + self._patience
        if claim.next_due is not None:
            self.due_at = now + (claim.next_due - claim.now) / 1000
        if claim.jobs:
            self._shy = self._shy_until = 0.0
            self.lively_until = now + LIVELY

    def make_room(self, *, due: bool) -> None:
        """Learn whether there is something that room should be made for."""
        now = time.monotonic()
        self.ready = self.found = due
        self.asked_at = now + self._patience
        # A look tells no token, and what the last claim told would end each wait at once. Without one a wait
        # ends when something is due, or comes.
        self.token, self.due_at = "", None
        if due:
            self._shy = min(max(self._shy * 2, SHY[0]), SHY[1])
            self._shy_until = now + self._shy

    def shy_for(self, now: float) -> float:
        """Return for how many seconds it is not asked again whether room should be made."""
        return max(0.0, self._shy_until - now)

    def rest(self) -> float:
        """Pause after an error, and return for how many seconds."""
        self._rest = min(max(self._rest * 2, REST[0]), REST[1])
        self.rests_until = time.monotonic() + self._rest
        return self._rest

    def went_well(self) -> None:
        self._rest = 0.0

    def went_wrong(self) -> None:
        """Learn that a claim failed: what it kept from one beside it may be there after all."""
        self.wake()
        for flight in self.flights:
            flight.beside_a_failure = True

    def wake(self) -> None:
        """Learn that something may have come."""
        self.ready, self.dozing = True, False

    def slept(self, token: str, asked: str, now: float) -> None:
        """Learn that nothing came since `asked`, and that this is where the queue stands."""
        if self.token == asked:
            self.token = token
        if self.asked_at <= now or self.is_due(now):
            self.ready = True

    def is_due(self, now: float) -> bool:
        """Tell whether the next scheduled job has fallen due."""
        return self.due_at is not None and self.due_at <= now

    # -- in the air ----------------------------------------------------------------------------------

    def landed(self) -> Iterator[tuple[Flight, Brought]]:
        """Yield, and forget, what has landed: in the order of the launches, whatever came back first.

        So jobs begin in the order of the queue, where the server took the requests in theirs; and the answer
        to the latest question has the last word.
        """
        while self.flights and (brought := self.flights[0].brought) is not None:
            yield self.flights.popleft(), brought

    def waits_in_line(self, flight: Flight) -> bool:
        """Tell whether a flight that has landed waits for the one that was launched before it."""
        return len(self.flights) > 1 and self.flights[-1] is flight

    # -- claimed ahead -------------------------------------------------------------------------------

    def next(self, room: int) -> list[Invocation]:
        """Take out up to so many jobs that were claimed ahead."""
        return [self.ahead.popleft() for _ in range(min(room, len(self.ahead)))]

    def took(self, seconds: float) -> None:
        """Learn how long a run took: at once where they get slower, by and by where faster."""
        pace = self._pace
        if pace is None:
            self._pace = seconds
        elif seconds > pace:
            self._pace = (pace + seconds) / 2
        else:
            self._pace = pace + (seconds - pace) / 16

    def wants_ahead(self) -> int:
        """Return how many jobs more may be claimed than there is room for: the round trip costs no pause.

        None until runs have shown how short they are, and none until a part worth a trip is begun.
        """
        if not self._pace:
            return 0
        wanted = min(MOST_AHEAD, int(self._slots * AHEAD / self._pace))
        more = wanted - len(self.ahead) - sum(flight.ahead for flight in self.flights)
        return more if more >= min(wanted / 2, WORTH_A_TRIP) else 0

    def waits_for_more(self, now: float) -> bool:
        """Tell whether what ended here is to be told together with what is claimed and about to end."""
        if not self.outbox or not self.ahead or self.wants_ahead():
            return False
        self.together_until = self.together_until or now + TOGETHER
        return now < self.together_until

    def stale(self, now: float) -> list[Invocation]:
        """Take out what has waited here too long, and claim no more ahead until runs are short again."""
        late = [run for run in self.ahead if run.taken + STALE <= now]
        if late:
            self._pace = STALE
            self.ahead = deque(run for run in self.ahead if run.taken + STALE > now)
        return late
