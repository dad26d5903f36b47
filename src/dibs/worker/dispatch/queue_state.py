"""The state that one worker process keeps for each queue it serves."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from attrs import define, field

from dibs.client.calls.handler import Handler
from dibs.model.results import ClaimResult
from dibs.worker.dispatch.round_trip import Reply, RoundTrip
from dibs.worker.execution.invocation import Invocation

#: Seconds without requests after an error of the storage: the first pause, doubled up to the second value.
BACKOFF: Final = (0.1, 2.0)
#: Seconds between two counts of a queue whose due jobs cannot be claimed, for example because it is paused:
#: the first pause, doubled up to the second value.
RECOUNT: Final = (1.0, 60.0)
#: Seconds between two claims of a queue without wake-ups, where the storage pushes wake-ups and checks
#: them itself.
FALLBACK_POLL: Final = 60.0
#: A queue prefetches the jobs that this process runs in so many seconds, so a job waits here no longer.
PREFETCH_SECONDS: Final = 0.01
#: Prefetched jobs of one queue at most, including those of claims in flight: two full requests in a drain.
MAX_PREFETCH: Final = 400
#: Jobs that must have started before more are prefetched, so that the rest lasts for one round trip to a far
#: storage. Two requests in flight would allow smaller ones, but requests of 100 jobs each would be half as
#: many again.
MIN_BATCH: Final = 150
#: Seconds that settlements wait for those of the prefetched jobs: a request for a few of them costs more.
SETTLEMENT_DELAY: Final = 0.005
#: Seconds after which prefetched jobs are released: the runs before them take longer than expected.
PREFETCH_TIMEOUT: Final = 0.5
#: Seconds after its latest job in which a queue counts as active, see `Listener`.
ACTIVE_SECONDS: Final = 5.0


@define(eq=False)
class Readiness:
    """The time from which a queue may be claimed from. All times are seconds by time.monotonic()."""

    #: Seconds after which the queue is claimed from without a wake-up.
    _poll: float = FALLBACK_POLL
    #: There may be a job to claim. While False, only a wake-up or the time `poll_at` or `due_at` changes it.
    ready: bool = True
    #: The latest claim returned as many jobs as it asked for, or the latest count found due jobs.
    has_more: bool = False
    #: The jobs of the queue do not fit and its next count is not due; a wait would report them at once.
    snoozed: bool = False
    #: The state of the queue that the latest claim or wait saw; "" is unknown.
    token: str = ""
    #: The time at which the next scheduled job falls due, if the storage reported one.
    due_at: float | None = None
    poll_at: float = 0.0
    #: The queue is likely to get more jobs until this time.
    active_until: float = 0.0
    #: No request is sent before this time.
    retry_at: float = 0.0
    _backoff: float = 0.0
    _recount_at: float = 0.0
    _recount_pause: float = 0.0

    def claimed(self, claim: ClaimResult, limit: int, *, conclusive: bool = True) -> None:
        """Update from a claim of up to `limit` jobs. Stay ready if it is not `conclusive`."""
        now = time.monotonic()
        self.token = claim.token
        self.has_more = len(claim.jobs) >= limit
        self.ready = self.has_more or not conclusive
        self.due_at = None
        self.poll_at = now + self._poll
        if claim.next_due is not None:
            self.due_at = now + (claim.next_due - claim.now) / 1000
        if claim.jobs:
            self._recount_pause = self._recount_at = 0.0
            self.active_until = now + ACTIVE_SECONDS

    def counted(self, *, due: bool) -> None:
        """Update from a count that found due jobs or not: capacity is kept free only for due jobs."""
        now = time.monotonic()
        self.ready = self.has_more = due
        self.poll_at = now + self._poll
        # A count returns no token, and with the token of the last claim each wait would end at once. Without
        # a token a wait ends when a job is due or comes.
        self.token, self.due_at = "", None
        if due:
            self._recount_pause = min(max(self._recount_pause * 2, RECOUNT[0]), RECOUNT[1])
            self._recount_at = now + self._recount_pause

    def waited(self, token: str, since: str, now: float) -> None:
        """Update from a wait from `since` on that ended at `token` without a wake-up."""
        if self.token == since:
            self.token = token
        if self.poll_at <= now or self.is_due(now):
            self.ready = True

    def wake(self) -> None:
        """Allow the next claim: a job may have come."""
        self.ready, self.snoozed = True, False

    def is_due(self, now: float) -> bool:
        """Return whether the next scheduled job has fallen due."""
        return self.due_at is not None and self.due_at <= now

    def recount_in(self, now: float) -> float:
        """Return the seconds until the queue may be counted again."""
        return max(0.0, self._recount_at - now)

    def back_off(self) -> float:
        """Send no request for some seconds after an error, and return these seconds."""
        self._backoff = min(max(self._backoff * 2, BACKOFF[0]), BACKOFF[1])
        self.retry_at = time.monotonic() + self._backoff
        return self._backoff

    def reset_backoff(self) -> None:
        self._backoff = 0.0


@define(eq=False)
class Prefetch:
    """The runs of a queue that were claimed before there was capacity for them."""

    #: Runs of the queue that fit into this process at once.
    _slots: int
    #: The prefetched runs, in the order of the queue.
    runs: deque[Invocation] = field(factory=deque)
    #: Seconds that a run takes; None until the first run has ended.
    _run_seconds: float | None = None

    def take(self, number: int) -> list[Invocation]:
        """Remove and return up to `number` runs."""
        return [self.runs.popleft() for _ in range(min(number, len(self.runs)))]

    def add_run_time(self, seconds: float) -> None:
        """Update the expected time of a run: quickly if runs get slower, slowly if they get faster."""
        expected = self._run_seconds
        if expected is None:
            self._run_seconds = seconds
        elif seconds > expected:
            self._run_seconds = (expected + seconds) / 2
        else:
            self._run_seconds = expected + (seconds - expected) / 16

    def wanted(self, in_flight: int) -> int:
        """Return how many more jobs to claim than there is capacity for, so that no run waits for a reply.

        `in_flight` is the number of jobs that claims in flight may prefetch. The result is 0 until the first
        runs have shown how short runs are, and until a part worth a request has started.
        """
        if not self._run_seconds:
            return 0
        wanted = min(MAX_PREFETCH, int(self._slots * PREFETCH_SECONDS / self._run_seconds))
        more = wanted - len(self.runs) - in_flight
        return more if more >= min(wanted / 2, MIN_BATCH) else 0

    def take_stale(self, now: float) -> list[Invocation]:
        """Remove and return the runs that waited too long; prefetch no more until runs are short again."""
        stale = [run for run in self.runs if run.received_at + PREFETCH_TIMEOUT <= now]
        if stale:
            self._run_seconds = PREFETCH_TIMEOUT
            self.runs = deque(run for run in self.runs if run.received_at + PREFETCH_TIMEOUT > now)
        return stale


@define(eq=False)
class RoundTrips:
    """The requests for a queue that are in flight, and the settlements that wait for the next request."""

    #: Runs with a settlement that the storage has not taken yet.
    outbox: list[Invocation] = field(factory=list)
    #: The requests in flight, in the order they were sent: at most one, or two while both are large.
    in_flight: deque[RoundTrip] = field(factory=deque)
    #: The jobs of the queue are being counted, see `OversizedQueues`.
    counting: bool = False
    #: The outbox waits for more settlements until this time, by time.monotonic(); 0 is no wait.
    delayed_until: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether a request for the queue is in flight."""
        return self.counting or bool(self.in_flight)

    @property
    def prefetching(self) -> int:
        """Jobs that the claims in flight may prefetch."""
        return sum(trip.prefetching for trip in self.in_flight)

    def replies(self) -> Iterator[tuple[RoundTrip, Reply]]:
        """Remove and yield the round trips with a reply, in the order they were sent.

        So jobs start in the order of the queue, if the server took the requests in the order they were sent,
        and the reply to the latest request is the last to update the state.
        """
        while self.in_flight and (reply := self.in_flight[0].reply) is not None:
            yield self.in_flight.popleft(), reply

    def is_second(self, trip: RoundTrip) -> bool:
        """Return whether the reply of `trip` must wait for the reply to the request sent before it."""
        return len(self.in_flight) > 1 and self.in_flight[-1] is trip


