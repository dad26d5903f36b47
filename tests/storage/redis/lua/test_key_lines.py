"""Lines of keys: bounded steps, the keys that remain in Redis, and damaged records of jobs with a key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import pytest

from dibs.model.job import Job, JobData, NewJob
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    SettingsPatch,
    SettleAction,
    Settlement,
    StartRate,
)
from dibs.storage.redis import RedisStorage
from dibs_conformance.servers import RedisServer

DAY: Final = 86_400_000
#: The prefix of the keys of the queue `q`.
#: Reads `keyed` of the field `numbers`, as lua/include/queue.lua writes it.
READ_KEYED = "return string.byte(redis.call('HGET', KEYS[1], 'numbers'), 40)"
KEYED_BEFORE = 2
Q: Final = "{prefix}:{{q}}:"


def request(id: str, key: str | None = None, *, priority: int = 0, delay: int = 0) -> EnqueueRequest:
    data = JobData(key=key, priority=priority)
    return EnqueueRequest(job=NewJob(id=id, data=data, delay=delay))


async def claimed(storage: RedisStorage, lease: str, limit: int = 100) -> Sequence[Job]:
    return (await storage.claim("q", lease, limit)).jobs


async def settle(storage: RedisStorage, jobs: Sequence[Job], action: SettleAction) -> None:
    ends = [Settlement(id=job.id, fence=job.run.fence, action=action) for job in jobs if job.run]
    await storage.settle("q", ends)


def ids(jobs: Sequence[Job]) -> list[str]:
    return [job.id for job in jobs]


@pytest.fixture
async def lease(storage: RedisStorage) -> str:
    return (await storage.grant(["q"], 600_000, "me")).lease


@pytest.fixture
def kinds(redis_server: RedisServer, prefix: str) -> Callable[[], set[str]]:
    """Return a function that returns the last parts of the names of the queue's keys."""
    start = Q.format(prefix=prefix)
    return lambda: {key.removeprefix(start) for key in redis_server.execute("KEYS", f"{start}*")}


@pytest.mark.parametrize(
    "settings",
    [
        SettingsPatch(),
        SettingsPatch(per_key=1),
        SettingsPatch(key_rate=StartRate(1, 1)),
        SettingsPatch(per_key=2, rate=StartRate(1000, 1, 1000)),
    ],
)
async def test_a_drained_queue_leaves_no_key_of_its_lines(
    settings: SettingsPatch,
    storage: RedisStorage,
    lease: str,
    kinds: Callable[[], set[str]],
    redis_server: RedisServer,
    prefix: str,
) -> None:
    await storage.configure("q", settings)
    await storage.enqueue(
        "q", [request(f"{n}", f"k{n % 3}", priority=n % 2, delay=n % 2) for n in range(20)] + [request("x")]
    )
    await storage.cancel("q", ["7"])
    done: list[str] = []
    while len(done) < 20:
        jobs = await claimed(storage, lease)
        await settle(storage, jobs, Complete())
        done += ids(jobs)
    await storage.configure("q", SettingsPatch(key_rate=None))

    assert sorted(done) == sorted([*(str(n) for n in range(20) if n != 7), "x"])
    assert not {name for name in kinds() if name.partition(":")[0] in ("line", "heads", "runs", "due")}
    assert not kinds() & {"opening", "reopening", "later", "key_priorities", "clocks"}
    assert KEYED_BEFORE == redis_server.execute("EVAL", READ_KEYED, 1, Q.format(prefix=prefix) + "meta")


async def test_a_change_of_a_rate_opens_many_closed_keys_in_order(storage: RedisStorage, lease: str) -> None:
    """More keys than one step looks at again (MAX_REOPENED in key_lines.lua)."""
    names = [f"k{n:04}" for n in range(1200)]
    await storage.configure("q", SettingsPatch(key_rate=StartRate(1, DAY)))
    for half in (names[:600], names[600:]):
        await storage.enqueue("q", [request(f"first-{name}", name) for name in half])
        await storage.enqueue("q", [request(f"second-{name}", name) for name in half])
    first = await claimed(storage, lease, 1200)
    assert () == await claimed(storage, lease)

    await storage.configure("q", SettingsPatch(key_rate=None))
    second = await claimed(storage, lease, 1200)

    assert [f"first-{name}" for name in names] == ids(first)
    assert [f"second-{name}" for name in names] == ids(second)


async def test_many_keys_whose_jobs_fall_due_take_turns(
    storage: RedisStorage, lease: str, kinds: Callable[[], set[str]]
) -> None:
    """More jobs than one step brings (`bring_due` in turns.lua), in turns that are then lifted."""
    names = [f"k{n:04}" for n in range(1200)]
    await storage.configure("q", SettingsPatch(fair=True))
    await storage.enqueue("q", [request(f"a-{name}", name, delay=5) for name in names[:600]])
    await storage.enqueue("q", [request(f"a-{name}", name, delay=5) for name in names[600:]])
    await storage.enqueue("q", [request(f"b-{name}", name, delay=5) for name in names[:600]])
    await asyncio.sleep(0.01)
    first = await claimed(storage, lease, 1200)
    assert "turns" in kinds()

    await storage.configure("q", SettingsPatch(fair=False))
    second = await claimed(storage, lease, 1200)

    assert [f"a-{name}" for name in names] == ids(first)
    assert [f"b-{name}" for name in names[:600]] == ids(second)
    assert not kinds() & {"turns", "later", "key_priorities"}


