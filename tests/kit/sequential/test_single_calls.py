"""Storages with planted bugs in the fast paths of single calls, which the probes must find."""

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
from dibs_conformance.sequential import single_calls
from dibs_conformance.sequential.probes import PROBES
from dibs_conformance.servers import PostgresServer, RedisServer
from dibs_conformance.target import Locations
from tests.kit.mutants.lua import planted
from tests.kit.mutants.planting import Patch
from tests.kit.sequential.test_probes import Wrapped

CHECKS = (single_calls.check_enqueues, single_calls.check_runs, single_calls.check_tokens)


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
        "include/single_enqueue",
        " and call('HEXISTS', prefix .. 'active', id) == 0 then",
        " then",
    ),
    "a waiting id gets a second entry": (
        "include/single_enqueue",
        "if call('HSETNX', waiting, id, text) == 1 then",
        "if call('HSET', waiting, id, text) then",
    ),
    "a paused queue is claimed": (
        "include/single_claim",
        "    or known[7] == '1' or max_active",
        "    or max_active",
    ),
    "a full queue is claimed": (
        "include/single_claim",
        "or max_active and max_active ~= '' or rate and",
        "or rate and",
    ),
    "a stale entry is claimed as another job": (
        "include/single_claim",
        "local entries = call('LRANGE', due, 0, limit - 1)",
        "local entries = call('LRANGE', due, -limit, -1)",
    ),
    "an ended lease takes a job": (
        "include/single_claim",
        "dropped ~= 0 or now >= expires_at",
        "dropped ~= 0",
    ),
    "a claim behind an end takes nothing": (
        "include/single_settle",
        " or redis.call('EXISTS', prefix .. 'priorities') == 1 then",
        " then",
    ),
    "an ended lease claims behind an end": (
        "include/single_settle",
        "return dropped == 0 and now < expires_at",
        "return dropped == 0",
    ),
    "an end in a full queue wakes nobody": (
        "include/single_settle",
        " or max_active and max_active ~= '' or rate",
        " or rate",
    ),
    "an end keeps its result from the log": (
        "include/single_settle",
        "    or log_results and log_results ~= '0' then",
        "    then",
    ),
    "two priorities are one": ("include/single_claim", "#priorities ~= 1", "#priorities == 0"),
    "any holder ends a run": ("include/single_settle", " or sub(text, 2, 9) ~= fence then", " then"),
    "an end loses the blocked job": (
        "include/single_settle",
        "or call('HEXISTS', prefix .. 'successors', id) == 1\n    or",
        "or",
    ),
    "an end loses the result": ("include/single_settle", " .. head .. (result or '')", " .. head"),
    "an end has no number": (
        "include/single_settle",
        "'number', last, 'ended', last,",
        "'number', last,",
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
    monkeypatch.setattr(single_calls, "WAIT_SECONDS", 0.2)
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
                ways = single_calls.ways_to_enqueue(storage)
        finally:
            await locations.remove()
        assert ["enqueue", "start_enqueue", "enqueue_blocking"] == list(ways)


def test_the_probes_use_the_system_clock() -> None:
    assert ["system"] * 3 == [probe.clock for probe in PROBES if probe.run in CHECKS]
