"""Blocking claims: when the server runs them, and that a lost connection loses no job."""

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

#: Seconds that an expected event may take, and seconds for which a claim blocks at most.
EVENT_TIMEOUT = 60.0
CLAIM_TIMEOUT = 600.0


class BlockedClaims:
    """Blocking claims in the queue `q` of a storage, under one lease."""

    def __init__(self, storage: RedisStorage, server: RedisServer) -> None:
        self.storage, self._server = storage, server
        self.lease = ""
        self._numbers = count()
        self._claims: list[asyncio.Task[ClaimResult]] = []

    async def block(self, limit: int = 1, timeout: float = CLAIM_TIMEOUT) -> asyncio.Task[ClaimResult]:
        """Send a blocking claim, and return it once the server blocks it."""
        before = self.blocked()
        self._claims.append(asyncio.ensure_future(self.claim(limit, timeout)))
        await self.until_blocked(before + 1)
        return self._claims[-1]

    async def claim(self, limit: int, timeout: float) -> ClaimResult:
        claim_id = f"p{next(self._numbers)}"
        return await self.storage.claim_blocking("q", self.lease, limit, claim_id=claim_id, timeout=timeout)

    def blocked(self) -> int:
        """Return the number of connections that the server blocks."""
        info: str = self._server.execute("INFO", "clients")
        return int(info.split("blocked_clients:")[1].split("\r\n", maxsplit=1)[0])

    async def until_blocked(self, number: int) -> None:
        async with asyncio.timeout(EVENT_TIMEOUT):
            while self.blocked() != number:  # noqa: ASYNC110 - only the server knows
                await asyncio.sleep(0.01)

    async def enqueue(self, *ids: str, **more: Any) -> None:
        await self.storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id, **more)) for id in ids])

    async def close(self) -> None:
        for one in self._claims:
            one.cancel()
            with suppress(asyncio.CancelledError, OutcomeUnknown):
                await one


@pytest.fixture
async def blocked_claims(storage: RedisStorage, redis_server: RedisServer) -> AsyncIterator[BlockedClaims]:
    blocked_claims = BlockedClaims(storage, redis_server)
    blocked_claims.lease = (await storage.grant(["q"], 600_000, "blocked_claims")).lease
    await blocked_claims.until_blocked(0)
    yield blocked_claims
    await blocked_claims.close()


async def claimed_ids(claim: Awaitable[ClaimResult]) -> list[str]:
    """Return the ids that a claim returns, before its timeout."""
    return [job.id for job in (await asyncio.wait_for(claim, EVENT_TIMEOUT)).jobs]


async def test_a_claim_that_reaches_its_limit_releases_the_next(blocked_claims: BlockedClaims) -> None:
    """One enqueue of many jobs releases one claim; each claim that reaches its limit releases the next."""
    claims = [await blocked_claims.block(limit) for limit in (2, 1, 5)]

    await blocked_claims.enqueue(*"abcde")

    assert [["a", "b"], ["c"], ["d", "e"]] == sorted([await claimed_ids(claim) for claim in claims])


async def test_resuming_a_queue_releases_a_blocking_claim(blocked_claims: BlockedClaims) -> None:
    await blocked_claims.storage.configure("q", SettingsPatch(paused=True))
    await blocked_claims.enqueue("a")
    assert [] == await claimed_ids(blocked_claims.claim(1, CLAIM_TIMEOUT))
    claim = await blocked_claims.block()

    await blocked_claims.storage.configure("q", SettingsPatch(paused=False))

    assert ["a"] == await claimed_ids(claim)


async def test_a_blocking_claim_runs_at_its_timeout(blocked_claims: BlockedClaims) -> None:
    """A scheduled job that falls due sends no wake-up; the claim finds it at its timeout."""
    await blocked_claims.enqueue("a", delay=200)
    found = list[str]()
    while not found:
        claim = await blocked_claims.claim(1, 0.01)
        found = [job.id for job in claim.jobs]
        assert found or claim.next_due is not None

    assert ["a"] == found


@pytest.mark.parametrize("timeout", [0.001, 0.0001, 0.01])
async def test_the_shortest_timeouts_end(blocked_claims: BlockedClaims, timeout: float) -> None:
    """Redis 6.2 rounds a timeout of 1 ms to 0, and 0 blocks for ever: the reply was lost after 10 s."""
    assert [] == await claimed_ids(blocked_claims.claim(1, timeout))


async def test_wake_claim_before_the_claim_releases_it_too(blocked_claims: BlockedClaims) -> None:
    await blocked_claims.storage.wake_claim("q", "p0")

    assert [] == await claimed_ids(blocked_claims.claim(1, CLAIM_TIMEOUT))


async def test_wake_claim_without_a_claim_leaves_a_key_that_expires(
    blocked_claims: BlockedClaims, redis_server: RedisServer, prefix: str
) -> None:
    await blocked_claims.storage.wake_claim("q", "nobody")

    left = redis_server.execute("PTTL", f"{prefix}:{{q}}:claim_tokens:nobody")
    assert 0 < left <= 10_000


