"""Listings and exports in parts, on every storage: sizes, independence and cost."""

from __future__ import annotations

import pytest

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.results import State
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from tests.storage_urls import new_url

SCHEMES = ("memory", "file", "redis", "postgresql")
IDS = [f"{'aÄz漢'[n % 4]}{n * n % 7919}-{n}" for n in range(2400)]


async def fill(storage: Storage, queue: str, ids: list[str]) -> None:
    for start in range(0, len(ids), 800):
        await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=id)) for id in ids[start : start + 800]])


async def read(storage: Storage, queue: str, state: State | None, cuts: list[str]) -> list[list[str]]:
    """Return the ids of each part."""
    found = []
    for after, until in zip([None, *cuts], [*cuts, None], strict=True):
        part: list[str] = []
        at: str | None = after
        while True:
            if state is None:
                exported = await storage.export(queue, after=at, until=until, limit=333)
                part, at = part + [record.id for record in exported.records], exported.after
            else:
                listed = await storage.list(queue, state, after=at, until=until, limit=333)
                part, at = part + [id for id, _ in listed.items], listed.after
            if at is None:
                break
        found.append(part)
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_parts_are_equal_and_together_the_whole(request: pytest.FixtureRequest, scheme: str) -> None:
    async with open_storage(new_url(scheme, request)) as storage:
        await fill(storage, "many", IDS)
        await fill(storage, "few", IDS[:10])
        states: tuple[State | None, ...] = (None, "waiting")
        for state in states:
            for queue, parts, size in (("many", 5, 480), ("few", 2, 5), ("few", 10, 1)):
                read_ = await read(storage, queue, state, [*await storage.split(queue, parts, state=state)])

                assert [size] * parts == [len(part) for part in read_]
                assert sorted(IDS if queue == "many" else IDS[:10]) == sorted(
                    id for part in read_ for id in part
                )


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_there_are_no_more_parts_than_ids(request: pytest.FixtureRequest, scheme: str) -> None:
    async with open_storage(new_url(scheme, request)) as storage:
        await fill(storage, "few", ["a", "b", "c"])

        assert [] == [*await storage.split("few", 1)]
        assert [] == [*await storage.split("nothing", 9)]
        assert [] == [*await storage.split("few", 9, state="failed")]
        cuts = [*await storage.split("few", 9)]
        assert [["a"], ["b"], ["c"]] == [part for part in await read(storage, "few", None, cuts) if part]
