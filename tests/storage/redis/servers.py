"""What tests of the Redis storage ask of its servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define

from dibs.storage.redis import RedisStorage
from dibs_conformance.servers import RedisServer


def code_of(storage: RedisStorage, verb: str) -> tuple[str, str]:
    """Return the first two words of the command that calls a verb, as ("FCALL", "dibs_0123_claim")."""
    assert storage._calls is not None
    name, code, *_ = storage._calls.command(verb, [], [])
    return name, code


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
