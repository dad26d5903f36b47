"""A blocking claim: a claim that waits at the server until a job is enqueued.

A connection carries a BLPOP (which waits for an element in a list) and then the claim. The server runs the
commands of a connection in their order, so the claim runs right after the BLPOP ends. The script that
enqueues a job pushes an element and so ends one BLPOP (release_blocking_claim in
storage/redis/lua/include/commit.lua). Thus a job reaches a worker with one message, and by the same script as
any claim. The elements are empty: an extra element only causes an extra claim, and a lost element a lost
wake-up.

A group of queues: one blocking claim waits for changes in all of them. A BLPOP over the lists of all queues
would cost the server time for each queue, and the claim behind it would not know which queue ended it.
Instead, the hash `meta` of each queue has the keys of its groups. A change of the queue adds the queue to a
set of the group, and pushes an element to the one list for which the blocking claims of the group wait
(storage/redis/lua/include/groups.lua). So a blocking claim costs the same for any number of queues. A claim
that ends by its timeout looks at all queues of the group. Processes that serve the same queues share a group,
and a change releases one of them.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from attrs import define, field
from redis.exceptions import (
    AskError,
    ClusterDownError,
    NoPermissionError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from dibs.storage.redis.network.errors import translate_error
from dibs.storage.redis.network.script_calls import NO_WRITES, ScriptCalls
from dibs.storage.redis.network.servers import ERROR_REPLIES

log: Final = logging.getLogger("dibs.storage.redis")

#: Start of the error reply to a BLPOP when its server becomes a replica. Later blocking claims may succeed.
DEMOTED: Final = "UNBLOCKED"
#: Error replies to a BLPOP while the slot of its queue moves to another node of a cluster.
REDIRECTIONS: Final = (AskError, ClusterDownError, TryAgainError)
#: Part of the error reply to a command that the server does not have, for example a renamed BLPOP.
UNKNOWN: Final = "unknown command"
#: Shortest timeout in seconds: Redis 6.2 rounds 0.001 to 0, and BLPOP with 0 never ends.
MIN_TIMEOUT: Final = 0.01
#: Seconds until the next blocking claim after the server refused a BLPOP, for example while it has no
#: replicas.
REFUSED_PAUSE: Final = 60.0


class BlockingRequest(NamedTuple):
    """The two commands of a blocking claim: a BLPOP, and the script that claims when the BLPOP has ended."""

    #: The lists for whose elements the BLPOP waits.
    lists: tuple[str, str]
    timeout: float
    #: The name of the script.
    name: str
    #: The keys that the script declares.
    keys: list[str]
    arguments: list[Any]


async def blocking_claim(calls: ScriptCalls, request: BlockingRequest) -> tuple[list[Any] | None, float]:
    """Send a blocking claim. Return its reply, and a pause: seconds in which to send no other blocking claim.

    The reply is None if the claim did not run; the caller must then claim without blocking. Raise
    StorageError, or OutcomeUnknown if the reply was lost.
    """
    blpop = ("BLPOP", *request.lists, f"{max(request.timeout, MIN_TIMEOUT):.3f}")
    claim = calls.command(request.name, request.keys, request.arguments)
    try:
        popped, reply = await calls.servers.call_blocking(request.lists[0], blpop, claim, request.timeout)
    except ERROR_REPLIES as error:
        # The claim did not run: the server has not loaded its code, or another server has the queue. A server
        # that may not write refuses both commands at once, so requests would follow without a pause.
        return None, REFUSED_PAUSE if str(error).startswith(NO_WRITES) else 0.0
    except RedisError as error:
        raise translate_error(error, calls.url) from None
    pause = pause_after(popped)
    if pause:
        log.info(
            "%s refuses blocking claims (%s): picking up a job takes one more request", calls.url, popped
        )
    return reply, pause


def pause_after(popped: Any) -> float:
    """Return the seconds until the next blocking claim, from the reply to BLPOP; math.inf for never."""
    if not isinstance(popped, ResponseError) or str(popped).startswith(DEMOTED):
        return 0.0
    if isinstance(popped, REDIRECTIONS):
        return 0.0
    permanent = isinstance(popped, NoPermissionError) or UNKNOWN in str(popped)
    return math.inf if permanent else REFUSED_PAUSE


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
    return f"{group}:claim_tokens"
