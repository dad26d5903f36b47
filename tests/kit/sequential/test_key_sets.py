"""Bugs planted in the key sets of Postgres and Redis, which the probe must find."""

from __future__ import annotations

from uuid import uuid4

import pytest

from dibs.storage.registry import open_storage, with_option
from dibs_conformance.sequential.optional_calls import check_key_sets
from dibs_conformance.servers import PostgresServer, RedisServer
from tests.kit.mutants import lua
from tests.kit.mutants.sql import planted

#: Line of functions/ -> its replacement, and a part of the message.
BUGS = {
    "    taken := NOT FOUND;": ("    taken := false;", "a taken number"),
    "    IF enqueue_batch.statuses IS NOT NULL THEN": ("    IF false THEN", "the members"),
    "SELECT ctid FROM key_sets WHERE q + 0 = qu.q AND expires_at <= now_ms": (
        "SELECT ctid FROM key_sets WHERE q + 0 = qu.q AND expires_at < 0",
        "the pruned batches",
    ),
    "now_ms + qu.request_key_age) ON CONFLICT": (
        "now_ms + qu.request_key_age + 1) ON CONFLICT",
        "the expired members",
    ),
    "plain, ids, payloads, priorities, whens, hows,": (
        "plain, ids, payloads, priorities, NULL, hows,",
        "jobs",
    ),
}


#: File of Lua and line -> its replacement, and a part of the message.
LUA_BUGS = {
    ("enqueue_batch", "if tonumber(ARGV[3]) ~= last_number + 1 then return -1 end"): ("", "a taken number"),
    ("enqueue_batch", "table.concat(statuses)"): ("''", "the members"),
    ("include/enqueue_requests", "store_batch(all_new and {} or answers)"): (
        "store_batch({})",
        "the members",
    ),
    ("include/key_set", "> queue.now and text or nil"): ("> 0 and text or nil", "the expired members"),
}


async def probe(url: str) -> tuple[int, list[str]]:
    async with open_storage(url, clock="manual") as storage:
        return await check_key_sets(storage)


@pytest.mark.parametrize("place", LUA_BUGS, ids=str)
async def test_a_bug_planted_in_lua_is_found(
    place: tuple[str, str], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    replacement, message = LUA_BUGS[place]
    lua.planted(*place, replacement)(monkeypatch)

    _, wrong = await probe(with_option(redis_server.url, "prefix", uuid4().hex))

    assert any(message in one for one in wrong), wrong


async def test_a_storage_without_key_sets_passes() -> None:
    assert (14, []) == await probe(f"memory:{uuid4().hex}")


@pytest.mark.parametrize("line", BUGS)
async def test_a_planted_bug_is_found(
    line: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    replacement, message = BUGS[line]
    file = "prune" if line.startswith("SELECT ctid") else "enqueue"
    planted(file, line, replacement)(monkeypatch)

    _, wrong = await probe(with_option(postgres_server.url, "schema", f"key_sets_{uuid4().hex}"))

    assert any(message in one for one in wrong), wrong
