"""Which queues of a process are served now, and with how much of its room."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dibs.worker.dispatch.capacity import Capacity, share_out
from dibs.worker.dispatch.queue_state import Lane

#: How many jobs of a queue may begin now.
Grants = dict[Lane, int]


class Serving:
    """Shares out the room of a process over its lanes."""

    def __init__(
        self, lanes: Collection[Lane], capacity: Capacity, look: Callable[[Lane, float], None]
    ) -> None:
        self._lanes = lanes
        self._capacity = capacity
        self._look = look

    def share(self, now: float, *, claiming: bool) -> tuple[Grants, bool]:
        """Return what may begin now, and whether more may be claimed ahead: not while one waits for room.

        Where nothing may be claimed, only what was claimed ahead begins.
        """
        free = self._capacity.free
        wanting = [lane for lane in self._lanes if lane.ahead or (claiming and lane.could_claim(now))]
        granted, stuck = share_out(wanting, free)
        while stuck is not None and not stuck.sure and free > 0:
            # Room is made only for jobs that are there, so ask first, and serve the others meanwhile.
            self._look(stuck, now)
            wanting = [lane for lane in wanting if lane is not stuck]
            granted, stuck = share_out(wanting, free)
        grants = dict(granted)
        if claiming and stuck is None:
            self._try(grants, free, now)
        return grants, claiming and stuck is None

    def _try(self, grants: Grants, free: int, now: float) -> None:
        """Grant what is left to queues of which nothing is known, where it costs no round trip."""
        telling = [lane for lane in self._lanes if lane.outbox and not lane.ready and lane.at_rest(now)]
        if not telling:
            return
        left = free - sum(lane.size * number for lane, number in grants.items())
        for lane in telling:
            if lane.size <= left:
                grants[lane] = left // lane.size
                left -= lane.size * grants[lane]
