"""Groups of queues on the server: one blocking claim waits for changes in all queues of a group.

A BLPOP over the lists of all queues would cost the server time for each queue, and the claim behind it would
not know which queue ended it. Instead, the hash `meta` of each queue has the keys of its groups. A change of
the queue adds the queue to a set of the group, and pushes an element to the one list for which the blocking
claims of the group wait (storage/redis/lua/include/groups.lua). So a blocking claim costs the same for any
number of queues. A claim that ends by its timeout looks at all queues of the group. Processes that serve the
same queues share a group, and a change releases one of them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import Final

from attrs import define, field

#: Seconds after which a queue joins its group again, and for which it stays a member without that.
REJOIN: Final = 60.0
MEMBERSHIP: Final = 300.0
#: Number of groups that a session remembers, so that groups used once cost no memory.
MAX_GROUPS: Final = 64


@define
class QueueGroups:
    """The groups that a session has joined. `prefix` is the start of every key."""

    _prefix: str
    #: For each group, the monotonic time at which the session joined it last.
    _joined_at: dict[str, float] = field(factory=dict, init=False)

    def key_of(self, queue_prefixes: Iterable[str]) -> str:
        """Return the key of the group of the queues with these prefixes, in any order."""
        text = "\n".join(sorted(queue_prefixes))
        return f"{self._prefix}:group:{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()}"

    def must_join(self, group: str) -> bool:
        """Return whether the session must join the group before its next blocking claim."""
        return time.monotonic() - self._joined_at.get(group, float("-inf")) > REJOIN

    def note_joined(self, group: str) -> None:
        if len(self._joined_at) >= MAX_GROUPS:
            self._joined_at.clear()  # the next blocking claim of each group joins it again, which is harmless
        self._joined_at[group] = time.monotonic()


def released_list(group: str) -> str:
    """Return the key of the list for which the blocking claims of a group wait."""
    return f"{group}:parked"
