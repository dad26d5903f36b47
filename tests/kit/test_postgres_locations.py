"""The locations of the kit on Postgres are the same in each process."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs_conformance.servers import PostgresServer
from tests.kit.postgres_locations import RESERVE, PostgresLocations

NOW = 1_767_225_600_000


async def enqueue(locations: PostgresLocations, location: str) -> None:
    async with locations(location, "manual") as storage:
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))], now=NOW)


async def has_job(locations: PostgresLocations, location: str) -> bool:
    async with locations(location, "manual") as storage:
        [slot] = await storage.get("q", ["a"], now=NOW)
        return slot.current is not None


@pytest.mark.parametrize("first_in_child", [True, False])
async def test_a_location_has_the_same_jobs_in_another_process(
    postgres_server: PostgresServer, *, first_in_child: bool
) -> None:
    """The parent may use a schema again that was emptied, under another name than the location."""
    prefix = f"same_{first_in_child}".lower()
    with PostgresLocations(postgres_server.url) as parent:
        for number in range(RESERVE + 2):
            await enqueue(parent, f"{prefix}_{number}")
        if not first_in_child:
            await enqueue(parent, f"{prefix}_shared")
        with pickle.loads(pickle.dumps(parent)) as child:
            if first_in_child:
                await enqueue(child, f"{prefix}_shared")

            assert await has_job(child, f"{prefix}_shared")
            assert await has_job(parent, f"{prefix}_shared")
            assert not await has_job(parent, f"{prefix}_other")


async def test_a_closed_location_leaves_no_task(postgres_server: PostgresServer) -> None:
    """A listener that is not stopped is destroyed with the event loop, which logs an error."""
    with PostgresLocations(postgres_server.url) as locations:
        before = asyncio.all_tasks()
        async with locations("listening", "manual") as storage:
            await storage.wait(["q"], timeout=0.01)

        assert before == asyncio.all_tasks()
