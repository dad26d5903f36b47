"""A blocking claim: the server keeps it behind a BLPOP, and runs it when a job is enqueued.

A server runs the commands of a connection in their order. A claim that follows a BLPOP on its connection runs
right after the BLPOP ends, in the same turn of the server: after the script that enqueued a job has pushed
one element (release_blocking_claim in storage/redis/lua/include/commit.lua). So a job goes from an enqueue to
a worker with one message, by the same script as any claim. The element has no content: an extra element is an
extra wake-up, and a lost element is a lost wake-up.
"""

from __future__ import annotations

import logging
import math
from typing import Any, Final

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from dibs.storage.redis.network.errors import translate_error
from dibs.storage.redis.network.scripts import script
from dibs.storage.redis.network.servers import ERROR_REPLIES, Servers

log: Final = logging.getLogger("dibs.storage.redis")

#: Start of the reply to all blocked commands when a server becomes a replica; later ones may block again.
DEMOTED: Final = "UNBLOCKED"
#: Part of the reply to a command that the server does not have, perhaps because it was renamed.
UNKNOWN: Final = "unknown command"
#: Shortest timeout in seconds: Redis 6.2 rounds 0.001 to 0, and BLPOP with 0 never ends.
MIN_TIMEOUT: Final = 0.01
#: Seconds without blocking claims after the server refused a BLPOP, for example while it has no replicas.
REFUSED_PAUSE: Final = 60.0


async def blocking_claim(
    servers: Servers, url: str, prefix: str, claim_id: str, timeout: float, arguments: list[Any]
) -> tuple[list[Any] | None, float]:
    """Send a blocking claim; return its reply, and the seconds for which the caller sends no other.

    The reply is None if the claim did not run; the caller must then claim without blocking. Raises
    StorageError, OutcomeUnknown.
    """
    blpop = ("BLPOP", prefix + "parked", f"{prefix}parked:{claim_id}", f"{max(timeout, MIN_TIMEOUT):.3f}")
    claim = ("EVALSHA", script("claim").sha, 1, prefix, *arguments)
    try:
        popped, reply = await servers.call_blocking(prefix, blpop, claim, timeout)
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
    """Return the seconds without blocking claims after this reply to BLPOP; math.inf: never again."""
    if not isinstance(popped, ResponseError) or str(popped).startswith(DEMOTED):
        return 0.0
    permanent = isinstance(popped, NoPermissionError) or UNKNOWN in str(popped)
    return math.inf if permanent else REFUSED_PAUSE
