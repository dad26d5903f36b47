"""Claims that are parked at the server: when they go on, and that none is lost with its connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from attrs import evolve

from dibs.errors import OutcomeUnknown, Refused
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.model.results import ClaimResult
from dibs.storage.redis import RedisStorage, open_url
from dibs.storage.redis.wakeups import blocking_claim
from dibs_conformance.servers import RedisServer, start_redis

#: Seconds in which everything here happens, and for which what is parked would wait.
PATIENCE = 60.0
LONG = 600.0


class Yard:
    """Claims parked in the queue `q` of a storage, under one lease."""

    def __init__(self, storage: RedisStorage, server: RedisServer) -> None:
        self.storage, self._server = storage, server
        self.lease = ""
        self._numbers = count()
        self._parked: list[asyncio.Task[ClaimResult]] = []

    async def park(self, limit: int = 1, timeout: float = LONG) -> asyncio.Task[ClaimResult]:
        """Return a claim that lies at the server."""
        before = self.blocked()
        self._parked.append(asyncio.ensure_future(self.claim(limit, timeout)))
        await self.until_blocked(before + 1)
        return self._parked[-1]

    async def claim(self, limit: int, timeout: float) -> ClaimResult:
        claim_id = f"p{next(self._numbers)}"
        return await self.storage.claim_blocking("q", self.lease, limit, claim_id=claim_id, timeout=timeout)

    def blocked(self) -> int:
        """Count the connections that wait at the server."""
        info: str = self._server.ask("INFO", "clients")
        return int(info.split("blocked_clients:")[1].split("\r\n", maxsplit=1)[0])

    async def until_blocked(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.blocked() != number:  # noqa: ASYNC110 - only the server knows
                await asyncio.sleep(0.01)

    async def put(self, *ids: str, **more: Any) -> None:
        await self.storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id, **more)) for id in ids])

    async def close(self) -> None:
        for one in self._parked:
            one.cancel()
            with suppress(asyncio.CancelledError, OutcomeUnknown):
                await one


@pytest.fixture
async def yard(storage: RedisStorage, redis_server: RedisServer) -> AsyncIterator[Yard]:
    yard = Yard(storage, redis_server)
    yard.lease = (await storage.grant(["q"], 600_000, "yard")).lease
    await yard.until_blocked(0)
    yield yard
    await yard.close()


async def of(claim: Awaitable[ClaimResult]) -> list[str]:
    """Which jobs it brings, long before its time."""
    return [job.id for job in (await asyncio.wait_for(claim, PATIENCE)).jobs]


async def test_a_job_that_comes_is_brought_by_the_claim_that_is_parked(yard: Yard) -> None:
    claim = await yard.park()

    await yard.put("a")

    assert ["a"] == await of(claim)
    [slot] = await yard.storage.get("q", ["a"])
    assert slot.current is not None
    assert slot.current.run is not None
    assert slot.current.run.holder == "yard"


async def test_one_job_is_brought_by_one_of_them(yard: Yard) -> None:
    claims = [await yard.park() for _ in range(3)]

    await yard.put("a")

    done, waiting = await asyncio.wait(claims, return_when="FIRST_COMPLETED")
    assert (1, 2) == (len(done), len(waiting))
    await yard.put("b")
    await yard.put("c")
    assert ["a", "b", "c"] == sorted([id for claim in claims for id in await of(claim)])


async def test_what_one_of_them_leaves_is_for_the_next(yard: Yard) -> None:
    """They were let go on by one token, for all that came at once."""
    claims = [await yard.park(limit) for limit in (2, 1, 5)]

    await yard.put(*"abcde")

    assert [["a", "b"], ["c"], ["d", "e"]] == sorted([await of(claim) for claim in claims])


async def test_what_came_before_is_brought_at_once(yard: Yard) -> None:
    await yard.put("a")

    assert ["a"] == await of(yard.claim(1, LONG))


async def test_a_queue_that_goes_on_lets_it_go_on(yard: Yard) -> None:
    await yard.storage.configure("q", SettingsPatch(paused=True))
    await yard.put("a")
    assert [] == await of(yard.claim(1, LONG))
    claim = await yard.park()

    await yard.storage.configure("q", SettingsPatch(paused=False))

    assert ["a"] == await of(claim)


async def test_after_its_time_it_is_made(yard: Yard) -> None:
    """So a job that falls due is brought without a word from anybody."""
    await yard.put("a", delay=200)
    found = list[str]()
    while not found:
        claim = await yard.claim(1, 0.01)
        found = [job.id for job in claim.jobs]
        assert found or claim.next_due is not None

    assert ["a"] == found


@pytest.mark.parametrize("timeout", [0.001, 0.0001, 0.01])
async def test_the_shortest_time_is_over_soon(yard: Yard, timeout: float) -> None:
    """For Redis 6.2 a ms is no time at all, and none is for ever: the reply was given up after 10 s."""
    assert [] == await of(yard.claim(1, timeout))


async def test_one_that_is_unparked_is_made_at_once(yard: Yard) -> None:
    claim, other = await yard.park(), await yard.park()

    await yard.storage.wake_claim("q", "p0")

    assert [] == await of(claim)
    assert not other.done()


async def test_one_that_is_unparked_before_it_is_there_does_not_stay(yard: Yard) -> None:
    await yard.storage.wake_claim("q", "p0")

    assert [] == await of(yard.claim(1, LONG))


async def test_what_is_unparked_and_never_comes_leaves_no_key(
    yard: Yard, redis_server: RedisServer, prefix: str
) -> None:
    await yard.storage.wake_claim("q", "nobody")

    left = redis_server.ask("PTTL", f"{prefix}:{{q}}:parked:nobody")
    assert 0 < left <= 10_000


async def test_a_lease_that_is_over_is_told(yard: Yard) -> None:
    claim = await yard.park()
    await yard.storage.drop(["q"], yard.lease, 1)

    await yard.put("a")

    assert (await claim).lost


async def test_one_that_is_cancelled_takes_nothing(yard: Yard) -> None:
    claim = await yard.park()
    claim.cancel()
    await yard.until_blocked(0)

    await yard.put("a")

    assert ["a"] == await of(yard.storage.claim("q", yard.lease, 1))


async def test_one_whose_connection_is_lost_is_unknown(yard: Yard, redis_server: RedisServer) -> None:
    """It may have been made: the worker gives its lease back (contract, promise 7)."""
    claim = await yard.park()

    for line in redis_server.ask("CLIENT", "LIST").splitlines():
        words = dict(word.split("=", 1) for word in line.split())
        if words["cmd"] == "blpop":
            redis_server.ask("CLIENT", "KILL", "ID", words["id"])

    with pytest.raises(OutcomeUnknown):
        await claim


async def test_a_script_that_the_server_forgot_is_sent_again(yard: Yard, redis_server: RedisServer) -> None:
    claim = await yard.park()
    redis_server.ask("SCRIPT", "FLUSH")

    await yard.put("a")

    assert ["a"] == await of(claim)


@pytest.mark.parametrize("forbidden", ["blpop", "a key of another type"])
async def test_where_no_claim_can_wait_it_is_made_at_once_and_the_power_is_gone(
    redis_server: RedisServer, prefix: str, forbidden: str
) -> None:
    """A worker that parked again and again would ask without a pause."""
    url = redis_server.url
    if forbidden == "blpop":
        name, rights = f"user-{prefix}", ("allkeys", "allchannels", "+@all", "-blpop")
        redis_server.ask("ACL", "SETUSER", name, "on", ">secret", *rights)
        url = f"redis://{name}:secret@{url.rpartition('@')[2].removeprefix('redis://')}"
    else:
        redis_server.ask("SET", f"{prefix}:{{q}}:parked", "mine")
    async with open_url(url, prefix=prefix) as storage:
        yard = Yard(storage, redis_server)
        yard.lease = (await storage.grant(["q"], 600_000, "yard")).lease
        await yard.put("a")
        before = storage.capabilities

        assert ["a"] == await of(yard.claim(1, LONG))
        assert (True, False) == (before.blocking_claim, storage.capabilities.blocking_claim)
        assert [] == await of(yard.claim(1, LONG))


async def test_where_none_can_wait_for_a_while_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that writes nothing until its replicas are back lets nobody wait."""
    with start_redis() as server:
        async with open_url(server.url) as storage:
            yard = Yard(storage, server)
            yard.lease = (await storage.grant(["q"], 600_000, "yard")).lease
            await storage.claim("q", yard.lease, 1)
            server.ask("CONFIG", "SET", "min-replicas-to-write", "1")
            assert [] == await of(yard.claim(1, LONG))
            assert not storage.capabilities.blocking_claim

            monkeypatch.setattr(blocking_claim, "REFUSED_PAUSE", 0.01)
            storage.capabilities = evolve(storage.capabilities, blocking_claim=True)
            assert [] == await of(yard.claim(1, LONG))
            server.ask("CONFIG", "SET", "min-replicas-to-write", "0")
            async with asyncio.timeout(PATIENCE):
                while not storage.capabilities.blocking_claim:  # noqa: ASYNC110 - a timer of its own
                    await asyncio.sleep(0.01)
            claim = await yard.park()
            await yard.put("a")
            assert ["a"] == await of(claim)


async def test_a_storage_with_a_clock_of_one_s_own_parks_nothing(
    opened: Callable[..., RedisStorage],
) -> None:
    async with opened(clock="manual") as storage:
        lease = (await storage.grant(["q"], 600_000, "yard", now=1)).lease
        assert not storage.capabilities.blocking_claim
        assert [] == await of(storage.claim_blocking("q", lease, 1, claim_id="p", timeout=LONG))


@pytest.mark.parametrize(
    ("claim_id", "timeout", "field"),
    [
        ("", 1.0, "claim_id"),
        ("p" * 65, 1.0, "claim_id"),
        ("ü", 1.0, "claim_id"),
        ("p", 0.0, "timeout"),
        ("p", 3601.0, "timeout"),
    ],
)
async def test_bad_words_are_refused(yard: Yard, claim_id: str, timeout: float, field: str) -> None:
    with pytest.raises(Refused, match=field):
        await yard.storage.claim_blocking("q", yard.lease, 1, claim_id=claim_id, timeout=timeout)
