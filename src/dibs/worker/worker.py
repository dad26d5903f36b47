"""The claiming loop of one process: claims and settlements go out together, runs go on meanwhile."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from dibs.client.current import CurrentJob
from dibs.client.handler import Handler
from dibs.model import decide
from dibs.model.answers import Claim, Settled
from dibs.model.job import Error, Job
from dibs.model.requests import End, How, Release
from dibs.model.retry import exhausted
from dibs.storage.protocol import Storage
from dibs.worker import hooks
from dibs.worker import messages as say
from dibs.worker.capacity import UNITS, Capacity, share_out
from dibs.worker.execution import Run
from dibs.worker.lanes import Lane, Told, word_of
from dibs.worker.listening import Listener
from dibs.worker.runner import Runner, on_thread
from dibs.worker.schedules import carried_on, tried_again
from dibs.worker.trips import Brought, travel

logger = logging.getLogger("dibs.worker")

#: How many runs a process may have in hand, those that ended and are not settled yet among them.
PLACES: Final = 8 * UNITS


class Worker:
    """Claims and settles by itself, under the lease it is told; it knows its supervisor only by messages."""

    def __init__(
        self,
        storage: Storage,
        handlers: Iterable[Handler],
        runner: Runner,
        tell: Callable[[say.FromWorker], None],
        *,
        resources: Any = None,
        poll: float = 1.0,
        units: int = UNITS,
    ) -> None:
        self._storage = storage
        self._tell = tell
        self._resources = resources
        self._loop = asyncio.get_running_loop()
        self._lanes = {handler.queue: Lane(handler, units) for handler in handlers}
        self._capacity = Capacity(units)
        self._places = list(range(PLACES))
        self._runs: dict[tuple[str, str, int], Run] = {}
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
        self._hooks: set[asyncio.Task[None]] = set()
        self._listener = Listener(storage, poll, self._pump_soon)
        self.over: asyncio.Future[None] = self._loop.create_future()

    # -- what the supervisor says --------------------------------------------------------------------

    def receive(self, message: say.ToWorker) -> None:
        match message:
            case say.Lease(lease):
                self._lease = lease
                for lane in self._lanes.values():
                    lane.ready = True
            case say.Cancel(runs):
                for key in runs:
                    if run := self._runs.get(key):
                        self._runner.interrupt(run, "cancel")
            case say.Drain():
                self._draining = True
            case say.Stop():
                self._draining = self._stopping = True
                for run in list(self._runs.values()):
                    self._runner.interrupt(run, "release")
        self._pump_soon()

    def abandon(self) -> None:
        """Interrupt and forget everything, without a word to the storage: it is not ours any more."""
        self._draining = True
        self._listener.close()
        for task in self._flights:
            task.cancel()
        for run in list(self._runs.values()):
            self._runner.interrupt(run, "release")
            run.over = True
        self._runs.clear()
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
        at_rest = [lane for lane in self._lanes.values() if lane.flying is None and lane.rests_until <= now]
        grants = self._grants(at_rest, now)
        for lane in at_rest:
            limit = grants.get(lane.queue, 0)
            if limit or lane.outbox:
                self._launch(lane, limit)
        self._confirm_lease()
        quiet = [lane for lane in self._lanes.values() if not lane.ready and lane.flying is None]
        self._listener.listen([] if self._draining or self._lease is None else quiet)
        if self._draining and not self._flights and self._has_let_go():
            self._drained()

    def _has_let_go(self) -> bool:
        """Tell whether nothing is in hand, or only what cannot be interrupted and nobody waits for."""
        return all(
            not run.over and (run.overran or (self._stopping and on_thread(run.handler)))
            for run in self._runs.values()
        )

    def _drained(self) -> None:
        if not self._told_drained:
            self._told_drained = True
            self._listener.close()
            self._tell(say.Drained())
        if self._stopping or not self._runs:
            # Otherwise it waits to be killed: nothing may be taken down under a handler that still runs.
            self.over.set_result(None)

    def _grants(self, lanes: list[Lane], now: float) -> dict[str, int]:
        """Return how many jobs may be claimed from each queue; room that is needed by one is kept for it."""
        if self._lease is None or self._draining or len(self._places) < self._capacity.units:
            return {}
        free, wanting = self._capacity.free, [lane for lane in lanes if lane.ready]
        granted, stuck = share_out(wanting, free)
        while stuck is not None and not stuck.sure and free > 0:
            # Room is made only for jobs that are there, so ask first, and serve the others meanwhile.
            self._look(stuck, now)
            wanting = [lane for lane in wanting if lane is not stuck]
            granted, stuck = share_out(wanting, free)
        grants = {lane.queue: limit for lane, limit in granted}
        left = 0 if stuck is not None else free - sum(lane.size * limit for lane, limit in granted)
        for lane in lanes:
            # A claim beside a settlement costs no round trip, so it is worth a try where nothing is known.
            if lane.outbox and not lane.ready and lane.size <= left:
                grants[lane.queue] = left // lane.size
                left -= lane.size * grants[lane.queue]
        return grants

    def _look(self, lane: Lane, now: float) -> None:
        lane.ready = False
        if lane.may_look(now):
            self._fly(lane, "", self._peek(lane))

    async def _peek(self, lane: Lane) -> None:
        try:
            counts = (await self._storage.counts([lane.queue]))[lane.queue]
        except Exception as error:  # noqa: BLE001 - a fault in a storage, too: the next look may go well
            logger.warning("%s: the storage could not be asked: %s", lane.queue, error)
            self._rest(lane)
        else:
            lane.make_room(due=counts.waiting > counts.scheduled)

    def _launch(self, lane: Lane, limit: int) -> None:
        if lane.flying is not None:
            return
        told, lane.outbox = lane.outbox, []
        lease = self._lease if limit else None
        if lease is not None:
            self._served += 1
            lane.served = self._served
            self._capacity.take(limit * lane.size)
        self._fly(lane, lease or "", self._trip(lane, told, lease, limit))

    def _fly(self, lane: Lane, lease: str, trip: Coroutine[Any, Any, None]) -> None:
        lane.flying = lease
        task = self._loop.create_task(self._land(lane, trip))
        self._flights.add(task)
        task.add_done_callback(self._flights.discard)

    async def _land(self, lane: Lane, trip: Coroutine[Any, Any, None]) -> None:
        try:
            await trip
        finally:
            lane.flying = None
            # Not before this task is gone from the flights: a drained worker has none.
            self._loop.call_soon(self._pump_soon)

    # -- one round trip ------------------------------------------------------------------------------

    async def _trip(self, lane: Lane, told: list[Told], lease: str | None, limit: int) -> None:
        taken = 0
        try:
            brought = await travel(self._storage, lane.queue, told, lease, limit)
            if brought.error is not None:
                self._failed(lane, brought, lease)
            else:
                lane.went_well()
            self._book(lane, brought.settled)
            if brought.claim is not None and lease is not None:
                taken = len(brought.claim.jobs)
                self._take(lane, lease, brought.claim, limit)
        finally:
            if lease is not None:
                self._capacity.give((limit - taken) * lane.size)

    def _failed(self, lane: Lane, brought: Brought, lease: str | None) -> None:
        """Keep what is to be told again: to settle by fence twice is safe."""
        lane.outbox[:0] = brought.untold
        logger.warning("%s: the storage could not be asked, trying again: %s", lane.queue, brought.error)
        self._rest(lane)
        if brought.lost_track and lease is not None:
            self._lose_lease(lease, say.LostTrack(lease))

    def _rest(self, lane: Lane) -> None:
        # A little longer than the rest: a timer may ring a tick early, and nothing else would wake it.
        self._loop.call_later(lane.rest() + 0.01, self._pump_soon)

    def _book(self, lane: Lane, settled: Sequence[tuple[Told, Settled]]) -> None:
        ended: list[tuple[int, str]] = []
        for (run, how), answer in settled:
            if answer.status == "refused":
                again = tried_again(run, how, answer.reason)
                if again is not None:
                    lane.outbox.append((run, again))
                    continue
                why = answer.reason
                logger.error("%s/%s: the storage refused its end: %s", *run.key[:2], why, extra=run.about)
            ended.append((run.place, word_of(how, answer)))
            self._forget(run)
        if ended:
            self._tell(say.Ended(lane.queue, tuple(ended)))

    def _forget(self, run: Run) -> None:
        if self._runs.pop(run.key, None) is not None:
            self._runner.started[run.place] = 0
            self._places.append(run.place)

    def _take(self, lane: Lane, lease: str, claim: Claim, limit: int) -> None:
        if claim.lost:
            self._lose_lease(lease, say.LostLease(lease))
            return
        lane.saw(claim, limit)
        if not claim.jobs:
            return
        runs = [Run(lane.handler, job, self._places.pop()) for job in claim.jobs]
        # Said before any of them is started, so that a crash leaves none unknown.
        self._tell(say.Claimed(lane.queue, lease, tuple(map(_held, runs))))
        for run in runs:
            self._runs[run.key] = run
            self._start(lane, run)

    def _start(self, lane: Lane, run: Run) -> None:
        if self._draining:
            run.over = True
            self._settle(run, Release())
            return
        end = decide.refused_at_claim(run.job, run.limits, handled=lane.handler.handles_failure)
        if end is not None:
            run.over = True
            self._decided(run, end)
            return
        deadline = run.time_out_at()
        run.current = CurrentJob(self._storage, lane.queue, run.job, self._loop, deadline, self._resources)
        self._runner.start(run)

    # -- leases --------------------------------------------------------------------------------------

    def _lose_lease(self, lease: str, message: say.LostTrack | say.LostLease) -> None:
        if self._lease == lease:
            self._lease = None
            self._tell(message)

    def _confirm_lease(self) -> None:
        lease = self._lease
        if lease is None or lease == self._told_lease:
            return
        if all(lane.flying in (None, "", lease) for lane in self._lanes.values()):
            self._told_lease = lease
            self._tell(say.Leased(lease))

    # -- ends ----------------------------------------------------------------------------------------

    def _ended(self, run: Run, verdict: decide.Verdict) -> None:
        how = decide.settlement(
            run.job,
            run.limits,
            verdict,
            stop=run.stop,
            handled=run.handler.handles_failure,
            luck=random.random(),  # noqa: S311 - jitter keeps no secrets
        )
        _log(run, verdict, how)
        self._decided(run, how)

    def _decided(self, run: Run, how: How) -> None:
        how = carried_on(run, how)
        if run.handler.after is None or not isinstance(how, End):
            self._settle(run, how)
            return
        hook = self._loop.create_task(self._settle_hooked(run, how))
        self._hooks.add(hook)
        hook.add_done_callback(self._hooks.discard)

    async def _settle_hooked(self, run: Run, how: End) -> None:
        self._settle(run, await hooks.after(run, how))

    def _settle(self, run: Run, how: How) -> None:
        lane = self._lanes[run.handler.queue]
        self._capacity.give(lane.size)
        lane.outbox.append((run, how))
        self._pump_soon()

    def _late(self, run: Run, seconds: float) -> None:
        self._tell(say.Late(run.place, run.fence, seconds))

    def _overran(self, run: Run) -> None:
        self._tell(say.Overran(*run.key, run.place))
        self._pump_soon()


def _log(run: Run, verdict: decide.Verdict, how: How) -> None:
    level = logging.INFO if isinstance(verdict, decide.Raised) else logging.DEBUG
    if logger.isEnabledFor(level):
        said = f": {_summary(verdict.error)}" if isinstance(verdict, decide.Raised) else ""
        logger.log(level, "%s/%s: %s%s", *run.key[:2], type(how).__name__, said, extra=run.about)


def _summary(error: Error) -> str:
    return f"{error.type}: {error.message}" if error.message else error.type


def _held(run: Run) -> say.Held:
    job, limits, luck = run.job, run.limits, random.random()  # noqa: S311 - jitter keeps no secrets
    pause = decide.pause(job, limits, "stall", luck)
    once_too_often = exhausted(job.timeouts, limits.max_timeouts)
    pause_late = None if once_too_often else decide.pause(job, limits, "timeout", luck)
    return say.Held(run.place, job.id, run.fence, _claimed_at(job), pause, limits.timeout, pause_late)


def _claimed_at(job: Job) -> int:
    assert job.run is not None, "a claim hands out active jobs"  # noqa: S101
    return job.run.claimed_at