class QueueState:
    """One queue of a worker process: its readiness, its prefetched runs and its round trips."""

    def __init__(self, handler: Handler, size: int, units: int, poll: float = FALLBACK_POLL) -> None:
        self.handler = handler
        self.name = handler.queue
        #: Capacity units that one run takes.
        self.size = size
        #: A queue with a higher priority is served first.
        self.priority = handler.queue_priority
        #: The number of the latest service of this queue, counted over all queues; 0 is never.
        self.last_served = 0
        self.readiness = Readiness(poll)
        self.prefetch = Prefetch(units // size)
        self.round_trips = RoundTrips()

    @property
    def has_jobs(self) -> bool:
        """Whether the queue is known to have jobs that are worth keeping capacity free for."""
        return self.readiness.has_more or bool(self.prefetch.runs)

    @property
    def startable(self) -> int | None:
        """How many of its jobs can start now at most; None is unknown."""
        return None if self.readiness.ready and not self.round_trips.busy else len(self.prefetch.runs)

    @property
    def needs_wakeup(self) -> bool:
        """Whether only a wake-up, or the time of the next poll, can lead to the next claim."""
        return not (self.readiness.ready or self.readiness.snoozed or self.round_trips.busy)

    def can_send(self, now: float) -> bool:
        """Return whether a request may be sent."""
        return not self.round_trips.busy and self.readiness.retry_at <= now

    def can_claim(self, now: float) -> bool:
        """Return whether a claim may be sent, and may return a job."""
        return self.readiness.ready and self.can_send(now)

    def can_send_second(self, now: float) -> bool:
        """Return whether to send a second request while one is in flight: only a large one.

        While a queue is drained, neither the storage nor this process then waits for the other. Where jobs
        come one by one, where runs are long, and in memory, where a reply comes at once, this is False.
        """
        trips, readiness = self.round_trips, self.readiness
        if len(trips.in_flight) != 1 or trips.counting or readiness.retry_at > now:
            return False
        if not readiness.ready or not readiness.has_more or len(trips.outbox) < MIN_BATCH:
            return False
        return self.wanted_prefetch() >= MIN_BATCH

    def wanted_prefetch(self) -> int:
        """Return how many more jobs to claim than there is capacity for."""
        return self.prefetch.wanted(self.round_trips.prefetching)

    def delays_settlements(self, now: float) -> bool:
        """Return whether the outbox waits for the settlements of prefetched runs that are about to end."""
        trips = self.round_trips
        if not trips.outbox or not self.prefetch.runs or self.wanted_prefetch():
            return False
        trips.delayed_until = trips.delayed_until or now + SETTLEMENT_DELAY
        return now < trips.delayed_until

    def claim_failed(self) -> None:
        """Update from a failed claim: jobs that it kept from another claim in flight may still be there."""
        self.readiness.wake()
        for trip in self.round_trips.in_flight:
            trip.other_failed = True
