"""The repair of flows whose evaluation is missing.

A flow or batch that runs has one job in the queue of evaluations: it waits for a wake-up, or for its timer.
If an operator cancels this job, no timer brings the flow on. After the end of its last node, no wake-up does.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from attrs import define, field

from dibs.model.wakeup import EVALUATIONS, FLOWS, wake_up_request
from dibs.storage.protocol import Storage

#: Seconds between two checks. A flow without an evaluation stands still for up to this time, as a rule.
CHECK_EVERY: Final = 60.0
#: Each check compares two counts, and each tenth one looks at every flow: evaluations of flows that ended a
#: moment ago count, too, and may hide a missing one.
_FULL_EVERY: Final = 10
#: The most flows of one request: a listed flow comes with its plan, which may have 1 MiB.
_PAGE: Final = 20


@define(eq=False)
class FlowRepair:
    """The checks of one process for flows without an evaluation."""

    _storage: Storage
    _checks: count[int] = field(factory=count, init=False)

    async def check(self) -> int:
        """Enqueue an evaluation for each running flow and batch that has none, and return their number.

        As a rule it takes one request, for two counts. Concurrent checks enqueue one evaluation, because its
        id is that of the flow. Raise StorageError, OutcomeUnknown or Refused; the next check goes on.
        """
        is_full = next(self._checks) % _FULL_EVERY == 0
        counts = await self._storage.counts([FLOWS, EVALUATIONS])
        flows, evaluations = counts[FLOWS].handed_off, counts[EVALUATIONS]
        if not flows or not (is_full or evaluations.waiting + evaluations.active < flows):
            return 0
        return await repair_flows(self._storage)


async def repair_flows(storage: Storage) -> int:
    """Look at every running flow and batch, and enqueue its evaluation if there is none. Return their number.

    An evaluation for a flow that has ended meanwhile finds it ended, and does nothing.
    """
    after, missing = None, 0
    while True:
        page = await storage.list(FLOWS, "handed_off", after=after, limit=_PAGE)
        ids = [id for id, _ in page.items]
        slots = await storage.get(EVALUATIONS, ids) if ids else ()
        requests = [wake_up_request(id) for id, slot in zip(ids, slots, strict=True) if slot.current is None]
        if requests:
            await storage.enqueue(EVALUATIONS, requests)
        missing += len(requests)
        after = page.after
        if after is None:
            return missing
