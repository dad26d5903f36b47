"""The bytes of a job on the network and on disk. A clock would not show a few bytes too many.

Ids, payloads and the clock are fixed, and so are the numbers. A changed number is not a bug by itself: find
the reason, and update the number if the reason is worth it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from dibs.model.job import JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs_conformance.servers import PostgresServer, RedisServer
from tests.storage.address import address_of

#: A time in 2023, in ms. Its fences and revisions have as many digits as those of the next centuries.
NOW: Final = 1_700_000_000_000
BATCH: Final = 100
#: The number of exchanges after which all scripts are loaded and all statements prepared.
WARM: Final = 10
#: Bytes per job in batches of 100, for enqueue, claim and settle: both directions, or written to files.
FIGURES: Final = {
    # Each request is packed by itself: a shared head of 14 bytes saved no CPU time. The claimed records of a
    # batch share their fence and their lease.
    "redis": (49.4, 115.39, 58.78),
    # Claims answer with an array for each field; settlements name the position of each row.
    "postgresql": (45.13, 104.57, 44.89),
    # The data of a job has a byte for each of key and memo.
    "file": (102.62, 149.62, 226.88),
}

Meter = Callable[[], int]


@pytest.mark.parametrize("kind", FIGURES)
async def test_a_job_costs_as_many_bytes_as_written_down(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with _metered(kind, request, tmp_path) as (storage, meter):
        lease = (await storage.grant(["q"], 60_000, "worker", now=NOW)).lease
        for number in range(WARM):
            await _exchange(storage, lease, f"warm-{number}", meter)
        found = await _exchange(storage, lease, "job", meter)

    assert pytest.approx(FIGURES[kind], rel=0.02) == found


async def _exchange(storage: Storage, lease: str, prefix: str, meter: Meter) -> tuple[float, ...]:
    """Run a hundred jobs to their end, and return the bytes per job of each verb."""
    new = [NewJob(id=f"{prefix}-{n:03}", data=JobData(payload=b'{"x":1,"y":22}')) for n in range(BATCH)]
    read = [meter()]
    await storage.enqueue("q", [EnqueueRequest(job=job) for job in new], now=NOW)
    read.append(meter())
    jobs = (await storage.claim("q", lease, BATCH, now=NOW)).jobs
    read.append(meter())
    done = Complete(result=b"null")
    ends = [Settlement(id=job.id, fence=job.run.fence, action=done) for job in jobs if job.run is not None]
    answers = await storage.settle("q", ends, now=NOW)
    read.append(meter())
    assert ["done"] * BATCH == [answer.status for answer in answers]
    return tuple((after - before) / BATCH for before, after in pairwise(read))


@asynccontextmanager
async def _metered(
    kind: str, request: pytest.FixtureRequest, folder: Path
) -> AsyncIterator[tuple[Storage, Meter]]:
    """Open an empty storage whose bytes are counted."""
    if kind == "file":
        async with open_storage(f"file:{folder}/jobs", clock="manual") as storage:
            yield storage, lambda: sum(file.stat().st_size for file in (folder / "jobs/commits").iterdir())
        return
    server: RedisServer | PostgresServer = request.getfixturevalue(f"{kind.removesuffix('ql')}_server")
    place = {"prefix" if kind == "redis" else "schema": f"metered_{os.urandom(4).hex()}"}
    async with address_of(server.port) as address:
        url = server.url.replace(f":{server.port}/", f":{address.port}/")
        async with open_storage(url, clock="manual", poll=3600, **place) as storage:
            yield storage, lambda: address.passed