async def test_a_blocking_claim_with_a_dropped_lease_is_lost(blocked_claims: BlockedClaims) -> None:
    claim = await blocked_claims.block()
    await blocked_claims.storage.drop(["q"], blocked_claims.lease, 1)

    await blocked_claims.enqueue("a")

    assert (await claim).lost


async def test_a_cancelled_blocking_claim_takes_no_job(blocked_claims: BlockedClaims) -> None:
    claim = await blocked_claims.block()
    claim.cancel()
    await blocked_claims.until_blocked(0)

    await blocked_claims.enqueue("a")

    assert ["a"] == await claimed_ids(blocked_claims.storage.claim("q", blocked_claims.lease, 1))


async def test_a_lost_connection_makes_the_outcome_of_a_claim_unknown(
    blocked_claims: BlockedClaims, redis_server: RedisServer
) -> None:
    """The claim may have run: the worker drops its lease (docs/explanation/contract.md, Promises, 7)."""
    claim = await blocked_claims.block()

    for line in redis_server.execute("CLIENT", "LIST").splitlines():
        words = dict(word.split("=", 1) for word in line.split())
        if words["cmd"] == "blpop":
            redis_server.execute("CLIENT", "KILL", "ID", words["id"])

    with pytest.raises(OutcomeUnknown):
        await claim


async def test_a_flushed_script_is_sent_again(
    blocked_claims: BlockedClaims, redis_server: RedisServer
) -> None:
    claim = await blocked_claims.block()
    redis_server.forget_code()

    await blocked_claims.enqueue("a")

    assert ["a"] == await claimed_ids(claim)


@pytest.mark.parametrize("forbidden", ["blpop", "a key of another type"])
async def test_a_refused_blpop_claims_at_once_and_removes_the_capability(
    redis_server: RedisServer, prefix: str, forbidden: str
) -> None:
    """A worker that repeated refused blocking claims would send requests without a pause."""
    url = redis_server.url
    if forbidden == "blpop":
        name, rights = f"user-{prefix}", ("allkeys", "allchannels", "+@all", "-blpop")
        redis_server.execute("ACL", "SETUSER", name, "on", ">secret", *rights)
        url = f"redis://{name}:secret@{url.rpartition('@')[2].removeprefix('redis://')}"
    else:
        redis_server.execute("SET", f"{prefix}:{{q}}:claim_tokens", "mine")
    async with open_url(url, prefix=prefix) as storage:
        blocked_claims = BlockedClaims(storage, redis_server)
        blocked_claims.lease = (await storage.grant(["q"], 600_000, "blocked_claims")).lease
        await blocked_claims.enqueue("a")
        before = storage.capabilities

        assert ["a"] == await claimed_ids(blocked_claims.claim(1, CLAIM_TIMEOUT))
        assert (True, False) == (before.blocking_claim, storage.capabilities.blocking_claim)
        assert [] == await claimed_ids(blocked_claims.claim(1, CLAIM_TIMEOUT))


async def test_a_temporary_refusal_restores_the_capability_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that refuses writes while replicas are missing also refuses BLPOP."""
    with start_redis() as server:
        async with open_url(server.url) as storage:
            blocked_claims = BlockedClaims(storage, server)
            blocked_claims.lease = (await storage.grant(["q"], 600_000, "blocked_claims")).lease
            await storage.claim("q", blocked_claims.lease, 1)
            server.execute("CONFIG", "SET", "min-replicas-to-write", "1")
            assert [] == await claimed_ids(blocked_claims.claim(1, CLAIM_TIMEOUT))
            assert not storage.capabilities.blocking_claim

            monkeypatch.setattr(blocking_claim, "REFUSED_PAUSE", 0.01)
            storage.capabilities = evolve(storage.capabilities, blocking_claim=True)
            assert [] == await claimed_ids(blocked_claims.claim(1, CLAIM_TIMEOUT))
            server.execute("CONFIG", "SET", "min-replicas-to-write", "0")
            async with asyncio.timeout(EVENT_TIMEOUT):
                while not storage.capabilities.blocking_claim:  # noqa: ASYNC110 - a timer sets it
                    await asyncio.sleep(0.01)
            claim = await blocked_claims.block()
            await blocked_claims.enqueue("a")
            assert ["a"] == await claimed_ids(claim)


async def test_a_storage_with_a_manual_clock_never_blocks(
    opened: Callable[..., RedisStorage],
) -> None:
    async with opened(clock="manual") as storage:
        lease = (await storage.grant(["q"], 600_000, "blocked_claims", now=1)).lease
        assert not storage.capabilities.blocking_claim
        assert [] == await claimed_ids(
            storage.claim_blocking("q", lease, 1, claim_id="p", timeout=CLAIM_TIMEOUT)
        )


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
async def test_wrong_arguments_are_refused(
    blocked_claims: BlockedClaims, claim_id: str, timeout: float, field: str
) -> None:
    with pytest.raises(Refused, match=field):
        await blocked_claims.storage.claim_blocking(
            "q", blocked_claims.lease, 1, claim_id=claim_id, timeout=timeout
        )
