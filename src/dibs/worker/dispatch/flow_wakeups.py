"""Wake-ups of flows by an enqueue, for the ends of nodes that cannot have the wake-up as a follow-up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from attrs import define, field

from dibs.errors import DibsError
from dibs.flow.wakeup import EVALUATIONS, flow_of, wake_up_request
from dibs.model.requests import Cancelled
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

    def after_settlements(self, runs: Iterable[Invocation], *, any_cancelled: bool) -> None:
        """Wake the flows of these settled runs whose end had no follow-up."""
        is_atomic = self._storage.capabilities.cross_queue
        if is_atomic and not any_cancelled:
            return
        flows = {
            flow_of(run.job.data.attributes)
            for run in runs
            if run.job.data.attributes and not (is_atomic and not isinstance(run.action, Cancelled))
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
