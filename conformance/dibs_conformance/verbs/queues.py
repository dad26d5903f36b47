"""The verb `queues`."""

from __future__ import annotations

import time

from dibs_conformance.lockstep import LockstepCore
from dibs_conformance.oracle.numbering import Mismatch

#: Seconds by which the list of the queues may lag behind, and between two reads of it.
LAG, PAUSE = 5.0, 0.05


class QueuesCalls(LockstepCore):
    """`queues`, called in lockstep."""

    def known_queues(self) -> set[str]:
        """Raise Mismatch if `queues()` names a queue that was never used. Return the names.

        A recent queue may be missing, because the contract lets the list lag behind.
        """
        answer = self.call("queues", {}, self.storage.queues())
        if made_up := [info.name for info in answer if info.name not in self.oracle.queues]:
            raise Mismatch(f"queues() names {made_up}; expected only queues that were used")
        return {info.name for info in answer}

    def all_queues(self) -> None:
        """Raise Mismatch if `queues()` does not name a queue with jobs after LAG seconds."""
        used = {
            queue.name
            for queue in self.oracle.queues.values()
            if any(one.current for one in queue.ids.values())
        }
        ends = time.monotonic() + LAG
        while missing := used - self.known_queues():
            if time.monotonic() > ends:
                raise Mismatch(f"queues() does not name {sorted(missing)}, which have jobs")
            time.sleep(PAUSE)
