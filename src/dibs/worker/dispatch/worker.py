"""The worker loop of one process: claim jobs, start their runs, and settle them.

Each step of the loop looks at the queues that have changed since the last one. It sends at most one request
for each of them, or one for all, with the settlements since the previous request and the next claim. Runs
continue while requests are in flight.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, MutableSequence, Sequence
from typing import Any

from dibs.client.calls.current_job import CurrentJob, RunEnvironment
from dibs.client.calls.handler import PROCESS_UNITS, Handler
from dibs.client.connection.transactions import StepTransactions
from dibs.model.requests import Cancelled, Release, SettleAction
from dibs.model.results import ClaimResult
from dibs.storage.protocol import Storage
from dibs.worker import messages
from dibs.worker.dispatch.blocking_claim import IdleClaim
from dibs.worker.dispatch.fairness import Capacity, Fairness, OversizedQueues, run_size
from dibs.worker.dispatch.flow_wakeups import EvaluationClaims, FlowWakeups
from dibs.worker.dispatch.in_flight import InFlightRuns, Recycling, WaitingRuns, to_claimed_run
from dibs.worker.dispatch.listener import Listener
from dibs.worker.dispatch.queue_state import (
    BACKOFF_MARGIN,
    FALLBACK_POLL,
    PREFETCH_TIMEOUT,
    PendingQueues,
    QueueState,
)
from dibs.worker.dispatch.replacement import TickReplacement
from dibs.worker.dispatch.requests import Requests
from dibs.worker.dispatch.round_trip import Reply, RoundTrip
from dibs.worker.execution.executor import Executor, ProcessExecutor
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.outcome import RunOutcomes, with_next_tick
from dibs.worker.execution.process_limits import NO_LIMITS, ProcessLimits

logger = logging.getLogger("dibs.worker")


class Worker:
    """The worker of one process. It claims under the lease that its supervisor sends.

    The worker and its supervisor exchange only messages: the supervisor calls `receive`, and the worker calls
    `notify` with each message for the supervisor. `killable` is whether the supervisor can kill the process.
    """

    # Long, because it creates and connects all parts of the worker: every callback is in sight here.
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
        limits: ProcessLimits = NO_LIMITS,
        units: int = PROCESS_UNITS,
    ) -> None:
        self._storage = storage
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        # Other storages do not check for lost wake-ups: claims find jobs whose wake-up was lost.
        poll_queues = FALLBACK_POLL if storage.capabilities.push_wakeups else poll
        self._pending = PendingQueues()
        self._queues = {
            handler.queue: QueueState(
                handler, run_size(handler.size, units), units, poll_queues, on_change=self._pending.add
            )
            for handler in handlers
        }
        self._evaluation_claims = EvaluationClaims(self._queues, storage, self._step_soon)
        self._environments = {
            name: RunEnvironment(
                storage,
                name,
                self._loop,
                resources,
                queue.handler.serde,
                StepTransactions,
                unit=queue.handler.unit,
                log_level=queue.handler.log_level if storage.capabilities.output else None,
                worker=self._evaluation_claims,
            )
            for name, queue in self._queues.items()
        }
        self._capacity = Capacity(units)
        self._oversized = OversizedQueues(storage, self._step_soon, self._back_off)
        self._fairness = Fairness(self._capacity, self._oversized)
        self._in_flight = InFlightRuns(started, FlowWakeups(storage), limits.max_runs)
        self._recycling = Recycling(limits, self._in_flight, notify, self._wake_queues, killable)
        self._requests = Requests(
            storage, self._in_flight, self._fairness, self._apply_reply, self._start_task, self._step_soon
        )
        self._idle_claim = IdleClaim(
            storage, self._capacity, self._fairness, self._in_flight, self._requests, self._step_soon
        )
        self._waiting_runs = WaitingRuns(self._capacity, self._in_flight, self._queues)
        self._listener = Listener(storage, poll, self._step)
        self._outcomes = RunOutcomes(self._settle_run, started, storage.capabilities.cross_queue)
        self._executor = Executor(
            started,
            process_executor,
            ended=self._outcomes.settle_by_verdict,
            timed_out=self._report_timeout,
            overran=self._report_overrun,
            killable=killable,
        )
        self._replacement = TickReplacement(storage, self._start_task, self._cancel_run)
        self._executor.watch_loop(lambda: bool(self._in_flight))
        self._lease: str | None = None
        #: The lease that was last confirmed to the supervisor.
        self._adopted_lease = ""
        self._draining = False
        self._stopping = False
        self._drained_sent = False
        self._step_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        #: Done when the worker has ended, so that its process may exit.
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def close(self) -> None:
        """End the threads of the handlers; a busy thread ends after its handler."""
        self._executor.close()

    # -- messages of the supervisor ------------------------------------------------------------------

    def receive(self, message: messages.ToWorker) -> None:
        """Act on a message of the supervisor, and schedule a step of the worker loop."""
        match message:
            case messages.UseLease(lease):
                self._lease = lease
                self._wake_queues()
            case messages.CancelRuns(runs):
                for invocation in self._in_flight.find_runs(runs):
                    self._cancel_run(invocation)
            case messages.DrainWorker():
                self._start_drain()
            case messages.StopWorker():
                self._stopping = True
                self._start_drain()
                for invocation in self._in_flight:
                    self._executor.interrupt(invocation, "release")
        self._step_soon()

    def _wake_queues(self) -> None:
        for queue in self._queues.values():
            queue.readiness.wake()
        self._step_soon()

    def _cancel_run(self, invocation: Invocation) -> None:
        queue = self._queues[invocation.handler.queue]
        if invocation in queue.prefetch.runs:
            queue.prefetch.runs.remove(invocation)
            self._return_prefetched(queue, invocation, Cancelled())
        else:
            self._executor.interrupt(invocation, "cancel")

    def _start_drain(self) -> None:
        self._draining = True
        for queue in self._queues.values():
            while queue.prefetch.runs:
                self._return_prefetched(queue, queue.prefetch.runs.pop(), Release())

    def abandon(self) -> None:
        """End the worker at once: interrupt and forget all runs without settling them.

        Called after the lease was lost, as other workers may hold these jobs by then, or when a stop takes
        too long.
        """
        self._draining = True
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        for invocation in self._in_flight:
            self._executor.abandon(invocation)
            invocation.finished = True
        for queue in self._queues.values():
            queue.prefetch.runs.clear()
        self._in_flight.clear()
        if not self.ended.done():
            self.ended.set_result(None)

    # -- the worker loop -----------------------------------------------------------------------------

    def _step_soon(self) -> None:
        """Schedule one step for the next iteration of the event loop, shared by all events until then."""
        if not self._step_scheduled:
            self._step_scheduled = True
            # The run that ended just now may have set context variables: the step must not see them.
            self._loop.call_soon(self._step, context=self._executor.context)

    def _step(self) -> None:
        """Do one step of the worker loop: send the requests that are due, and start prefetched runs."""
        self._step_scheduled = False
        if self.ended.done():
            return
        now, queues = time.monotonic(), self._pending.take(self._requests.has_room)
        claiming, with_settlements = self._may_claim(now), self._claims_with_settlements()
        shares = self._fairness.share(
            queues, now, claiming=claiming, claims_with_settlements=with_settlements
        )
        self._count_oversized()
        starting, free = self._fairness.take_prefetched(queues, shares)
        # Sent first: requests would wait while the runs start.
        self._requests.send_due(queues, free, shares, self._lease, now)
        for queue, invocation in starting:
            self._start_run(queue, invocation, now)
        self._pending.keep(queues, now)
        self._confirm_lease()
        self._update_waits(queues, now, claiming=shares.claiming)
        self._waiting_runs.watch()
        self._finish_drain()

    def _may_claim(self, now: float) -> bool:
        if self._lease is None or self._draining or not self._recycling.may_claim(now):
            return False
        return self._in_flight.claimable >= min(self._capacity.units, self._in_flight.claims_left)

    def _claims_with_settlements(self) -> bool:
        """Return whether a settlement carries a claim for its queue, although no job is known.

        With a request for several queues, such a claim would take capacity that another queue needs.
        """
        alone = len(self._queues) == 1 or not self._storage.capabilities.many_queues
        return alone and not self._in_flight.expected_jobs

    def _count_oversized(self) -> None:
        if queues := self._oversized.take_queues_to_count():
            self._start_task(self._oversized.count(queues))

    def _confirm_lease(self) -> None:
        """Confirm a new lease to the supervisor once no claim under an older lease is in flight."""
        lease = self._lease
        if lease is None or lease == self._adopted_lease or self._idle_claim.lease not in (None, lease):
            return
        if all(trip.lease in (None, lease) for trip in self._requests.trips):
            self._adopted_lease = lease
            self._notify(messages.LeaseAdopted(lease))

    def _update_waits(self, queues: Sequence[QueueState], now: float, *, claiming: bool) -> None:
        """Start or end the blocking claim and the waits for wake-ups, after a change of these queues."""
        if self._draining or self._lease is None:
            self._listener.close()
        else:
            self._listener.update(queues)
        any_ready = self._pending.any_ready or any(queue.readiness.ready for queue in queues)
        self._update_idle_claim(now, self._lease if claiming else None, any_ready=any_ready)
        if self._idle_claim.covers_all:
            self._listener.suspend()
        elif not self._draining and self._lease is not None:
            self._listener.listen(later=self._idle_claim.can_cover_all)

    def _update_idle_claim(self, now: float, lease: str | None, *, any_ready: bool) -> None:
        """Send a blocking claim if this process is idle, or end it if another claim is sent."""
        if self._idle_claim.is_waiting:
            if self._idle_claim.must_end(lease, now, any_ready=any_ready):
                self._start_task(self._idle_claim.end_early())
            return
        if lease is None or lease != self._adopted_lease or self._tasks or self._in_flight or any_ready:
            return
        idle = self._listener.queues
        if queues := self._idle_claim.choose_queues(idle, now):
            covers_all = len(queues) == len(idle)
            self._start_task(self._idle_claim.send(queues, lease, now, covers_all=covers_all))
            if len(queues) == 1:
                self._listener.update(queues)

    def _finish_drain(self) -> None:
        """At the end of a drain, notify the supervisor, and end the worker if no run needs its resources."""
        if not self._draining or self._tasks or not self._in_flight.all_unstoppable(stopping=self._stopping):
            return
        if not self._drained_sent:
            self._drained_sent = True
            self._listener.close()
            self._notify(messages.WorkerDrained())
        if self._stopping or not self._in_flight:
            # Else an overrun handler uses its resources, and the supervisor kills this process.
            self.ended.set_result(None)

    # -- replies -------------------------------------------------------------------------------------

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(self._loop.create_task(self._run_then_step(work)))

    async def _run_then_step(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._tasks.difference_update((asyncio.current_task(),))
            self._step_soon()

    def _apply_reply(self, queue: QueueState, trip: RoundTrip, reply: Reply) -> None:
        if self.ended.done():
            return
        started = 0
        try:
            if reply.error is not None:
                self._apply_error(queue, reply, trip.lease)
            else:
                queue.readiness.reset_backoff()
                self._evaluation_claims.after_reply(queue, reply)
            if counters := self._in_flight.apply_settlements(queue, reply):
                self._notify(messages.RunsSettled(queue.name, counters))
            if reply.claim is not None and trip.lease is not None:
                started = self._apply_claim(queue, trip.lease, trip, reply.claim)
        finally:
            self._in_flight.expected_jobs -= trip.limit
            if trip.lease is not None:
                self._capacity.give_back((trip.reserved - started) * queue.size)

    def _apply_error(self, queue: QueueState, reply: Reply, lease: str | None) -> None:
        """Send the settlements of a failed request again, as settling twice is safe by the fence."""
        queue.round_trips.outbox[:0] = reply.unsettled
        if not reply.shared:
            logger.warning("%s: a request to the storage failed, trying again: %s", queue.name, reply.reason)
        if not reply.may_repeat_at_once:
            self._back_off(queue)
        if lease is not None:
            queue.on_claim_failed()
            if reply.claim_unknown:
                self._lose_lease(lease, messages.ClaimReplyLost(lease))

    def _back_off(self, queue: QueueState) -> None:
        seconds = queue.readiness.back_off() + BACKOFF_MARGIN
        self._loop.call_later(seconds, self._requests.wake_queue, queue)

    def _apply_claim(self, queue: QueueState, lease: str, trip: RoundTrip, claim: ClaimResult) -> int:
        """Start the claimed jobs, keep those without capacity, and return the number of started jobs."""
        if claim.lost:
            self._lose_lease(lease, messages.LeaseRejected(lease))
            return 0
        queue.readiness.update_after_claim(claim, trip.limit, conclusive=not trip.other_failed)
        queue.prefetch.update_step(len(claim.jobs), has_more=queue.readiness.has_more)
        if not claim.jobs:
            return 0
        runs = self._in_flight.add(queue.handler, claim.jobs)
        # Sent before the first run starts, so that the supervisor knows all runs if this process dies.
        self._notify(messages.RunsClaimed(queue.name, lease, tuple(map(to_claimed_run, runs))))
        for invocation in runs[: trip.reserved]:
            self._start_run(queue, invocation, invocation.received_at)
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
        queue.note_change()
        if self._draining:
            self._start_drain()
        else:
            self._loop.call_later(PREFETCH_TIMEOUT, self._return_stale, queue)

    def _return_stale(self, queue: QueueState) -> None:
        """Release the prefetched runs that waited too long: another process may have capacity for them."""
        for invocation in queue.prefetch.take_stale(time.monotonic()):
            self._return_prefetched(queue, invocation, Release())

    def _return_prefetched(self, queue: QueueState, invocation: Invocation, action: SettleAction) -> None:
        """Settle a run that has not started and holds no capacity."""
        invocation.finished = True
        queue.add_settlement(invocation, with_next_tick(invocation, action))
        self._step_soon()

    # -- runs ----------------------------------------------------------------------------------------

    def _start_run(self, queue: QueueState, invocation: Invocation, now: float) -> None:
        if self._draining:
            invocation.finished = True
            self._settle_run(invocation, Release())
            return
        job = invocation.job
        if self._outcomes.refuse_start(invocation):
            return
        # The time of a handler in a child process starts later, see Executor.
        deadline = None if queue.handler.executor == "process" else invocation.start_timeout(now)
        invocation.current = CurrentJob(self._environments[queue.name], job, deadline)
        self._executor.start(invocation)
        self._replacement.watch(invocation)

    def _settle_run(self, invocation: Invocation, action: SettleAction) -> None:
        """Free the capacity of an ended run, and settle it in the next request."""
        queue = self._queues[invocation.handler.queue]
        self._capacity.give_back(queue.size)
        if invocation.seconds:
            queue.prefetch.add_run_time(invocation.seconds)
        queue.add_settlement(invocation, action)
        self._evaluation_claims.after_run(queue, invocation)
        if not self._step_scheduled:
            self._step_soon()

    def _report_timeout(self, invocation: Invocation, seconds: float) -> None:
        self._notify(messages.RunTimedOut(invocation.index, invocation.fence, seconds))

    def _report_overrun(self, invocation: Invocation) -> None:
        self._notify(messages.RunOverran(*invocation.key, invocation.index))
        self._step_soon()
