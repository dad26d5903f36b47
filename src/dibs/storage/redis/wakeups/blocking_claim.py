"""A parked claim: it lies at the server behind a blocking pop, and is made when a token comes.

A server does the commands of a connection in their order. So a claim that was sent behind a BLPOP waits
there, whole, and when a script puts a token down (include/commit.lua) it is made in the same turn of the
server: a job goes from an enqueue to a worker with one message, by the same script as any claim. A token says
nothing, so one too many, and one that is lost, do what a wake-up does that is doubled or lost.
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

#: What a server says to those that wait when it becomes a replica: no reason to park no more.
DEMOTED: Final = "UNBLOCKED"
#: What it says of a command that it does not have; who runs it may have renamed it.
UNKNOWN: Final = "unknown command"
#: Least seconds that it waits: Redis 6.2 takes a ms for no time at all, which is for ever.
LEAST: Final = 0.01
#: Seconds until one is parked again where none can wait: mostly the server writes nothing for a while.
REST: Final = 60.0


async def parked(
    servers: Servers, url: str, beginning: str, place: str, timeout: float, words: list[Any]
) -> tuple[list[Any] | None, float]:
    """Park a claim of these words, and return its reply, and for how many seconds none can be parked here.

    The reply is None where the claim was not made, and has to be made the common way. Raises StorageError,
    OutcomeUnknown.
    """
    first = ("BLPOP", beginning + "parked", f"{beginning}parked:{place}", f"{max(timeout, LEAST):.3f}")
    claim = ("EVALSHA", script("claim").sha, 1, beginning, *words)
    try:
        waited, reply = await servers.call_blocking(beginning, first, claim, timeout)
    except ERROR_REPLIES:
        # It did not run: the script is not known, or the queue is on another server, or cannot be reached.
        return None, 0.0
    except RedisError as error:
        raise translate_error(error, url) from None
    rest = rest_after(waited)
    if rest:
        log.info("%s lets no claim wait (%s): jobs are picked up with a request more", url, waited)
    return reply, rest


def rest_after(waited: Any) -> float:
    """Return for how many seconds none is parked after this reply to the command that waits."""
    if not isinstance(waited, ResponseError) or str(waited).startswith(DEMOTED):
        return 0.0
    for_good = isinstance(waited, NoPermissionError) or UNKNOWN in str(waited)
    return math.inf if for_good else REST