async def test_two_changes_of_a_limit_follow_each_other(
    storage: RedisStorage, lease: str, kinds: Callable[[], set[str]]
) -> None:
    """The second change waits until all keys of the first have their place."""
    names = [f"k{n:03}" for n in range(700)]
    await storage.configure("q", SettingsPatch(per_key=1))
    await storage.enqueue("q", [request(f"first-{name}", name) for name in names])
    await storage.enqueue("q", [request(f"second-{name}", name) for name in names])
    await claimed(storage, lease, 700)
    assert () == await claimed(storage, lease)

    await storage.configure("q", SettingsPatch(key_rate=StartRate(1, DAY)))
    assert "reopening" in kinds()
    await storage.enqueue("q", [request("new", "new"), request("newer", "new")])
    assert ["new"] == ids(await claimed(storage, lease))
    await storage.configure("q", SettingsPatch(per_key=2, key_rate=StartRate(1, DAY, 2)))
    await storage.configure("q", SettingsPatch(per_key=3))

    assert [*(f"second-{name}" for name in names), "newer"] == ids(await claimed(storage, lease, 800))


async def test_a_lower_limit_closes_many_keys_in_bounded_steps(storage: RedisStorage, lease: str) -> None:
    """More keys than one step closes (MAX_CLOSED in keyed_claim.lua) lie before the job that is admitted."""
    names = [f"k{n:04}" for n in range(1100)]
    await storage.configure("q", SettingsPatch(per_key=2))
    for part in (names[:600], names[600:]):
        await storage.enqueue("q", [request(f"first-{name}", name) for name in part])
    await claimed(storage, lease, 1100)
    for part in (names[:600], names[600:]):
        await storage.enqueue("q", [request(f"second-{name}", name) for name in part])
    await storage.enqueue("q", [request("last", "other")])
    await storage.configure("q", SettingsPatch(per_key=1))

    assert ["last"] == ids(await claimed(storage, lease, 1))


Cut = Callable[[RedisServer, str], object]


def overwritten(part: str) -> Cut:
    return lambda server, start: server.execute("HSET", f"{start}{part}", "a", "\x10")


def removed(server: RedisServer, start: str) -> object:
    return server.execute("HDEL", f"{start}waiting", "a")


@pytest.mark.parametrize(
    ("state", "damage"),
    [("waiting", overwritten("waiting")), ("waiting", removed), ("active", overwritten("active"))],
    ids=["waiting", "missing", "active"],
)
async def test_forget_removes_a_damaged_job_from_its_line_and_runs(
    state: str,
    damage: Cut,
    storage: RedisStorage,
    lease: str,
    redis_server: RedisServer,
    prefix: str,
) -> None:
    await storage.configure("q", SettingsPatch(per_key=1))
    await storage.enqueue("q", [request("a", "k")])
    if state == "active":
        await claimed(storage, lease)
    await storage.enqueue("q", [request("b", "k")])
    damage(redis_server, Q.format(prefix=prefix))
    await storage.forget("q", ["a"])

    assert ["b"] == ids(await claimed(storage, lease))
    assert () == await claimed(storage, lease)


async def test_prune_removes_clocks_without_effect(
    opened: Callable[..., RedisStorage], redis_server: RedisServer, prefix: str
) -> None:
    async with opened(clock="manual") as storage:
        await storage.configure("q", SettingsPatch(key_rate=StartRate(1, 1000)), now=10_000)
        granted = await storage.grant(["q"], 600_000, "me", now=10_000)
        await storage.enqueue("q", [request("a", "k")], now=10_000)
        await storage.claim("q", granted.lease, 1, now=10_000)
        left = []
        for now in (10_999, 11_000):
            await storage.prune("q", 10, now=now)
            left.append(redis_server.execute("EXISTS", Q.format(prefix=prefix) + "clocks"))

    assert [1, 0] == left


async def commands_of(server: RedisServer, act: Awaitable[object]) -> dict[str, int]:
    before = _calls(server)
    await act
    return {name: count - before.get(name, 0) for name, count in _calls(server).items() if name != "info"}


def _calls(server: RedisServer) -> dict[str, int]:
    lines = server.execute("INFO", "commandstats").splitlines()
    pairs = (line.removeprefix("cmdstat_").split(":calls=") for line in lines if ":calls=" in line)
    return {name: int(rest.partition(",")[0]) for name, rest in pairs}


async def test_a_queue_that_has_no_keys_any_more_runs_the_commands_of_one_that_never_had_keys(
    storage: RedisStorage, redis_server: RedisServer
) -> None:
    counted = []
    for queue in ("never", "once", "never", "once"):
        lease = (await storage.grant([queue], 600_000, "me")).lease
        if queue == "once":
            await storage.enqueue(queue, [request("keyed", "k")])
            (job,) = (await storage.claim(queue, lease, 9)).jobs
            await storage.forget(queue, [job.id])
        await storage.enqueue(queue, [request("a"), request("b"), request("c")])
        await storage.claim(queue, lease, 1)
        counted.append(await commands_of(redis_server, storage.claim(queue, lease, 1)))
        await storage.forget(queue, ["a", "b", "c"])

    assert counted[2] == counted[3]
    assert 1 == counted[3]["hmget"]
