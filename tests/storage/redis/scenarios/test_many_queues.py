"""Requests for many queues: their number, their errors, and the claims that wait for several queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from dibs.errors import OutcomeUnknown, Refused, StorageDamaged
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest, QueueStep
from dibs.model.results import ClaimResult
from dibs.storage.redis import RedisStorage, open_url
from dibs.storage.redis.network.connections import RedisConnections
from dibs.storage.redis.wakeups import blocking_claim
from dibs_conformance.servers import RedisServer
from tests.storage.exchange import counted
from tests.storage.redis.servers import code_of

#: Seconds that an expected event may take, and seconds for which a claim blocks at most.
EVENT_TIMEOUT = 60.0
QUEUES = [f"q{number}" for number in range(100)]

#: Commands of new connections, and of this test.
CONNECTING = ("auth", "client", "client|setinfo", "client|setname", "hello", "info", "subscribe")


async def begin(storage: RedisStorage, queues: list[str]) -> str:
    """Return a lease on the queues."""
    return (await storage.grant(queues, 600_000, "worker")).lease


async def enqueue(storage: RedisStorage, queue: str, *ids: str) -> None:
    await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=id)) for id in ids])


def ids_by_queue(claims: Mapping[str, ClaimResult]) -> dict[str, list[str]]:
    return {queue: [job.id for job in claim.jobs] for queue, claim in claims.items() if claim.jobs}


def command_calls(server: RedisServer) -> dict[str, int]:
    """Return how often the server ran each command."""
    lines = server.execute("INFO", "commandstats").splitlines()
    stats = [line.split(":calls=") for line in lines if line.startswith("cmdstat_")]
    return {name.removeprefix("cmdstat_"): int(rest.partition(",")[0]) for name, rest in stats}


def added_calls(server: RedisServer, before: Mapping[str, int]) -> dict[str, int]:
    after = command_calls(server)
    added = {name: calls - before.get(name, 0) for name, calls in after.items()}
    return {name: calls for name, calls in added.items() if calls and name not in CONNECTING}


# -- requests ----------------------------------------------------------------------------------------


async def test_all_queues_take_one_request(storage: RedisStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = await begin(storage, QUEUES)
    for queue in QUEUES[::10]:
        await enqueue(storage, queue, "a")

    async def call_all(queues: list[str]) -> list[int]:
        served = await storage.serve([QueueStep(queue, limit=2) for queue in queues], lease)
        await storage.counts(queues)
        await storage.renew(queues, lease, 600_000)
        await storage.wait(["other", *queues], timeout=0)
        return [len(step.claim.jobs) for step in served]

    await call_all(QUEUES[:1])  # loads the scripts
    with counted(monkeypatch, RedisConnections, "call") as calls:
        claimed = await call_all(QUEUES[1:])

    assert [0] * 9 + [1, *[0] * 9] * 9 == claimed
    names = ("serve", "counts", "renew", "watch")
    assert [code_of(storage, name) for name in names] == [call["words"][:2] for call in calls]


async def test_an_idle_queue_takes_three_commands_in_a_wait(
    storage: RedisStorage, redis_server: RedisServer
) -> None:
    await storage.wait(QUEUES, timeout=0)
    before = command_calls(redis_server)
    await storage.wait(["other", *QUEUES], timeout=0)

    call = code_of(storage, "watch")[0].lower()
    assert {call: 1, "time": 1, "hmget": 101, "exists": 101} == {
        name: calls for name, calls in added_calls(redis_server, before).items() if name != "subscribe"
    }


async def test_a_damaged_lease_stops_the_renewal_of_its_queue_alone(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    queues = QUEUES[:5]
    lease = await begin(storage, queues)
    before = (await storage.renew(queues, lease, 1))["q0"]
    redis_server.execute("HSET", f"{prefix}:{{q1}}:leases", lease, "bad")

    with pytest.raises(StorageDamaged, match="q1"):
        await storage.renew(queues, lease, 10_000_000)
    others = await storage.renew(["q0", "q2", "q4"], lease, 1)

    assert before.expires_at is not None
    assert all((one.expires_at or 0) > before.expires_at for one in others.values())


# -- errors of serve ---------------------------------------------------------------------------------


async def test_an_error_of_the_first_step_says_that_no_queue_was_changed(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    lease = await begin(storage, QUEUES[:2])
    await enqueue(storage, "q1", "a")
    redis_server.execute("HSET", f"{prefix}:{{q0}}:meta", "numbers", "bad")

    with pytest.raises(StorageDamaged, match="q0"):
        await storage.serve([QueueStep("q0", limit=1), QueueStep("q1", limit=1)], lease)

    assert (await storage.counts(["q1"]))["q1"].active == 0


async def test_an_error_of_a_later_step_leaves_the_outcome_unknown(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    queues = QUEUES[:3]
    lease = await begin(storage, queues)
    for queue in queues:
        await enqueue(storage, queue, "a")
    redis_server.execute("HSET", f"{prefix}:{{q1}}:meta", "numbers", "bad")

    with pytest.raises(OutcomeUnknown, match="q1"):
        await storage.serve([QueueStep(queue, limit=1) for queue in queues], lease)

    counts = await storage.counts(["q0", "q2"])
    assert (1, 0) == (counts["q0"].active, counts["q2"].active)


async def test_a_cluster_has_no_requests_for_many_queues() -> None:
    storage = open_url("redis+cluster://127.0.0.1:1")

    assert not storage.capabilities.many_queues
    with pytest.raises(Refused, match="cluster"):
        await storage.serve([QueueStep("q")], "lease")
    with pytest.raises(Refused, match="cluster"):
        await storage.claim_blocking_any(["q"], "lease", 1, claim_id="c", timeout=1)


# -- blocking claims ---------------------------------------------------------------------------------


class AnyClaims:
    """Blocking claims of several queues under one lease."""

    def __init__(self, storage: RedisStorage, server: RedisServer, queues: list[str], lease: str) -> None:
        self.storage, self.queues, self.lease = storage, queues, lease
        self._server, self._count = server, 0

    async def claim(self, limit: int = 2, timeout: float = EVENT_TIMEOUT) -> dict[str, list[str]]:
        self._count += 1
        claims = await self.storage.claim_blocking_any(
            self.queues, self.lease, limit, claim_id=f"c{self._count}", timeout=timeout
        )
        return ids_by_queue(claims)

    async def block(self) -> asyncio.Task[dict[str, list[str]]]:
        """Send a blocking claim, and return it once the server blocks it."""
        task = asyncio.create_task(self.claim())
        async with asyncio.timeout(EVENT_TIMEOUT):
            while "blocked_clients:1" not in self._server.execute("INFO", "clients"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return task


@pytest.fixture
def many(storage: RedisStorage, redis_server: RedisServer) -> Callable[[list[str]], Awaitable[AnyClaims]]:
    async def make(queues: list[str]) -> AnyClaims:
        claims = AnyClaims(storage, redis_server, queues, await begin(storage, queues))
        # The first claims load the script, and look at the queues that have joined their group.
        for _ in range(1 + len(queues) // 200):
            await claims.claim(timeout=0.01)
        assert await claims.claim(timeout=0.01) == {}
        return claims

    return make


Many = Callable[[list[str]], Awaitable[AnyClaims]]


async def test_a_pick_up_takes_the_same_commands_for_any_number_of_queues(
    many: Many, redis_server: RedisServer
) -> None:
    calls: list[dict[str, int]] = []
    for queues in (["one"], QUEUES):
        claims = await many(queues)
        await enqueue(claims.storage, "other", "a")  # the first call loads the script
        claim = await claims.block()
        before = command_calls(redis_server)
        await enqueue(claims.storage, queues[-1], "a")
        assert await claim == {queues[-1]: ["a"]}
        calls.append(added_calls(redis_server, before))

    assert calls[0] == calls[1]


async def test_a_group_costs_an_enqueue_two_commands(many: Many, redis_server: RedisServer) -> None:
    """While no claim waits: SADD of the changed queue, and EXISTS of the list that releases claims."""
    claims = await many(QUEUES[:2])
    await begin(claims.storage, ["alone"])
    added = []
    for queue in ("alone", "q0"):
        await enqueue(claims.storage, queue, "first")
        before = command_calls(redis_server)
        await enqueue(claims.storage, queue, "second")
        added.append(added_calls(redis_server, before))
    alone, in_group = added

    assert {**alone, "sadd": 1, "exists": alone["exists"] + 1} == in_group


async def test_a_job_from_before_the_first_claim_is_claimed_at_once(
    storage: RedisStorage, redis_server: RedisServer
) -> None:
    await enqueue(storage, "q7", "a")
    claims = AnyClaims(storage, redis_server, QUEUES, await begin(storage, QUEUES))

    assert await claims.claim() == {"q7": ["a"]}


@pytest.mark.parametrize("count", [100, 250])
async def test_a_lost_wake_up_is_found_at_the_timeout(
    count: int, many: Many, redis_server: RedisServer, prefix: str
) -> None:
    claims = await many([f"q{number}" for number in range(count)])
    await enqueue(claims.storage, f"q{count - 1}", "a")
    for key in redis_server.execute("KEYS", f"{prefix}:group:*"):
        if not key.endswith(":members"):
            redis_server.execute("DEL", key)

    assert await claims.claim(timeout=0.01) == {f"q{count - 1}": ["a"]}


async def test_a_queue_joins_again_and_stays_one_member(
    many: Many, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = await many(QUEUES[:2])
    before = redis_server.execute("HGET", f"{prefix}:{{q1}}:meta", "groups").split()
    monkeypatch.setattr(blocking_claim, "REJOIN", 0.0)
    await asyncio.sleep(0.01)

    assert await claims.claim(timeout=0.01) == {}
    after = redis_server.execute("HGET", f"{prefix}:{{q1}}:meta", "groups").split()
    assert len(after) == 2
    assert after[0] == before[0]
    assert int(after[1]) > int(before[1])


async def test_a_group_that_nobody_joins_again_gets_no_wake_ups(
    many: Many, redis_server: RedisServer, prefix: str
) -> None:
    claims = await many(QUEUES[:2])
    key, _ = redis_server.execute("HGET", f"{prefix}:{{q1}}:meta", "groups").split()
    redis_server.execute("HSET", f"{prefix}:{{q1}}:meta", "groups", f"{key} 1")
    await enqueue(claims.storage, "q1", "a")

    assert redis_server.execute("EXISTS", f"{key}:woken", f"{key}:claim_tokens") in (0, "0")
    assert await claims.claim(timeout=0.01) == {"q1": ["a"]}


async def test_a_damaged_queue_stops_no_other_queue_of_the_group(
    many: Many, redis_server: RedisServer, prefix: str
) -> None:
    claims = await many(QUEUES[:3])
    for queue in QUEUES[:3]:
        await enqueue(claims.storage, queue, "a")
    redis_server.execute("HSET", f"{prefix}:{{q1}}:meta", "numbers", "bad")

    assert await claims.claim(limit=10) == {"q0": ["a"], "q2": ["a"]}
    with pytest.raises(StorageDamaged, match="q1"):
        await claims.claim(limit=10)


async def test_a_cancelled_claim_takes_no_job(many: Many) -> None:
    claims = await many(QUEUES[:3])
    claim = await claims.block()
    claim.cancel()
    await asyncio.wait([claim])
    await enqueue(claims.storage, "q1", "a")

    assert await claims.claim() == {"q1": ["a"]}


async def test_with_a_manual_clock_the_claim_does_not_wait(opened: Callable[..., RedisStorage]) -> None:
    async with opened(clock="manual") as storage:
        lease = (await storage.grant(QUEUES[:2], 60_000, "worker", now=1000)).lease
        found: Any = await storage.claim_blocking_any(QUEUES[:2], lease, 1, claim_id="c", timeout=600)

    assert found == {}
