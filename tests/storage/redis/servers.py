"""What tests of the Redis storage ask of its servers."""

from __future__ import annotations

from dibs.storage.redis import RedisStorage


def code_of(storage: RedisStorage, verb: str) -> tuple[str, str]:
    """Return the first two words of the command that calls a verb, as ("FCALL", "dibs_0123_claim")."""
    assert storage._calls is not None
    name, code, *_ = storage._calls.command(verb, [], [])
    return name, code
