"""Wake-ups of flows: one for each request, and an enqueue for ends that cannot have a follow-up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

from attrs import define, field
from msgspec.structs import replace

from dibs.errors import DibsError
from dibs.model.requests import Complete, Fail
from dibs.model.wakeup import EVALUATIONS, FLOW_ATTRIBUTE, WAKE, flow_of, wake_up_request
from dibs.storage.protocol import Storage
from dibs.worker.dispatch.queue_state import QueueState
from dibs.worker.dispatch.round_trip import Reply
from dibs.worker.execution.invocation import Invocation

logger = logging.getLogger("dibs.worker")

#: The most bytes of results in `EvaluationClaims`. Over it, all are forgotten, and evaluations read them.
_MAX_KEPT_BYTES: Final = 8 * 1024 * 1024
#: The bytes that an end takes apart from its result, about.
_END_BYTES: Final = 300


@define(eq=False)
class FlowWakeups:
    """Wakes flows after the settlements of a reply.

    A cancelled run has no follow-ups, and without the capability `cross_queue` no run has them for another
    queue. A wake-up that is lost costs time: the evaluation of the flow comes by its own timer.
    """

    _storage: Storage
    #: References to the enqueues: the event loop keeps only weak ones.
    _tasks: set[asyncio.Task[None]] = field(factory=set, init=False)

    def after_settlements(self, runs: Iterable[Invocation], counters: Container[str]) -> None:
        """Wake the flows of settled runs whose end had no wake-up.

        `counters` are the names of the counters of these runs: with one "lost" run, the wake-up that
        `fold_wake_ups` left for the others may be lost.
        """
        has_follow_ups = self._storage.capabilities.cross_queue and "lost" not in counters
        if has_follow_ups and "cancelled" not in counters:
            return
        flows = {
            flow_of(run.job.data.attributes)
            for run in runs
            if run.job.data.attributes and not (has_follow_ups and isinstance(run.action, Complete | Fail))
        }
        if found := [id for id in flows if id is not None]:
            task = asyncio.get_running_loop().create_task(self._wake(found))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _wake(self, flows: list[str]) -> None:
        try:
            await self._storage.enqueue(EVALUATIONS, [wake_up_request(id) for id in flows])
        except DibsError as error:
            logger.warning("%d flows were not woken, and continue by their timers: %s", len(flows), error)


@define(eq=False)
class EvaluationClaims:
    """Claims the evaluation of a flow with the settlement of its node, without a wake-up by the storage.

    In a request for several queues, the queue of evaluations comes last: the settlements before it have made
    the evaluations due. With other storages, the claim follows the reply to the settlement.
    """

    #: The queues of this process by name.
    _queues: Mapping[str, QueueState]
    _storage: Storage
    _wake_worker: Callable[[], None]
    #: The queue of evaluations; None if this process does not serve it.
    _evaluations: QueueState | None = field(init=False)
    #: True if one request serves several queues.
    _is_shared: bool = field(init=False)
    #: By flow, the results of the nodes that this process has completed. An evaluation here need not read
    #: them; other processes read them from the storage.
    _ends: dict[str, dict[str, bytes | None]] = field(factory=dict, init=False)
    _kept_bytes: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._evaluations = self._queues.get(EVALUATIONS)
        self._is_shared = self._storage.capabilities.many_queues

    def after_run(self, queue: QueueState, invocation: Invocation) -> None:
        """Claim after the end of a run, if its settlement is sent with the next request."""
        if self._is_shared and not queue.round_trips.busy:
            self._claim_for((invocation,))

    def after_reply(self, queue: QueueState, reply: Reply) -> None:
        """Claim with the settlements that waited for a reply, or after those that the reply has confirmed."""
        if self._evaluations is None:
            return
        self._claim_for(queue.round_trips.outbox if self._is_shared else reply.settled)
        for run, result in zip(reply.settled, reply.results, strict=True):
            attributes = run.job.data.attributes
            if FLOW_ATTRIBUTE in attributes and result.status == "done" and isinstance(run.action, Complete):
                self._keep_end(flow_of(attributes), run.job.id, run.action.result)

    def _keep_end(self, flow_id: str | None, id: str, result: bytes | None) -> None:
        if flow_id is None:
            return
        self._kept_bytes += _END_BYTES + len(result or b"")
        if self._kept_bytes > _MAX_KEPT_BYTES:
            self._ends, self._kept_bytes = {}, 0
        self._ends.setdefault(flow_id, {})[id] = result

    def take_ends(self, flow_id: str) -> Mapping[str, bytes | None]:
        """Return the results of nodes that this process has completed since the last call, by job id."""
        ends = self._ends.pop(flow_id, {})
        self._kept_bytes -= sum(_END_BYTES + len(result or b"") for result in ends.values())
        return ends

    def claim_soon(self, name: str) -> None:
        """Claim from a queue to which a run of this process has enqueued."""
        if (queue := self._queues.get(name)) is not None:
            queue.readiness.wake()
            self._wake_worker()

    def _claim_for(self, runs: Sequence[Invocation]) -> None:
        if self._evaluations is not None and any(FLOW_ATTRIBUTE in run.job.data.attributes for run in runs):
            self._evaluations.readiness.wake()


def fold_wake_ups(runs: Sequence[Invocation]) -> None:
    """Leave one wake-up of each flow in a request: that of the last run.

    A completion without follow-ups is faster to store, and the evaluation of a flow is one job that all
    wake-ups would update.
    """
    if len(runs) < 2 or FLOW_ATTRIBUTE not in runs[-1].job.data.attributes:
        return
    woken: set[str] = set()
    for run in reversed(runs):
        action = run.action
        if not isinstance(action, Complete) or not action.then:
            continue
        last = action.then[-1]
        if last.queue != EVALUATIONS or last.on_conflict is not WAKE:
            continue
        if last.job.id in woken:
            run.action = replace(action, then=action.then[:-1])
        woken.add(last.job.id)
