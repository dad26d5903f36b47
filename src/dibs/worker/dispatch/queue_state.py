"""The state that one worker process keeps for each queue it serves, and the queues that the next step of
the worker loop looks at, so that the other queues cost it no time.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple

from attrs import define, field

from dibs.client.calls.handler import Handler
from dibs.model.requests import SettleAction
from dibs.model.results import ClaimResult
from dibs.worker.dispatch.round_trip import RoundTrips
from dibs.worker.execution.invocation import Invocation

#: Seconds without requests after an error of the storage: the first pause, and the longest after doubling.
BACKOFF: Final = (0.1, 2.0)
#: Seconds added to the timer for the end of a pause: a timer may fire early, and no other event may follow.
BACKOFF_MARGIN: Final = 0.01
#: Seconds between two counts of a queue whose due jobs cannot be claimed, for example because the queue is
#: paused: the first pause, and the longest after doubling.
RECOUNT: Final = (1.0, 60.0)
#: Seconds until a queue is claimed from without a wake-up, if the storage pushes wake-ups. Such a storage
#: itself checks now and then for lost wake-ups.
FALLBACK_POLL: Final = 60.0
#: A queue prefetches as many jobs as the process runs in this number of seconds. This is also the expected
#: longest time that a prefetched job waits here.
PREFETCH_SECONDS: Final = 0.01
#: Largest number of prefetched jobs of one queue, including claims in flight. It is enough for two full
#: requests while a queue is drained. A request with 500 jobs costs both sides less CPU time for each job than
#: one with 200.
MAX_PREFETCH: Final = 1000
#: Smallest number of jobs worth a request that only prefetches, and of settlements worth a second request.
MIN_BATCH: Final = 150
#: Smallest part of what the queue may prefetch that is worth such a request, if that is more than MIN_BATCH
#: jobs. The remaining prefetched jobs then last for one round trip to a far storage.
MIN_SHARE: Final = 3 / 8
#: Number of jobs that a claim asks a queue of short runs for, if other such queues wait and the latest claim
#: of the queue returned fewer jobs than it asked for.
SMALL_STEP: Final = 8
#: After a claim that returned as many jobs as it asked for, the next claim of such a queue asks for this many
#: times as many: 8, 128, then MAX_PREFETCH jobs.
STEP_GROWTH: Final = 16
#: Seconds for which a process usually loses the CPU to others at most, and the largest growth of the expected
#: duration of a run by one run that is shorter.
PREEMPTION: Final = 0.03
MAX_GROWTH: Final = 4.0
#: Seconds that settlements wait for the settlements of prefetched runs. Requests with only a few settlements
#: would cost more.
SETTLEMENT_DELAY: Final = 0.005
#: Seconds after which a prefetched job is released, because the runs before it take longer than expected.
PREFETCH_TIMEOUT: Final = 0.5
#: Seconds after its latest job during which a queue counts as active, see `Listener`.
ACTIVE_SECONDS: Final = 5.0


class QueueTurn(NamedTuple):
    """The kind of turn for which a queue waits: the queues of one kind claim one after the other."""

    priority: int
    #: True for queues of short runs.
    is_short: bool


@define(eq=False)
class Readiness:
    """The time of the next claim for a queue, derived from the results of earlier claims, counts and waits.

    All times are by time.monotonic(), in seconds.
    """

    #: Called when the queue becomes ready.
    _on_ready: Callable[[], None]
    #: Seconds after the latest claim until the next claim that needs no wake-up.
    poll: float = FALLBACK_POLL
    _ready: bool = True
    #: True if the latest claim returned as many jobs as it asked for, or the latest count found due jobs.
    has_more: bool = False
    #: True while the due jobs of the queue need more capacity and it is too early for the next count. The
    #: listener skips the queue, because a wait would report the same jobs again at once.
    snoozed: bool = False
    #: The token that the storage returned with the latest claim or wait; the next wait ends after a later
    #: change of the queue. "" if no token is known.
    token: str = ""
    #: The time at which the next scheduled job falls due; None if no scheduled job is known.
    due_at: float | None = None
    #: The time of the next claim that needs no wake-up.
    poll_at: float = 0.0
    #: The end of the time in which the queue counts as active.
    active_until: float = 0.0
    #: The time before which no request is sent, because the storage raised an error.
    retry_at: float = 0.0
    #: The latest pause after an error, in seconds; 0 after a success.
    _backoff: float = 0.0
    #: The time before which the jobs are not counted again.
    _recount_at: float = 0.0
    _recount_pause: float = 0.0

    @property
    def ready(self) -> bool:
        """True if the queue may have a job to claim: after a wake-up, or at `due_at` or `poll_at`."""
        return self._ready

    @ready.setter
    def ready(self, value: bool) -> None:
        self._ready = value
        if value:
            self._on_ready()

    def update_after_claim(self, claim: ClaimResult, limit: int, *, conclusive: bool = True) -> None:
        """Update after a claim of up to `limit` jobs.

        A claim that is not `conclusive` may have missed jobs, so the queue stays ready after it.
        """
        now = time.monotonic()
        self.token = claim.token
        self.has_more = len(claim.jobs) >= limit
        self.ready = self.has_more or not conclusive
        self.due_at = None
        self.poll_at = now + self.poll
        if claim.next_due is not None:
            self.due_at = now + (claim.next_due - claim.now) / 1000
        if claim.jobs:
            self._recount_pause = self._recount_at = 0.0
            self.active_until = now + ACTIVE_SECONDS

    def update_after_count(self, *, due: bool) -> None:
        """Update after a count of the jobs; `due` is whether the count found due jobs."""
        now = time.monotonic()
        self.ready = self.has_more = due
        self.poll_at = now + self.poll
        # A count returns no token. With the token of the latest claim, each wait would end at once; without a
        # token, a wait ends when a job is due.
        self.token, self.due_at = "", None
        if due:
            self._recount_pause = min(max(self._recount_pause * 2, RECOUNT[0]), RECOUNT[1])
            self._recount_at = now + self._recount_pause

    def update_after_wait(self, token: str, since: str, now: float, poll_until: float) -> None:
        """Update after a wait without a wake-up, from the token `since` to the returned `token`.

        The queue becomes ready if it has a due job, or if its next poll is due at `poll_until` or before.
        """
        if self.token == since:
            self.token = token
        if self.poll_at <= poll_until or self.is_due(now):
            self.ready = True

    def wake(self) -> None:
        """Make the queue ready for a claim, because it may have a new job."""
        self.ready, self.snoozed = True, False

    def is_due(self, now: float) -> bool:
        """Return whether the next scheduled job that is known was due at `now` or before."""
        return self.due_at is not None and self.due_at <= now

    def seconds_until_recount(self, now: float) -> float:
        """Return the seconds until the jobs may be counted again; 0 if they may be counted now."""
        return max(0.0, self._recount_at - now)

    def back_off(self) -> float:
        """Pause requests after an error of the storage, and return the pause in seconds."""
        self._backoff = min(max(self._backoff * 2, BACKOFF[0]), BACKOFF[1])
        self.retry_at = time.monotonic() + self._backoff
        return self._backoff

    def reset_backoff(self) -> None:
        self._backoff = 0.0


@define(eq=False)
class Prefetch:
    """The runs of a queue that were claimed before there was capacity to start them."""

    #: The number of runs of the queue that fit into this process at the same time.
    _max_running: int
    #: The prefetched runs in the order of their claims.
    runs: deque[Invocation] = field(factory=deque)
    #: The expected duration of a run in seconds; None until the first run has ended.
    _run_seconds: float | None = None
    #: The number of jobs that a claim of several queues asks this queue for.
    step: int = SMALL_STEP

    def take_first(self, number: int) -> list[Invocation]:
        """Remove and return the first runs, `number` at most."""
        return [self.runs.popleft() for _ in range(min(number, len(self.runs)))]

    def update_step(self, claimed: int, *, has_more: bool) -> None:
        """Update `step` after a claim of this number of jobs: more for a queue that has more jobs."""
        self.step = min(MAX_PREFETCH, STEP_GROWTH * claimed) if has_more else SMALL_STEP

    def add_run_time(self, seconds: float) -> None:
        """Update the expected duration of a run: quickly if runs get slower, slowly if they get faster.

        One run may look long because another program had the CPU. So a run shorter than PREEMPTION raises the
        duration MAX_GROWTH times at most.
        """
        expected = self._run_seconds
        if expected is None:
            self._run_seconds = seconds
        elif seconds > expected:
            growth = MAX_GROWTH if seconds < PREEMPTION else math.inf
            self._run_seconds = min((expected + seconds) / 2, expected * growth)
        else:
            self._run_seconds = expected + (seconds - expected) / 16

    @property
    def most(self) -> int:
        """The largest number of prefetched jobs of the queue; 0 if runs are long or of unknown duration."""
        if not self._run_seconds:
            return 0
        return min(MAX_PREFETCH, int(self._max_running * PREFETCH_SECONDS / self._run_seconds))

    @property
    def batch(self) -> int:
        """Smallest number of jobs worth a request, or of settlements worth a second one."""
        return max(MIN_BATCH, int(self.most * MIN_SHARE))

    @property
    def is_short(self) -> bool:
        """True if the runs are so short that the queue can prefetch a full request."""
        return self.most >= MIN_BATCH

    def used_share(self, in_flight: int) -> float:
        """Return the used part of what the process may prefetch, from 0 to 1, with `in_flight` more jobs."""
        jobs = len(self.runs) + in_flight
        return min(1.0, jobs / (self.most or jobs)) if jobs else 0.0

    def jobs_to_prefetch(self, used: float) -> int:
        """Return the number of jobs to prefetch with the next claim, so that no round trip causes a pause.

        `used` is the part that all queues of the process have used, see `used_share`. The result is 0 until
        the duration of runs is known, and until enough prefetched runs have started to be worth a request.
        """
        more = round(self.most * (1.0 - used))
        return more if more >= min(self.most / 2, self.batch) else 0

    def take_stale(self, now: float) -> list[Invocation]:
        """Remove and return the runs that waited for PREFETCH_TIMEOUT.

        If there are such runs, the queue prefetches no more jobs until runs are short again.
        """
        stale = [run for run in self.runs if run.received_at + PREFETCH_TIMEOUT <= now]
        if stale:
            self._run_seconds = PREFETCH_TIMEOUT
            self.runs = deque(run for run in self.runs if run.received_at + PREFETCH_TIMEOUT > now)
        return stale


class QueueState:
    """The state of one queue in a worker process: its readiness, prefetched runs and requests."""

    def __init__(
        self,
        handler: Handler,
        size: int,
        units: int,
        poll: float = FALLBACK_POLL,
        *,
        on_change: Callable[[QueueState], None] = lambda _: None,
    ) -> None:
        self.handler = handler
        self.name = handler.queue
        #: Capacity units that one run takes.
        self.size = size
        #: Queues with a higher priority start jobs first.
        self.priority = handler.queue_priority
        #: Set by `Fairness`: the higher, the more recently the queue was served; 0 if it was never served.
        self.last_served = 0
        #: Set by `choose_queues`: True if the queue starts prefetched runs and no other jobs.
        self.only_starts = False
        #: True after a failed request for several queues, until a request for this queue alone succeeds.
        self.alone = False
        #: Makes the next step of the worker loop look at this queue. A partial is faster than a method.
        self.note_change: Callable[[], None] = partial(on_change, self)
        self.readiness = Readiness(self.note_change, poll)
        self.prefetch = Prefetch(units // size)
        self.round_trips = RoundTrips()

    def needs_step(self, now: float) -> bool:
        """Return whether each step of the worker loop must look at this queue.

        While a request is in flight, steps look at the queue after each settlement and after the reply. After
        an error, the timer of the pause makes a step look at it.
        """
        if self.prefetch.runs:
            return True
        return self.can_send(now) and bool(self.readiness.ready or self.round_trips.outbox)

    def turn(self, now: float) -> QueueTurn | None:
        """Return the turn for which the queue waits, or None.

        A queue waits for its turn if it may claim, and this process has none of its jobs.
        """
        if self.prefetch.runs or self.round_trips.outbox or not self.can_claim(now):
            return None
        return QueueTurn(self.priority, self.prefetch.is_short)

    @property
    def has_jobs(self) -> bool:
        """True if the queue is known to have jobs, so that capacity may be kept free for them."""
        return self.readiness.has_more or bool(self.prefetch.runs)

    @property
    def startable(self) -> int | None:
        """The largest number of jobs of the queue that can start now; None if it is unknown."""
        may_claim = self.readiness.ready and not self.round_trips.busy and not self.only_starts
        return None if may_claim else len(self.prefetch.runs)

    @property
    def needs_wakeup(self) -> bool:
        """True if the listener must wait for the queue: no job is known, and no request is in flight."""
        return not (self.readiness.ready or self.readiness.snoozed or self.round_trips.busy)

    def can_send(self, now: float) -> bool:
        """Return whether a request may be sent: no other is in flight, and no pause after an error."""
        return not self.round_trips.busy and self.readiness.retry_at <= now

    def can_claim(self, now: float) -> bool:
        """Return whether a claim may be sent and may return a job."""
        return self.readiness.ready and self.can_send(now)

    @property
    def prefetch_share(self) -> float:
        """The part of what the process may prefetch that this queue has used, with its claims in flight."""
        return self.prefetch.used_share(self.round_trips.prefetching)

    def can_send_second(self, now: float, prefetch: int) -> bool:
        """Return whether to send a second request, which prefetches jobs, while one is in flight.

        Both its settlements and its claim must be large. While a queue is drained, the storage and this
        process then need not wait for each other. The result is False where jobs come one by one, where runs
        are long, and for a storage in memory, which replies at once.
        """
        trips, readiness = self.round_trips, self.readiness
        if len(trips.in_flight) != 1 or trips.counting or readiness.retry_at > now:
            return False
        if not readiness.ready or not readiness.has_more or len(trips.outbox) < self.prefetch.batch:
            return False
        return prefetch >= self.prefetch.batch

    def delays_settlements(self, now: float, prefetch: int) -> bool:
        """Return whether the settlements in the outbox wait for those of prefetched runs, which end soon.

        They wait for SETTLEMENT_DELAY seconds at most, and not if the next claim prefetches jobs.
        """
        trips = self.round_trips
        if not trips.outbox or not self.prefetch.runs or prefetch:
            return False
        trips.delayed_until = trips.delayed_until or now + SETTLEMENT_DELAY
        return now < trips.delayed_until

    def add_settlement(self, invocation: Invocation, action: SettleAction) -> None:
        """Add a run to the outbox: the next request settles it with `action`."""
        invocation.action = action
        self.round_trips.outbox.append(invocation)
        self.note_change()

    def on_claim_failed(self) -> None:
        """Make the queue ready after a failed claim.

        Another claim in flight may have skipped jobs that the failed claim held, so its reply is not
        conclusive.
        """
        self.readiness.wake()
        for trip in self.round_trips.in_flight:
            trip.other_failed = True


#: Largest number of queues of one kind of turn that a step considers. A worker of thousands of queues, which
#: are all ready at its start, would otherwise look at each of them in each step.
MAX_TURNS: Final = 64


@define(eq=False)
class PendingQueues:
    """The queues that have changed since the last step, or have a job or a settlement to handle."""

    _changed: dict[QueueState, None] = field(factory=dict, init=False)
    #: By `QueueState.turn`, the queues that wait for their turn to claim, the longest wait first.
    _turns: dict[QueueTurn, dict[QueueState, None]] = field(factory=dict, init=False)

    def add(self, queue: QueueState) -> None:
        """Make the next step look at this queue."""
        self._changed[queue] = None

    def take(self, has_room: Callable[[Iterable[QueueState]], bool]) -> Sequence[QueueState]:
        """Return the queues for a step. The step must call `keep` with them at its end.

        `has_room` returns whether the queues that have changed leave room for claims of short runs.
        """
        taken = self._changed
        self._changed = {}
        if self._turns:
            room = has_room(taken)
            turns = [queues for turn, queues in self._turns.items() if room or not turn.is_short]
            taken.update(chain.from_iterable(islice(queues.items(), MAX_TURNS) for queues in turns))
        return list(taken)

    def keep(self, queues: Iterable[QueueState], now: float) -> None:
        """Add those of the queues that a later step must also look at."""
        for queue in queues:
            if (turn := queue.turn(now)) is not None:
                self._turns.setdefault(turn, {})[queue] = None
                continue
            self._remove_turn(queue)
            if queue.needs_step(now):
                self.add(queue)

    def _remove_turn(self, queue: QueueState) -> None:
        for turn, waiting in tuple(self._turns.items()):
            if waiting.pop(queue, self) is None and not waiting:
                del self._turns[turn]

    @property
    def any_ready(self) -> bool:
        """True if a queue is ready for a claim."""
        return bool(self._turns) or any(queue.readiness.ready for queue in self._changed)
