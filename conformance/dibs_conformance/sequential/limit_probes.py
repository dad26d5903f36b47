"""Probes of the capability `limits`: many jobs of full keys, and blocking claims."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, Protocol, cast

from dibs.errors import Refused
from dibs.model.job import Job, JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, SettingsPatch, Settlement, StartRate
from dibs.storage.protocol import BlockingClaims, Storage
from dibs_conformance.sequential.scripts import HistoryCalls, play_steps
from dibs_conformance.target import Locations

NOW: Final = 1_767_225_600_000
DAY: Final = 86_400_000
HOUR: Final = 3_600_000
#: The jobs of a full key before the first job of another key. A claim must not read all of them at once.
MANY: Final = 1_500
#: The number of keys that are full at the same time.
MANY_KEYS: Final = 600
#: The most wake-ups of a wait.
MOST_WAKE_UPS: Final = 5
#: The interval of the rate of the blocking claims in ms, and the seconds after which they give up.
OPENING: Final = 300
BLOCKING_SECONDS: Final = 20.0

#: Limits that allow one start of a key in the time of a test.
ONE_START: Final = {"per_key": "1", "rate": f"1/{DAY}", "key_rate": f"1/{DAY}"}
UNLIMITED: Final = SettingsPatch(max_active=None, per_key=None, rate=None, key_rate=None)


async def check_many_jobs_of_full_keys(storage: Storage) -> tuple[int, list[str]]:
    """Claim the jobs behind 1,500 jobs of a full key, and the first jobs of 600 keys."""
    wrong = []
    await storage.configure("q", SettingsPatch(per_key=1), now=NOW)
    ids = [f"k{n:04}" for n in range(MANY)]
    await enqueue_keyed(storage, "q", [*((id, "k") for id in ids), ("x", "m"), ("y", None), ("z", "m")])
    lease = (await storage.grant(["q", "many"], HOUR, "kit", now=NOW)).lease
    taken = await claim_ids(storage, "q", lease, 10)
    if list(taken) != [ids[0], "x", "y"]:
        wrong.append(f"a claim before {MANY} jobs of a full key took {list(taken)}; expected k0000, x and y")
    if again := await claim_ids(storage, "q", lease, 10):
        wrong.append(f"a second claim took {list(again)}, although each key is full")
    done = [Settlement(id=id, fence=fence, action=Complete()) for id, fence in taken.items()]
    await storage.settle("q", done, now=NOW)
    if list(freed := await claim_ids(storage, "q", lease, 10)) != [ids[1], "z"]:
        wrong.append(f"after the end of the runs, a claim took {list(freed)}; expected k0001 and z")
    await storage.configure("q", UNLIMITED, now=NOW)
    if list(lifted := await claim_ids(storage, "q", lease, 1000)) != ids[2:1002]:
        wrong.append(f"without limits, a claim of 1,000 took {len(lifted)}, or not the first ones in order")
    return 5, wrong + await check_many_keys(storage, lease)


async def check_many_keys(storage: Storage, lease: str) -> list[str]:
    """Claim two jobs of each of many keys: first one of each, then none."""
    await storage.configure("many", SettingsPatch(per_key=1), now=NOW)
    ids = [f"{n}-{at:03}" for n in range(2) for at in range(MANY_KEYS)]
    await enqueue_keyed(storage, "many", [(id, id[2:]) for id in ids])
    taken = [await claim_ids(storage, "many", lease, 1000) for _ in range(2)]
    if [list(one) for one in taken] == [ids[:MANY_KEYS], []]:
        return []
    counts = [len(one) for one in taken]
    return [f"claims of {MANY_KEYS} keys took {counts} jobs; expected the first job of each key, in order"]


async def enqueue_keyed(storage: Storage, queue: str, jobs: list[tuple[str, str | None]]) -> None:
    requests = [EnqueueRequest(job=NewJob(id=id, data=JobData(key=key))) for id, key in jobs]
    for start in range(0, len(requests), 1000):
        await storage.enqueue(queue, requests[start : start + 1000], now=NOW)


async def claim_ids(storage: Storage, queue: str, lease: str, limit: int) -> dict[str, int]:
    """Return the claimed ids, in order, with their fences."""
    jobs = (await storage.claim(queue, lease, limit, now=NOW)).jobs
    return {job.id: job.run.fence for job in jobs if job.run is not None}


async def obeys_limits(locations: Locations) -> bool:
    """Return whether claims obey the settings `per_key`, `rate` and `key_rate`. Blocking claims also obey."""
    async with locations.open(locations.new(), "system") as storage:
        if not all([await obeys_limit(storage, name, value) for name, value in ONE_START.items()]):
            return False
        if not storage.capabilities.blocking_claim:
            return True
        blocking = cast("BlockingStorage", storage)
        return await blocks_until_room(blocking) and await blocks_until_opening(blocking)


async def obeys_limit(storage: Storage, name: str, value: str) -> bool:
    """Return whether a claim takes one of two jobs of a key, and the other one when the limit is lifted."""
    calls = HistoryCalls(name)
    with contextlib.suppress(Refused):
        await play_steps(storage, calls, f"set {name}={value}; enqueue a:k b:k; grant; first = claim")
        await play_steps(storage, calls, f"set {name}=none; second = claim")
        return [list(calls.saved[runs]) for runs in ("first", "second")] == [["a"], ["b"]]
    return False


class BlockingStorage(Storage, BlockingClaims, Protocol):
    """A storage with the capability `blocking_claim`."""


async def blocks_until_room(storage: BlockingStorage) -> bool:
    """Return whether blocking claims wait while a key is full, and take its job when it has room."""
    calls = HistoryCalls("blocking per_key")
    await play_steps(storage, calls, "set per_key=1; enqueue a:k b:k; grant; claim")
    task = asyncio.create_task(claim_one(storage, calls.queue, calls.lease))
    if (await asyncio.wait([task], timeout=0.1))[0]:
        return False
    await play_steps(storage, calls, "complete a")
    return [job.id for job in await task] == ["b"]


async def blocks_until_opening(storage: BlockingStorage) -> bool:
    """Return whether blocking claims start runs at a rate, and no later.

    As a worker does, each claim waits until the `next_due` of the claim before it.
    """
    queue = "blocking rate"
    await storage.configure(queue, SettingsPatch(rate=StartRate(1, OPENING)))
    await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=id)) for id in "ab"])
    lease = (await storage.grant([queue], 600_000, "kit")).lease
    first = await storage.claim(queue, lease, 1)
    due_in = 0 if first.next_due is None else (first.next_due - first.now) / 1000
    second = await claim_one(storage, queue, lease, due_in)
    starts = [job.run.claimed_at for job in (*first.jobs, *second) if job.run is not None]
    return due_in > 0 and len(starts) == 2 and starts[1] - starts[0] >= OPENING


async def claim_one(
    storage: BlockingStorage, queue: str, lease: str, seconds: float = BLOCKING_SECONDS
) -> Sequence[Job]:
    """Make blocking claims until one takes a job. A few of them may end early."""
    for number in range(1 + MOST_WAKE_UPS):
        id = f"{queue}-{number}".replace(" ", "-")
        jobs = (await storage.claim_blocking(queue, lease, 1, claim_id=id, timeout=seconds)).jobs
        if jobs:
            return jobs
    return ()
