"""Planted bugs in the scans of Redis, which only a queue with many ids shows."""

from __future__ import annotations

import re

import pytest

from dibs.storage.redis import open_url
from dibs_conformance.sequential.probes import check_partitioned_reads
from dibs_conformance.servers import RedisServer
from tests.kit.mutants.lua import planted

#: By name: the line of scan_ids.lua, its replacement, and what the kit finds.
BUGS = {
    "a page that is read again skips ids": (
        "    call('ZREMRANGEBYSCORE', key, '(' .. number, '+inf')\n",
        "",
        "waiting in 1 parts: in the second read",
    ),
    "the second page forgets the first": (
        "if here ~= process then source, position = 1, '0' end",
        "source, position = 1, '0'\nif process ~= '' then token, marks, sources = '', 0, 10 + marks end",
        "waiting in 1 parts: .* ids are in two parts",
    ),
}


@pytest.mark.parametrize("name", BUGS)
async def test_a_bug_is_found(name: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, why = BUGS[name]
    planted("scan_ids", old, new)(monkeypatch)
    async with open_url(redis_server.url, prefix=name.replace(" ", "-"), clock="manual") as storage:
        wrong = (await check_partitioned_reads(storage))[1]

    assert re.search(why, "\n".join(wrong)), wrong
