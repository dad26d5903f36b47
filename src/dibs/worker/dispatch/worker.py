"""The claiming loop of one process: claims and settlements go out together, runs go on meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from dibs.client.calls.current_job import CurrentJob
from dibs.client.calls.handler import Handler
from dibs.model import run_outcome
from dibs.model.requests import Cancelled, Release, SettleAction
from dibs.model.results import ClaimResult
from dibs.storage.protocol import Storage
from dibs.worker import messages
from dibs.worker.dispatch.blocking_claim import FEW, Parking
from dibs.worker.dispatch.capacity import UNITS, Capacity
from dibs.worker.dispatch.fairness import Serving
from dibs.worker.dispatch.in_flight import Hand
from dibs.worker.dispatch.listener import Listener
from dibs.worker.dispatch.oversized import Looks
from dibs.worker.dispatch.queue_state import SILENCE, STALE, TOGETHER, Lane
from dibs.worker.dispatch.round_trip import Brought, Flight, Parked, travel
from dibs.worker.execution.executor import Runner, on_thread
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.outcome import Ends, counter_name, fallback_settlement
from dibs.worker.execution.periodic import with_next_tick

logger = logging.getLogger("dibs.worker")


class Worker:
    """Claims and settles by itself, under the lease it is told; it knows its supervisor only by messages."""

    def __init__(
        self,
        storage: Storage,
        handlers: Iterable[Handler],
        runner: Runner,
        tell: Callable[[messages.FromWorker], None],
        *,
        resources: Any = None,
        poll: float = 1.0,
        units: int = UNITS,
    ) -> None:
        self._storage = storage
        self._tell = tell
        self._resources = resources
        self._loop = asyncio.get_running_loop()
        # Waits that are pushed to look for themselves now and then; what others miss is found by claims.
        patience = SILENCE if storage.capabilities.push_wakeups else poll
        self._lanes = {handler.queue: Lane(handler, units, patience) for handler in handlers}
        self._capacity = Capacity(units)
        self._looks = Looks(storage, self._pump_soon, self._rest)
        self._serving = Serving(self._lanes.values(), self._capacity, self._looks.want)
        self._parking = Parking(storage, self._pump_soon)
        self._hand = Hand(runner.started)
        self._runner = runner
        runner.ended = self._ended
        runner.late = self._late
        runner.overran = self._overran
        self._lease: str | None = None
        self._told_lease = ""
        self._draining = False
        self._stopping = False
        self._told_drained = False
        self._pumping = False
        self._served = 0
        self._flights: set[asyncio.Task[None]] = set()
        self._ends = Ends(self._settle)
        self._listener = Listener(storage, poll, self._pump)
        self.over: asyncio.Future[None] = self._loop.create_future()

    # -- what the supervisor says --------------------------------------------------------------------

    def receive(self, message: messages.ToWorker) -> None:
        match message:
            case messages.UseLease(lease):
                self._lease = lease
                for lane in self._lanes.values():
                    lane.wake()
            case messages.CancelRuns(runs):
                for run in self._hand.with_keys(runs):
                    self._cancel(run)
            case messages.DrainWorker():
                self._drain()
            case messages.StopWorker():
                self._stopping = True
                self._drain()
                for run in self._hand:
                    self._runner.interrupt(run, "release")
        self._pump_soon()

    def _cancel(self, run: Invocation) -> None:
        lane = self._lanes[run.handler.queue]
        if run in lane.ahead:
            lane.ahead.remove(run)
            self._hand_back(lane, run, Cancelled())
        else:
            self._runner.interrupt(run, "cancel")

    def _drain(self) -> None:
        self._draining = True
        for lane in self._lanes.values():
            while lane.ahead:
                self._hand_back(lane, lane.ahead.pop(), Release())

    def abandon(self) -> None:
        """Interrupt and forget everything, without a word to the storage: it is not ours any more."""
        self._draining = True
        self._listener.close()
        for task in self._flights:
            task.cancel()
        for run in self._hand:
            self._runner.interrupt(run, "release")
            run.over = True
        for lane in self._lanes.values():
            lane.ahead.clear()
        self._hand.clear()
        if not self.over.done():
            self.over.set_result(None)

    # -- serving -------------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        """Look once at the end of this turn of the loop, whatever happened in it."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self.over.done():
            return
        now = time.monotonic()
        claiming = self._lease is not None and not self._draining and self._hand.room >= self._capacity.units
        grants, more = self._serving.share(now, claiming=claiming)
        if wanted := self._looks.taken():
            self._fly(self._looks.look(wanted))
        for lane in self._lanes.values():
            room = grants.get(lane, 0)
            begun = lane.next(room)
            self._serve(lane, len(begun))
            # Sent before they run, or it would wait for them.
            self._ask(lane, room - len(begun), now, claiming=claiming, more=more)
            for run in begun:
                self._start(lane, run)
        self._confirm_lease()
        self._park(now, claiming=claiming)
        quiet = [lane for lane in self._lanes.values() if lane.quiet]
        if not self._draining and self._lease is not None:
            self._listener.listen(quiet)
        else:
            self._listener.close()
        if self._draining and not self._flights and self._has_let_go():
            self._drained()

    def _has_let_go(self) -> bool:
        """Tell whether nothing is in hand, or only what cannot be interrupted and nobody waits for."""
        return all(
            not run.over and (run.overran or (self._stopping and on_thread(run.handler)))
            for run in self._hand
        )

    def _drained(self) -> None:
        if not self._told_drained:
            self._told_drained = True
            self._listener.close()
            self._tell(messages.WorkerDrained())
        if self._stopping or not self._hand:
            # Otherwise it waits to be killed: nothing may be taken down under a handler that still runs.
            self.over.set_result(None)

    def _ask(self, lane: Lane, room: int, now: float, *, claiming: bool, more: bool) -> None:
        """Send what there is to tell a queue, and claim for `room` and ahead, if it is time to."""
        waiting = lane.together_until
        if not lane.at_rest(now):
            if claiming and more and lane.worth_another(now):
                self._launch(lane, 0, lane.wants_ahead())
        elif not room and lane.waits_for_more(now):
            if not waiting:
                self._loop.call_later(TOGETHER, self._pump_soon)
        else:
            self._launch(lane, room if claiming else 0, lane.wants_ahead() if more and lane.ready else 0)

    def _serve(self, lane: Lane, number: int) -> None:
        if not number:
            return
        self._served += 1
        lane.served = self._served
        self._capacity.take(number * lane.size)

    def _park(self, now: float, *, claiming: bool) -> None:
        """Leave a claim with the storage while nothing else is to do, and call it back when something is."""
        lanes, lease = self._lanes.values(), self._lease if claiming else None
        if self._parking.is_out:
            if self._parking.is_in_the_way(lanes, lease, now):
                self._fly(self._parking.call_back())
        elif lease is None or lease != self._told_lease or self._flights or self._hand:
            return
        elif lane := self._parking.best(lanes, now):
            self._launch(lane, min(FEW, self._capacity.free // lane.size), 0, self._parking.place())

    def _launch(self, lane: Lane, room: int, ahead: int, parked: Parked | None = None) -> None:
        limit = min(room + ahead, self._hand.room)
        if not limit and not lane.outbox:
            return
        told, lane.outbox, lane.together_until = lane.outbox, [], 0.0
        flight = Flight(told, self._lease if limit else None, room, limit, parked)
        self._hand.expected += limit
        if flight.lease is not None:
            self._serve(lane, room)
        lane.flights.append(flight)
        if parked is not None:
            self._parking.took_off(lane, flight, time.monotonic())
        self._fly(self._trip(lane, flight))

    def _fly(self, trip: Coroutine[Any, Any, None]) -> None:
        self._flights.add(self._loop.create_task(self._land(trip)))

    async def _land(self, trip: Coroutine[Any, Any, None]) -> None:
        try:
            await trip
        finally:
            self._flights.difference_update((asyncio.current_task(),))
            self._pump_soon()

    # -- one round trip ------------------------------------------------------------------------------

    async def _trip(self, lane: Lane, flight: Flight) -> None:
        """Tell what ended, and with a lease claim; what was launched before is taken in before."""
        flight.brought = await travel(self._storage, lane.queue, flight)
        for landed, brought in lane.landed():
            self._unload(lane, landed, brought)
        if lane.waits_in_line(flight):
            self._loop.call_later(STALE, self._overtake, lane, flight)

    def _overtake(self, lane: Lane, flight: Flight) -> None:
        """Take in what waited too long for what was launched before: that may stand behind a lock."""
        if flight.brought is not None and lane.waits_in_line(flight) and not self.over.done():
            lane.flights.pop()
            self._unload(lane, flight, flight.brought)
            self._pump_soon()

    def _unload(self, lane: Lane, flight: Flight, brought: Brought) -> None:
        begun = 0
        try:
            if brought.error is not None:
                self._failed(lane, brought, flight.lease)
            else:
                lane.went_well()
            self._book(lane, brought)
            if brought.claim is not None and flight.lease is not None:
                begun = self._take(lane, flight.lease, flight, brought.claim)
        finally:
            self._hand.expected -= flight.limit
            if flight.lease is not None:
                self._capacity.give((flight.room - begun) * lane.size)

    def _failed(self, lane: Lane, brought: Brought, lease: str | None) -> None:
        """Keep what is to be told again: to settle by fence twice is safe."""
        lane.outbox[:0] = brought.untold
        logger.warning("%s: the storage could not be asked, trying again: %s", lane.queue, brought.error)
        self._rest(lane)
        if lease is not None:
            lane.went_wrong()
            if brought.lost_track:
                self._lose_lease(lease, messages.ClaimReplyLost(lease))

    def _rest(self, lane: Lane) -> None:
        # A little longer than the rest: a timer may ring a tick early, and nothing else would wake it.
        self._loop.call_later(lane.rest() + 0.01, self._pump_soon)

    def _book(self, lane: Lane, brought: Brought) -> None:
        ends: defaultdict[str, list[int]] = defaultdict(list)
        for run, answer in zip(brought.told, brought.answers, strict=True):
            if answer.status == "refused":
                again = fallback_settlement(run, answer.reason)
                if again is not None:
                    self._tell_of(lane, run, again)
                    continue
                why = answer.reason
                logger.error("%s/%s: the storage refused its end: %s", *run.key[:2], why, extra=run.about)
            ends[counter_name(run.end, answer)].append(run.place)
            self._hand.let_go(run)
        if ends:
            self._tell(messages.RunsSettled(lane.queue, ends))

    def _tell_of(self, lane: Lane, run: Invocation, how: SettleAction) -> None:
        run.end = how
        lane.outbox.append(run)

    def _take(self, lane: Lane, lease: str, flight: Flight, claim: ClaimResult) -> int:
        """Take in what was claimed, and return how many jobs have begun."""
        if claim.lost:
            self._lose_lease(lease, messages.LeaseRejected(lease))
            return 0
        lane.saw(claim, flight.limit, sure=not flight.beside_a_failure)
        if not claim.jobs:
            return 0
        runs = self._hand.take(lane.handler, claim.jobs)
        # Said before any of them is started, so that a crash leaves none unknown.
        self._tell(messages.RunsClaimed(lane.queue, lease, tuple(map(_held, runs))))
        for run in runs[: flight.room]:
            self._start(lane, run)
        if runs[flight.room :]:
            self._put_by(lane, runs[flight.room :])
        return min(flight.room, len(runs))

    def _put_by(self, lane: Lane, runs: Sequence[Invocation]) -> None:
        lane.ahead.extend(runs)
        if self._draining:
            self._drain()
        else:
            self._loop.call_later(STALE, self._give_back, lane)

    def _give_back(self, lane: Lane) -> None:
        """Release what was claimed ahead and could not begin in time: others may have room for it."""
        for run in lane.stale(time.monotonic()):
            self._hand_back(lane, run, Release())

    def _hand_back(self, lane: Lane, run: Invocation, how: SettleAction) -> None:
        """Settle a run that has not begun and took no room."""
        run.over = True
        self._tell_of(lane, run, with_next_tick(run, how))
        self._pump_soon()

    def _start(self, lane: Lane, run: Invocation) -> None:
        if self._draining:
            run.over = True
            self._settle(run, Release())
            return
        job = run.job
        if job.stalls:
            end = run_outcome.fail_if_stalled_too_often(job, run.limits, handled=lane.handler.handles_failure)
            if end is not None:
                run.over = True
                self._ends.decided(run, end)
                return
        deadline = run.time_out_at()
        run.current = CurrentJob(self._storage, lane.queue, job, self._loop, deadline, self._resources)
        self._runner.start(run)

    # -- leases --------------------------------------------------------------------------------------

    def _lose_lease(self, lease: str, message: messages.ClaimReplyLost | messages.LeaseRejected) -> None:
        if self._lease == lease:
            self._lease = None
            self._tell(message)

    def _confirm_lease(self) -> None:
        lease = self._lease
        if lease is None or lease == self._told_lease:
            return
        flights = (flight for lane in self._lanes.values() for flight in lane.flights)
        if all(flight.lease in (None, lease) for flight in flights):
            self._told_lease = lease
            self._tell(messages.LeaseAdopted(lease))

    # -- ends ----------------------------------------------------------------------------------------

    def _ended(self, run: Invocation, verdict: run_outcome.Verdict) -> None:
        if (began := self._runner.started[run.place]) and run.handler.executor != "process":
            self._lanes[run.handler.queue].took(time.monotonic() - began)
        self._ends.ended(run, verdict)

    def _settle(self, run: Invocation, how: SettleAction) -> None:
        lane = self._lanes[run.handler.queue]
        self._capacity.give(lane.size)
        self._tell_of(lane, run, how)
        self._pump_soon()

    def _late(self, run: Invocation, seconds: float) -> None:
        self._tell(messages.RunTimedOut(run.place, run.fence, seconds))

    def _overran(self, run: Invocation) -> None:
        self._tell(messages.RunOverran(*run.key, run.place))
        self._pump_soon()


def _held(run: Invocation) -> messages.ClaimedRun:
    job = run.job
    claimed_at, own = run.claimed_at, job.data.overrides
    return messages.ClaimedRun(
        run.place, job.id, run.fence, claimed_at, run.limits.timeout, job.stalls, job.timeouts, own
    )
