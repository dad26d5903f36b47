"""A blocking claim: a claim that waits at the server until a job is enqueued.

A connection carries a BLPOP (which waits for an element in a list) and then the claim. The server runs the
commands of a connection in their order, so the claim runs right after the BLPOP ends. The script that
enqueues a job pushes an element and so ends one BLPOP (release_blocking_claim in
storage/redis/lua/include/commit.lua). Thus a job reaches a worker with one message, and by the same script as
any claim. The elements are empty: an extra element only causes an extra claim, and a lost element a lost
wake-up.
"""

from __future__ import annotations

import logging
import math
from typing import Any, Final, NamedTuple

from redis.exceptions import (
    AskError,
    ClusterDownError,
    NoPermissionError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from dibs.storage.redis.network.errors import translate_error
from dibs.storage.redis.network.scripts import script
from dibs.storage.redis.network.servers import ERROR_REPLIES, Servers

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


async def blocking_claim(
    servers: Servers, url: str, request: BlockingRequest
) -> tuple[list[Any] | None, float]:
    """Send a blocking claim. Return its reply, and a pause: seconds in which to send no other blocking claim.

    The reply is None if the claim did not run; the caller must then claim without blocking. Raise
    StorageError, or OutcomeUnknown if the reply was lost.
    """
    blpop = ("BLPOP", *request.lists, f"{max(request.timeout, MIN_TIMEOUT):.3f}")
    sha = script(request.name, servers.database).sha
    claim = ("EVALSHA", sha, len(request.keys), *request.keys, *request.arguments)
    try:
        popped, reply = await servers.call_blocking(request.lists[0], blpop, claim, request.timeout)
    except ERROR_REPLIES:
        # The claim did not run: the server has not loaded the script, or another server has the queue.
        return None, 0.0
    except RedisError as error:
        raise translate_error(error, url) from None
    pause = pause_after(popped)
    if pause:
        log.info("%s refuses blocking claims (%s): picking up a job takes one more request", url, popped)
    return reply, pause


def pause_after(popped: Any) -> float:
    """Return the seconds until the next blocking claim, from the reply to BLPOP; math.inf for never."""
    if not isinstance(popped, ResponseError) or str(popped).startswith(DEMOTED):
        return 0.0
    if isinstance(popped, REDIRECTIONS):
        return 0.0
    permanent = isinstance(popped, NoPermissionError) or UNKNOWN in str(popped)
    return math.inf if permanent else REFUSED_PAUSE
