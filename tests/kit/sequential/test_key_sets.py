"""Bugs planted in the key sets of Postgres, which the probe must find."""

from __future__ import annotations

import pytest

from dibs.storage.registry import open_storage, with_option
from dibs_conformance.sequential.key_set_calls import check_key_sets
from dibs_conformance.servers import PostgresServer
from tests.kit.mutants.sql import planted

#: Line of 0038_key_sets.sql -> its replacement, and a part of the message.
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


async def probe(url: str) -> tuple[int, list[str]]:
    async with open_storage(url, clock="manual") as storage:
        return await check_key_sets(storage)


async def test_the_key_sets_of_postgres_pass(postgres_server: PostgresServer) -> None:
    assert (32, []) == await probe(with_option(postgres_server.url, "schema", "key_sets"))


async def test_a_storage_without_key_sets_passes() -> None:
    assert (8, []) == await probe("memory:key-sets")


@pytest.mark.parametrize("line", BUGS)
async def test_a_planted_bug_is_found(
    line: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    replacement, message = BUGS[line]
    planted("0038_key_sets", line, replacement)(monkeypatch)

    schema = f"key_sets_{list(BUGS).index(line)}"
    _, wrong = await probe(with_option(postgres_server.url, "schema", schema))

    assert any(message in one for one in wrong), wrong
