"""The rights that dibs needs on a Redis with access control lists (ACL), and the check at the opening.

A script that lacks a right fails at that command, and Redis keeps what the script has written before. So a
session checks its rights before its first script.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from redis.exceptions import NoPermissionError, ResponseError

from dibs.errors import StorageUnavailable
from dibs.storage.redis.network.servers import Servers

#: The commands of the scripts and of the sessions, each with the fewest arguments that it takes. K is a key
#: of dibs, and C a channel.
COMMANDS: Final = tuple(
    tuple(line.split())
    for line in """
    EVAL return 1 K; EVALSHA 0 1 K; PING; TIME; SCAN 0
    PUBLISH C m; SUBSCRIBE C; UNSUBSCRIBE C
    DEL K; EXISTS K; EXPIRE K 1; PEXPIRE K 1; RENAME K K; TYPE K; UNLINK K
    GET K; MGET K; PERSIST K; SET K v; STRLEN K
    HDEL K f; HEXISTS K f; HGET K f; HINCRBY K f 1; HKEYS K; HLEN K; HMGET K f; HSCAN K 0; HSET K f v
    HSETNX K f v; HVALS K
    LINDEX K 0; LLEN K; LRANGE K 0 0; LSET K 0 v; LTRIM K 0 0; RPUSH K v
    SADD K m; SCARD K; SINTER K; SISMEMBER K m; SMEMBERS K; SPOP K; SRANDMEMBER K; SREM K m; SSCAN K 0
    ZADD K 1 m; ZCARD K; ZCOUNT K 0 0; ZRANGE K 0 0; ZRANGEBYLEX K - +; ZRANGEBYSCORE K 0 0; ZREM K m
    ZREMRANGEBYSCORE K 0 0; ZSCAN K 0; ZSCORE K m; ZUNIONSTORE K 1 K
    XADD K * f v; XDEL K 1-0; XRANGE K - +; XREVRANGE K + -
    """.replace("\n", ";").split(";")
    if line.strip()
)
#: Commands that a server may forbid. Without BLPOP an idle worker picks a job up later, and without INFO
#: nothing checks whether the server evicts jobs.
OPTIONAL: Final = ("BLPOP", "INFO")
#: Load and call a library of functions. With them a call takes less time of the server; without them, dibs
#: calls scripts, as on Redis 6.2, which has no functions.
FUNCTIONS: Final = (("FUNCTION", "LOAD", "x"), ("FCALL", "x", "1", "K"))
FUNCTION_RIGHTS: Final = "+fcall +function|load"
#: The commands with which the rights are checked.
CHECKING: Final = ("MULTI", "DISCARD")


def needed_rights(prefix: str) -> str:
    """Return the rules of ACL SETUSER for an account of dibs."""
    names = sorted({*CHECKING, *OPTIONAL, *(command[0] for command in COMMANDS)})
    return f"resetkeys ~{prefix}:* resetchannels &{prefix}:* -@all " + " ".join(
        f"+{name.lower()}" for name in names
    )


class Rights(NamedTuple):
    """The rights of an account, on all servers of a storage together."""

    #: The rules of ACL SETUSER that it lacks, sorted.
    missing: list[str]
    #: `permitted` if the account may load and call functions, `absent` if a server has no functions.
    functions: Literal["permitted", "forbidden", "absent"]


async def find_rights(servers: Servers, prefix: str) -> Rights:
    """Return the rights of this account.

    The server checks the rights of each command that it queues in a transaction, and none is executed.
    """
    words = {"K": f"{prefix}:{{rights}}:key", "C": f"{prefix}:{{rights}}:channel"}
    commands = [tuple(words.get(word, word) for word in command) for command in (*COMMANDS, *FUNCTIONS)]
    missing: set[str] = set()
    functions: list[Any] = []
    for replies in await servers.try_on_each(commands):
        if isinstance(replies, NoPermissionError):
            missing |= {f"+{name.lower()}" for name in CHECKING}
            continue
        for command, reply in zip(COMMANDS, replies[: len(COMMANDS)], strict=True):
            if isinstance(reply, NoPermissionError):
                missing.add(_rule(prefix, command[0], str(reply)))
        functions += replies[len(COMMANDS) :]
    return Rights(sorted(missing), _state_of_functions(functions))


def _state_of_functions(replies: Sequence[Any]) -> Literal["permitted", "forbidden", "absent"]:
    if any(isinstance(reply, ResponseError) and "unknown command" in str(reply) for reply in replies):
        return "absent"
    # A full server and a replica refuse FUNCTION LOAD, and may have the library already.
    return "forbidden" if any(isinstance(reply, NoPermissionError) for reply in replies) else "permitted"


def _rule(prefix: str, name: str, message: str) -> str:
    """Return the missing rule from the text of an error: the command, the keys or the channels."""
    if "channel" in message:
        return f"&{prefix}:*"
    return f"~{prefix}:*" if " key" in message else f"+{name.lower()}"


async def check_rights(servers: Servers, url: str, prefix: str) -> bool:
    """Return whether dibs can call functions. Raise StorageUnavailable for a missing right that it needs."""
    rights = await find_rights(servers, prefix)
    if rights.missing:
        raise StorageUnavailable(
            f"{url} does not permit what dibs needs: run ACL SETUSER with the name of this account and "
            f"{' '.join(rights.missing)} (the guide 'Redis, a cluster or Valkey' has all rights)"
        )
    return rights.functions == "permitted"
