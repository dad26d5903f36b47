"""Storages with planted bugs in calls for one job, which the probes must find."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from dibs.model.check_jobs import CheckedBatch
from dibs.model.requests import Settlement
from dibs.model.results import SettleResult, WaitResult
from dibs.storage.postgres.direct_enqueue import PostgresDirectEnqueue
from dibs.storage.protocol import Clock
from dibs.storage.redis.codec import requests as codec
from dibs.storage.registry import open_storage
from dibs_conformance.sequential import optional_calls
from dibs_conformance.sequential.probes import PROBES
from dibs_conformance.servers import PostgresServer, RedisServer
from dibs_conformance.target import Locations
from tests.kit.mutants.lua import planted
from tests.kit.mutants.planting import Patch
from tests.kit.sequential.test_probes import Wrapped

CHECKS = (optional_calls.check_enqueues, optional_calls.check_runs, optional_calls.check_tokens)


async def wrong_results(locations: Locations) -> list[str]:
    try:
        async with locations.open(locations.new(), "system") as storage:
            return [text for check in CHECKS for text in (await check(storage))[1]]
    finally:
        await locations.remove()


def opening(kind: type[Wrapped]) -> Any:
    @asynccontextmanager
    async def open_it(location: str, clock: Clock) -> Any:
        async with open_storage(f"memory:{location}", clock) as storage:
            yield kind(storage)

    return open_it


class AnyoneSettles(Wrapped):
    """A memory storage that answers a late end as done."""

    async def settle(self, queue: str, settlements: list[Settlement], **when: Any) -> list[SettleResult]:
        answers = await self._storage.settle(queue, settlements, **when)
        return [replace(answer, status="done") if answer.status == "lost" else answer for answer in answers]


class Forgetful(Wrapped):
    """A memory storage whose waits begin at their call."""

    async def wait(self, *args: Any, **words: Any) -> WaitResult:
        return await self._storage.wait(*args, **{**words, "since": None, "timeout": 0})


class WithoutKeys(Wrapped):
    async def enqueue(self, queue: str, requests: Any, **when: Any) -> Any:
        return await self._storage.enqueue(
            queue, [replace(one, request_key=None) for one in requests], **when
        )


#: Bugs of Redis: the file of Lua, the line, and its replacement.
LUA_BUGS = {
    "a busy id gets a second job": (
        "include/enqueue_requests",
        "not waiting[id] and not active[id] then",
        "not waiting[id] then",
    ),
    "a waiting id gets a second entry": (
        "include/enqueue_requests",
        "not waiting[id] and not active[id] then",
        "not active[id] then",
    ),
    "a paused queue is claimed": (
        "include/claim_step",
        "  if queue.paused then return claim_reply(queue, 'claimed', {}) end\n",
        "",
    ),
    "a full queue is claimed": ("include/claim_step", "  if queue.max_active then", "  if false then"),
    "an ended lease takes a job": (
        "include/leases",
        "not found.dropped and queue.now < found.expires_at and",
        "not found.dropped and",
    ),
    "an end in a full queue wakes nobody": (
        "include/complete_claimed",
        "    if queue.max_active then queue.work_changed = true end\n",
        "",
    ),
    "an end keeps its result from the log": (
        "include/complete_claimed",
        "keeps_data or queue.log_results > 0",
        "keeps_data",
    ),
    "any holder ends a run": (
        "include/complete_claimed",
        " or sub(settlement, 1, 8) ~= group.packed_fence",
        "",
    ),
    "an end loses the blocked job": ("include/complete_claimed", " or successors[id] then", " then"),
    "an end loses the result": ("include/complete_claimed", ".. head .. result or", ".. head or"),
    "an end has no number": (
        "include/commit",
        "  if #queue.ended_ids > 0 then queue.ended = next_number(queue) end\n",
        "",
    ),
}


def _all_new(patch: Patch) -> None:
    """Each answer to a direct enqueue is read as that to a new job."""

    def decoded(requests: Any, reply: Any) -> Any:
        answers = original(requests, reply)
        return [replace(answer, status="queued", found="nothing") for answer in answers]

    original = codec.decode_enqueued
    patch.setattr(codec, "decode_enqueued", decoded)


PYTHON_BUGS = {"all are new": _all_new}


def _without_keys(patch: Patch) -> None:
    """A direct enqueue on Postgres drops what its statement has no parameter for."""

    def values(self: PostgresDirectEnqueue, queue: str, requests: CheckedBatch) -> Any:
        plain = [replace(one, request_key=None) for one in requests]
        return original(self, queue, CheckedBatch.of(plain, requests.within, plain=True))

    original = PostgresDirectEnqueue._direct_values
    patch.setattr(PostgresDirectEnqueue, "_direct_values", values)


@pytest.mark.parametrize("bug", LUA_BUGS)
async def test_a_bug_of_a_script_is_found(
    bug: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(*LUA_BUGS[bug])(monkeypatch)
    assert await wrong_results(Locations(redis_server.url))


@pytest.mark.parametrize("bug", PYTHON_BUGS)
async def test_a_bug_of_a_direct_call_on_redis_is_found(
    bug: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optional_calls, "WAIT_SECONDS", 0.2)
    PYTHON_BUGS[bug](monkeypatch)
    assert await wrong_results(Locations(redis_server.url))


async def test_a_bug_of_a_direct_call_on_postgres_is_found(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_keys(monkeypatch)
    assert await wrong_results(Locations(postgres_server.url))


@pytest.mark.parametrize("kind", [AnyoneSettles, Forgetful, WithoutKeys])
async def test_a_bug_of_a_verb_is_found(kind: type[Wrapped]) -> None:
    assert await wrong_results(Locations(opening(kind)))


async def test_each_way_of_redis_and_postgres_is_tried(
    redis_server: RedisServer, postgres_server: PostgresServer
) -> None:
    for url in (redis_server.url, postgres_server.url):
        locations = Locations(url)
        try:
            async with locations.open(locations.new(), "system") as storage:
                ways = optional_calls.ways_to_enqueue(storage)
        finally:
            await locations.remove()
        assert ["enqueue", "start_enqueue", "enqueue_blocking"] == list(ways)


def test_the_probes_use_the_system_clock() -> None:
    assert ["system"] * 3 == [probe.clock for probe in PROBES if probe.run in CHECKS]
