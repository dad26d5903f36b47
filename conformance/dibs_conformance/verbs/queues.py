"""The verb `queues`."""

from __future__ import annotations

from dibs_conformance.lockstep.core import LockstepCore
from dibs_conformance.oracle.numbering import Mismatch


class QueuesCalls(LockstepCore):
    """`queues`, called in lockstep."""

    def known_queues(self) -> None:
        """Raise Mismatch if `queues()` names a queue that was never used.

        A recent queue may be missing, because the contract lets the list lag behind.
        """
        answer = self.call("queues", {}, self.storage.queues())
        made_up = [info.name for info in answer if info.name not in self.oracle.queues]
        if made_up:
            raise Mismatch(f"queues() names {made_up}; expected only queues that were used")
