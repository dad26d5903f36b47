"""Wake-ups of flows: one for each request, and an enqueue for ends that cannot have a follow-up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Sequence

from attrs import define, field
from msgspec.structs import replace

from dibs.errors import DibsError
from dibs.flow.wakeup import EVALUATIONS, FLOW_ATTRIBUTE, WAKE, flow_of, wake_up_request
from dibs.model.requests import Complete, Fail
from dibs.storage.protocol import Storage
from dibs.worker.execution.invocation import Invocation

logger = logging.getLogger("dibs.worker")


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
