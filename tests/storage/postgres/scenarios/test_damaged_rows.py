"""A row that was changed by hand and cannot be read: StorageDamaged with queue and id, never a raw error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dibs.errors import StorageDamaged
from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import EnqueueRequest, Fail, SettingsPatch, Settlement
from dibs.storage.postgres import PostgresStorage

Verb = Callable[[PostgresStorage, str], Awaitable[Any]]

READS: dict[str, Verb] = {
    "get": lambda s, _: s.get("q", ["good", "bad"]),
    "list": lambda s, _: s.list("q", "waiting"),
    "export": lambda s, _: s.export("q"),
    "claim": lambda s, lease: s.claim("q", lease, 10),
}
ENDED: dict[str, Verb] = {
    "get": READS["get"],
    "list": lambda s, _: s.list("q", "failed"),
    "export": READS["export"],
    "enqueue": lambda s, _: s.enqueue("q", [EnqueueRequest(job=NewJob(id="bad"), want_outcome=True)]),
}
DAMAGES = {
    "overrides": "overrides = '[1]'",
    "attributes": "attributes = '5'",
    "retention": 'retention = \'{"completed": "x"}\'',
    "error": "error = '7'",
    "origin": "origin = '{}'",
}


async def change(connect: Callable[[], Any], statement: str) -> None:
    connection = await connect()
    await connection.execute(statement)
    await connection.commit()


async def fill(storage: PostgresStorage) -> str:
    jobs = [NewJob(id=id, data=JobData(payload=b"1")) for id in ("good", "bad")]
    await storage.enqueue("q", [EnqueueRequest(job=job) for job in jobs])
    return (await storage.grant(["q"], 60_000, "kit")).lease


async def fail_bad(storage: PostgresStorage) -> str:
    lease = await fill(storage)
    runs = {job.id: job.run for job in (await storage.claim("q", lease, 10)).jobs}
    run = runs["bad"]
    assert run is not None
    end = Settlement(id="bad", fence=run.fence, action=Fail(error=Error(type="E")))
    await storage.settle("q", [end])
    return lease


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("verb", READS)
async def test_a_damaged_job_is_named(
    storage: PostgresStorage, connect: Callable[[], Any], verb: str, damage: str
) -> None:
    lease = await fill(storage)
    await change(connect, f"UPDATE live SET {DAMAGES[damage]} WHERE id = 'bad'")

    with pytest.raises(StorageDamaged) as caught:
        await READS[verb](storage, lease)
    assert "'bad' in queue 'q'" in str(caught.value)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("verb", ENDED)
async def test_a_damaged_outcome_is_named(
    storage: PostgresStorage, connect: Callable[[], Any], verb: str, damage: str
) -> None:
    lease = await fail_bad(storage)
    await change(connect, f"UPDATE ended SET {DAMAGES[damage]} WHERE id = 'bad'")

    with pytest.raises(StorageDamaged) as caught:
        await ENDED[verb](storage, lease)
    assert "'bad' in queue 'q'" in str(caught.value)


async def test_a_damaged_setting_is_named(storage: PostgresStorage, connect: Callable[[], Any]) -> None:
    await fill(storage)
    await change(connect, f"UPDATE queues SET {DAMAGES['retention']}")

    for verb in (storage.queues(), storage.export("q"), storage.configure("q", SettingsPatch(paused=True))):
        with pytest.raises(StorageDamaged, match="settings in queue 'q'"):
            await verb


@pytest.mark.parametrize("packed", ["garbage", "[[1]]", "[]]"])
async def test_a_damaged_log_entry_is_named(
    storage: PostgresStorage, connect: Callable[[], Any], packed: str
) -> None:
    await storage.configure("q", SettingsPatch(log_level="all"))
    await fill(storage)
    await change(connect, f"UPDATE events SET packed = '{packed}'")

    with pytest.raises(StorageDamaged, match=r"log entry '\d+' in queue 'q'"):
        await storage.events("q")
