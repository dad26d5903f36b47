"""Comparison of two queues of one storage: one for the fast path of a step, one for the general path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from attrs import define

from dibs.storage.redis import RedisStorage
from dibs_conformance.servers import RedisServer

FAST: Final = "fast"
#: A queue name with as many letters as FAST, so that values that contain the name have the same size.
GENERAL: Final = "slow"
READS: Final = {
    b"hash": ("HGETALL",),
    b"list": ("LRANGE", 0, -1),
    b"set": ("SMEMBERS",),
    b"zset": ("ZRANGE", 0, -1),
}


async def contents(storage: RedisStorage, prefix: str, queue: str) -> dict[str, Any]:
    """Return the sizes of the values under each key of a queue, and the fields of hashes.

    The values themselves contain times and drawn numbers, so they differ between two queues.
    """
    start = f"{prefix}:{{{queue}}}:"
    found: dict[str, Any] = {}
    for key in sorted(await storage._run_command(start, "KEYS", start + "*")):
        kind = await storage._run_command(start, "TYPE", key)
        name = key.decode().removeprefix(start)
        if kind == b"stream":
            found[name] = await storage._run_command(start, "XLEN", key)
            continue
        command, *words = READS[kind]
        values = await storage._run_command(start, command, key, *words)
        if kind == b"hash":
            found[name] = sorted(
                (field, len(value)) for field, value in zip(*[iter(values)] * 2, strict=True)
            )
        else:
            found[name] = sorted(map(len, values))
    return found


@define
class CommandCount:
    """The number of commands that a server has run in a block."""

    number: int = 0


@contextmanager
def count_commands(server: RedisServer) -> Iterator[CommandCount]:
    """Count the commands in a block, with those that scripts run."""

    def total() -> int:
        lines = server.execute("INFO", "commandstats").splitlines()
        return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines if "calls=" in line)

    begin = total()
    own = total() - begin
    count = CommandCount()
    yield count
    count.number = total() - begin - 2 * own
