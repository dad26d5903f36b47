"""Looks at queues whose jobs do not fit: room is made only for jobs that are there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from dibs.storage.protocol import Storage
from dibs.worker.dispatch.queue_state import Lane

logger = logging.getLogger("dibs.worker")


class Looks:
    """Collects the lanes that are to be looked at, so that one question is for all of them."""

    def __init__(self, storage: Storage, woken: Callable[[], None], rest: Callable[[Lane], None]) -> None:
        self._storage = storage
        self._woken = woken
        self._rest = rest
        self._wanted: list[Lane] = []

    def want(self, lane: Lane, now: float) -> None:
        """Let a lane be looked at, or leave it alone until it is time to."""
        lane.ready = False
        if shy := lane.shy_for(now):
            lane.dozing = True
            asyncio.get_running_loop().call_later(shy, self._wake, lane)
        else:
            lane.looked_at = True
            self._wanted.append(lane)

    def taken(self) -> Sequence[Lane]:
        """Return the lanes that are wanted, once."""
        taken, self._wanted = self._wanted, []
        return taken

    async def look(self, lanes: Sequence[Lane]) -> None:
        """Ask which of them have jobs that are due. Never raises."""
        try:
            counts = await self._storage.counts([lane.queue for lane in lanes])
        except Exception as error:  # noqa: BLE001 - a fault in a storage, too: the next look may go well
            logger.warning("the storage could not be asked whether there is work: %s", error)
            for lane in lanes:
                lane.wake()
                self._rest(lane)
        else:
            for lane in lanes:
                found = counts[lane.queue]
                lane.make_room(due=found.waiting > found.scheduled or found.approximate)
        finally:
            for lane in lanes:
                lane.looked_at = False

    def _wake(self, lane: Lane) -> None:
        lane.wake()
        self._woken()
