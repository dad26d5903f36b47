"""The worker loop of one process: claim jobs, start their runs, and settle them.

Each step of the loop sends at most one request for each queue, which carries the settlements since the last
one and the next claim. Runs go on while requests are in flight.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, MutableSequence, Sequence
from typing import Any, Final

from dibs.client.calls.current_job import CurrentJob
from dibs.client.calls.handler import Handler
from dibs.model.requests import Cancelled, Release, SettleAction
from dibs.model.results import ClaimResult
from dibs.storage.protocol import Storage
from dibs.worker import messages
from dibs.worker.dispatch.blocking_claim import MAX_JOBS, IdleClaim
from dibs.worker.dispatch.fairness import UNITS, Capacity, Fairness, OversizedQueues, Shares, run_size
from dibs.worker.dispatch.in_flight import InFlightRuns, claimed_run
from dibs.worker.dispatch.listener import Listener
from dibs.worker.dispatch.queue_state import FALLBACK_POLL, PREFETCH_TIMEOUT, SETTLEMENT_DELAY, QueueState
from dibs.worker.dispatch.round_trip import ClaimWait, Reply, RoundTrip, send
from dibs.worker.execution.executor import Executor, ProcessExecutor, runs_on_thread
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.outcome import RunOutcomes, counter_name, fallback_action
from dibs.worker.execution.periodic import with_next_tick

logger = logging.getLogger("dibs.worker")

#: Seconds that a timer is set after the end of a pause: a timer may fire early, and no other event follows.
BACKOFF_MARGIN: Final = 0.01


class Worker:
    """The part of a worker process that claims and settles, under the lease that its supervisor sends.

    The worker and its supervisor share messages only. `notify` is called with each message to the supervisor.
    """

    def __init__(
        self,
        storage: Storage,
        handlers: Iterable[Handler],
        started: MutableSequence[float],
        process_executor: ProcessExecutor,
        notify: Callable[[messages.FromWorker], None],
        *,
        killable: bool,
        resources: Any = None,
        poll: float = 1.0,
        units: int = UNITS,
    ) -> None:
        self._storage = storage
        self._notify = notify
        self._resources = resources
        self._loop = asyncio.get_running_loop()
        # A storage that pushes wake-ups checks for lost ones itself; for the others the claims are the poll.
        poll_queues = FALLBACK_POLL if storage.capabilities.push_wakeups else poll
        self._queues = {
            handler.queue: QueueState(handler, run_size(handler.size, units), units, poll_queues)
            for handler in handlers
        }
        self._capacity = Capacity(units)
        self._oversized = OversizedQueues(storage, self._step_soon, self._back_off)
        self._fairness = Fairness(self._queues.values(), self._capacity, self._oversized)
        self._idle_claim = IdleClaim(storage, self._step_soon)
        self._listener = Listener(storage, poll, self._step)
        self._in_flight = InFlightRuns(started)
        self._outcomes = RunOutcomes(self._settle)
        self._executor = Executor(
            started,
            process_executor,
            ended=self._outcomes.decide,
            timed_out=self._timed_out,
            overran=self._overran,
            killable=killable,
        )
        self._lease: str | None = None
        #: The lease that the supervisor knows as adopted.
        self._adopted_lease = ""
        self._draining = False
        self._stopping = False
        self._drained_sent = False
        self._step_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        #: Done when the worker has ended.
        self.over: asyncio.Future[None] = self._loop.create_future()

    def close(self) -> None:
        """End the threads of the handlers."""
        self._executor.close()

    # -- messages of the supervisor ------------------------------------------------------------------

    def receive(self, message: messages.ToWorker) -> None:
        match message:
            case messages.UseLease(lease):
                self._lease = lease
                for queue in self._queues.values():
                    queue.readiness.wake()
            case messages.CancelRuns(runs):
                for invocation in self._in_flight.find(runs):
                    self._cancel(invocation)
            case messages.DrainWorker():
                self._drain()
            case messages.StopWorker():
                self._stopping = True
                self._drain()
                for invocation in self._in_flight:
                    self._executor.interrupt(invocation, "release")
        self._step_soon()

    def _cancel(self, invocation: Invocation) -> None:
        queue = self._queues[invocation.handler.queue]
        if invocation in queue.prefetch.runs:
            queue.prefetch.runs.remove(invocation)
            self._return_prefetched(queue, invocation, Cancelled())
        else:
            self._executor.interrupt(invocation, "cancel")

    def _drain(self) -> None:
        self._draining = True
        for queue in self._queues.values():
            while queue.prefetch.runs:
                self._return_prefetched(queue, queue.prefetch.runs.pop(), Release())

    def abandon(self) -> None:
        """Interrupt and forget all runs without a request: the storage belongs to another worker by now."""
        self._draining = True
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        for invocation in self._in_flight:
            self._executor.interrupt(invocation, "release")
            invocation.finished = True
        for queue in self._queues.values():
            queue.prefetch.runs.clear()
        self._in_flight.clear()
        if not self.over.done():
            self.over.set_result(None)

    # -- the worker loop -----------------------------------------------------------------------------

    def _step_soon(self) -> None:
        """Schedule one step at the end of this iteration of the event loop, however often this is called."""
        if not self._step_scheduled:
            self._step_scheduled = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        """Take one step of the worker loop."""
        self._step_scheduled = False
        if self.over.done():
            return
        now = time.monotonic()
        shares = self._fairness.share(now, claiming=self._may_claim())
        self._count_oversized()
        for queue in self._queues.values():
            self._serve(queue, shares, now)
        self._confirm_lease()
        self._update_idle_claim(now, claiming=shares.claiming)
        self._update_listener()
        self._finish_drain()

    def _may_claim(self) -> bool:
        return self._lease is not None and not self._draining and self._in_flight.free >= self._capacity.units

    def _count_oversized(self) -> None:
        if queues := self._oversized.take():
            self._spawn(self._oversized.count(queues))

    def _serve(self, queue: QueueState, shares: Shares, now: float) -> None:
        """Start the prefetched runs of a queue, and send its next request, within its share."""
        share = shares.grants.get(queue, 0)
        prefetched = queue.prefetch.take(share)
        self._fairness.serve(queue, len(prefetched))
        # Sent before the runs start: otherwise the request waits for them.
        self._send_due(queue, share - len(prefetched), shares, now)
        for invocation in prefetched:
            self._start(queue, invocation)

    def _send_due(self, queue: QueueState, free: int, shares: Shares, now: float) -> None:
        """Send the next request of a queue if it is time to, with a claim of `free` jobs and a prefetch."""
        was_delayed = queue.round_trips.delayed_until
        if not queue.can_send(now):
            if shares.prefetching and queue.can_send_second(now):
                self._send(queue, 0, queue.wanted_prefetch())
        elif not free and queue.delays_settlements(now):
            if not was_delayed:
                self._loop.call_later(SETTLEMENT_DELAY, self._step_soon)
        else:
            prefetch = queue.wanted_prefetch() if shares.prefetching and queue.readiness.ready else 0
            self._send(queue, free if shares.claiming else 0, prefetch)

    def _confirm_lease(self) -> None:
        """Notify the supervisor of a new lease as soon as no claim under an older one is in flight."""
        lease = self._lease
        if lease is None or lease == self._adopted_lease:
            return
        trips = (trip for queue in self._queues.values() for trip in queue.round_trips.in_flight)
        if all(trip.lease in (None, lease) for trip in trips):
            self._adopted_lease = lease
            self._notify(messages.LeaseAdopted(lease))

    def _update_idle_claim(self, now: float, *, claiming: bool) -> None:
        """Send a blocking claim if this process is idle, and end the wait of one if another job may run."""
        queues, lease = self._queues.values(), self._lease if claiming else None
        if self._idle_claim.is_waiting:
            if self._idle_claim.must_end(queues, lease, now):
                self._spawn(self._idle_claim.end_early())
        elif lease is None or lease != self._adopted_lease or self._tasks or self._in_flight:
            return
        elif queue := self._idle_claim.choose_queue(queues, now):
            self._send(
                queue, min(MAX_JOBS, self._capacity.free // queue.size), 0, self._idle_claim.next_wait()
            )

    def _update_listener(self) -> None:
        if self._draining or self._lease is None:
            self._listener.close()
        else:
            self._listener.listen([queue for queue in self._queues.values() if queue.needs_wakeup])

    def _finish_drain(self) -> None:
        """End the worker, or notify the supervisor, once a drain is complete."""
        if not self._draining or self._tasks or not self._only_overran():
            return
        if not self._drained_sent:
            self._drained_sent = True
            self._listener.close()
            self._notify(messages.WorkerDrained())
        if self._stopping or not self._in_flight:
            # Otherwise the supervisor kills this process: handlers still run, and need their resources.
            self.over.set_result(None)

    def _only_overran(self) -> bool:
        """Return whether no run is left, or only such as cannot be interrupted and are not waited for."""
        return all(
            not run.finished and (run.overran or (self._stopping and runs_on_thread(run.handler)))
            for run in self._in_flight
        )

    # -- requests ------------------------------------------------------------------------------------

    def _send(self, queue: QueueState, free: int, prefetch: int, wait: ClaimWait | None = None) -> None:
        """Send the outbox of a queue, and a claim of `free` jobs that start at once and `prefetch` jobs."""
        limit = min(free + prefetch, self._in_flight.free)
        trips = queue.round_trips
        if not limit and not trips.outbox:
            return
        settling, trips.outbox, trips.delayed_until = trips.outbox, [], 0.0
        trip = RoundTrip(settling, self._lease if limit else None, free, limit, wait)
        self._in_flight.expected += limit
        if trip.lease is not None:
            self._fairness.serve(queue, free)
        trips.in_flight.append(trip)
        if wait is not None:
            self._idle_claim.sent(queue, trip, time.monotonic())
        self._spawn(self._round_trip(queue, trip))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(self._loop.create_task(self._then_step(work)))

    async def _then_step(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._tasks.difference_update((asyncio.current_task(),))
            self._step_soon()

    async def _round_trip(self, queue: QueueState, trip: RoundTrip) -> None:
        """Send a request, and apply all replies whose turn has come."""
        trip.reply = await send(self._storage, queue.name, trip)
        for arrived, reply in queue.round_trips.replies():
            self._apply(queue, arrived, reply)
        if queue.round_trips.is_second(trip):
            self._loop.call_later(PREFETCH_TIMEOUT, self._apply_second, queue, trip)

    def _apply_second(self, queue: QueueState, trip: RoundTrip) -> None:
        """Apply a reply that waited long for the one before: that request may be held up by a lock."""
        if trip.reply is not None and queue.round_trips.is_second(trip) and not self.over.done():
            queue.round_trips.in_flight.pop()
            self._apply(queue, trip, trip.reply)
            self._step_soon()

    # -- replies -------------------------------------------------------------------------------------

    def _apply(self, queue: QueueState, trip: RoundTrip, reply: Reply) -> None:
        started = 0
        try:
            if reply.error is not None:
                self._apply_error(queue, reply, trip.lease)
            else:
                queue.readiness.reset_backoff()
            self._apply_results(queue, reply)
            if reply.claim is not None and trip.lease is not None:
                started = self._apply_claim(queue, trip.lease, trip, reply.claim)
        finally:
            self._in_flight.expected -= trip.limit
            if trip.lease is not None:
                self._capacity.give((trip.reserved - started) * queue.size)

    def _apply_error(self, queue: QueueState, reply: Reply, lease: str | None) -> None:
        """Keep the settlements for the next request: settling twice by fence is safe."""
        queue.round_trips.outbox[:0] = reply.unsettled
        logger.warning("%s: a request to the storage failed, trying again: %s", queue.name, reply.error)
        self._back_off(queue)
        if lease is not None:
            queue.claim_failed()
            if reply.claim_unknown:
                self._lose_lease(lease, messages.ClaimReplyLost(lease))

    def _back_off(self, queue: QueueState) -> None:
        self._loop.call_later(queue.readiness.back_off() + BACKOFF_MARGIN, self._step_soon)

    def _apply_results(self, queue: QueueState, reply: Reply) -> None:
        """Remove the settled runs, and report them to the supervisor in one message."""
        indexes: defaultdict[str, list[int]] = defaultdict(list)
        for invocation, result in zip(reply.settled, reply.results, strict=True):
            if result.status == "refused":
                fallback = fallback_action(invocation, result.reason)
                if fallback is not None:
                    self._add_to_outbox(queue, invocation, fallback)
                    continue
                fields = invocation.log_fields
                logger.error(
                    "%s/%s: the settlement was refused: %s", *invocation.key[:2], result.reason, extra=fields
                )
            indexes[counter_name(invocation.action, result)].append(invocation.index)
            self._in_flight.remove(invocation)
        if indexes:
            self._notify(messages.RunsSettled(queue.name, indexes))

    def _apply_claim(self, queue: QueueState, lease: str, trip: RoundTrip, claim: ClaimResult) -> int:
        """Start the claimed jobs, and keep those without capacity. Return how many were started."""
        if claim.lost:
            self._lose_lease(lease, messages.LeaseRejected(lease))
            return 0
        queue.readiness.claimed(claim, trip.limit, conclusive=not trip.other_failed)
        if not claim.jobs:
            return 0
        runs = self._in_flight.add(queue.handler, claim.jobs)
        # Sent before the first run starts, so that the supervisor knows every run if this process crashes.
        self._notify(messages.RunsClaimed(queue.name, lease, tuple(map(claimed_run, runs))))
        for invocation in runs[: trip.reserved]:
            self._start(queue, invocation)
        if runs[trip.reserved :]:
            self._keep_prefetched(queue, runs[trip.reserved :])
        return min(trip.reserved, len(runs))

    def _lose_lease(self, lease: str, message: messages.ClaimReplyLost | messages.LeaseRejected) -> None:
        if self._lease == lease:
            self._lease = None
            self._notify(message)

    # -- prefetched runs -----------------------------------------------------------------------------

    def _keep_prefetched(self, queue: QueueState, runs: Sequence[Invocation]) -> None:
        queue.prefetch.runs.extend(runs)
        if self._draining:
            self._drain()
        else:
            self._loop.call_later(PREFETCH_TIMEOUT, self._return_stale, queue)

    def _return_stale(self, queue: QueueState) -> None:
        """Release the prefetched runs that waited too long: another process may have capacity for them."""
        for invocation in queue.prefetch.take_stale(time.monotonic()):
            self._return_prefetched(queue, invocation, Release())

    def _return_prefetched(self, queue: QueueState, invocation: Invocation, action: SettleAction) -> None:
        """Settle a run that has not started and takes no capacity."""
        invocation.finished = True
        self._add_to_outbox(queue, invocation, with_next_tick(invocation, action))
        self._step_soon()

    # -- runs ----------------------------------------------------------------------------------------

    def _start(self, queue: QueueState, invocation: Invocation) -> None:
        if self._draining:
            invocation.finished = True
            self._settle(invocation, Release())
            return
        job = invocation.job
        if job.stalls and self._outcomes.fail_stalled(invocation):
            return
        deadline = invocation.start_timeout()
        invocation.current = CurrentJob(self._storage, queue.name, job, self._loop, deadline, self._resources)
        self._executor.start(invocation)

    def _settle(self, invocation: Invocation, action: SettleAction) -> None:
        """Free the capacity of an ended run, and send its settlement with the next request."""
        queue = self._queues[invocation.handler.queue]
        self._capacity.give(queue.size)
        if invocation.seconds:
            queue.prefetch.add_run_time(invocation.seconds)
        self._add_to_outbox(queue, invocation, action)
        self._step_soon()

    def _add_to_outbox(self, queue: QueueState, invocation: Invocation, action: SettleAction) -> None:
        invocation.action = action
        queue.round_trips.outbox.append(invocation)

    def _timed_out(self, invocation: Invocation, seconds: float) -> None:
        self._notify(messages.RunTimedOut(invocation.index, invocation.fence, seconds))

    def _overran(self, invocation: Invocation) -> None:
        self._notify(messages.RunOverran(*invocation.key, invocation.index))
        self._step_soon()
