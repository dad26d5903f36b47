"""Tests of this package beyond the conformance kit: the file, its layout, its indexes, and waits."""

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from dibs_sqlite import SqliteStorage, open_url, remove_url, temporary_url
from dibs_sqlite.database import LAYOUT
from dibs_sqlite.queries import queries, script
from dibs_sqlite.wait import ChangeNotifier

from dibs.errors import NotRunning, StorageDamaged, StorageTooNew, UnknownOption
from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.model.results import State

JOB = EnqueueRequest(job=NewJob(id="a"))
PARAMS: dict[str, Any] = {
    "queue": "q",
    "priority": 0,
    "now": 1,
    "limit": 10,
    "lease": "x",
    "after": 0,
    "key": "k",
    "filed": 1,
}


async def opened(path: Path) -> None:
    async with open_url(f"sqlite:{path}"):
        pass


def test_a_database_of_another_application_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()

    with pytest.raises(StorageDamaged, match="another application"):
        asyncio.run(opened(path))


def test_a_text_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("not a database " * 100)

    with pytest.raises(StorageDamaged, match=r"text\.db"):
        asyncio.run(opened(path))


def test_a_newer_layout_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    asyncio.run(opened(path))
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {LAYOUT + 1}")
    connection.close()

    with pytest.raises(StorageTooNew, match="upgrade"):
        asyncio.run(opened(path))


def keyed(*ids: str) -> list[EnqueueRequest]:
    """Return a request for each id. The first letter of the id is its key."""
    return [EnqueueRequest(job=NewJob(id=id, data=JobData(key=id[0]))) for id in ids]


async def claimed(storage: SqliteStorage, lease: str, now: int) -> list[str]:
    return [job.id for job in (await storage.claim("q", lease, 10, now=now)).jobs]


def test_a_claim_files_the_jobs_of_a_full_key_once(tmp_path: Path) -> None:
    async def filed() -> list[str]:
        async with open_url(f"sqlite:{tmp_path}/jobs.db", clock="manual") as storage:
            await storage.configure("q", SettingsPatch(per_key=1), now=1)
            await storage.enqueue("q", keyed("a1", "a2", "a3", "b1"), now=1)
            lease = (await storage.grant(["q"], 1000, "test", now=1)).lease
            assert await claimed(storage, lease, 2) == ["a1", "b1"]
            with sqlite3.connect(tmp_path / "jobs.db") as connection:
                found = connection.execute("SELECT id FROM slots WHERE filed = 1 ORDER BY id").fetchall()
            connection.close()
            await storage.forget("q", ["a1"], now=3)
            assert await claimed(storage, lease, 3) == ["a2"]
            return [id for (id,) in found]

    assert asyncio.run(filed()) == ["a2", "a3"]


def test_filed_jobs_come_in_order_after_the_limits_are_lifted(tmp_path: Path) -> None:
    async def order() -> list[str]:
        async with open_url(f"sqlite:{tmp_path}/jobs.db", clock="manual") as storage:
            await storage.configure("q", SettingsPatch(per_key=1), now=1)
            await storage.enqueue("q", keyed("a1", "a2", "b1", "a3", "b2"), now=1)
            lease = (await storage.grant(["q"], 1000, "test", now=1)).lease
            assert await claimed(storage, lease, 2) == ["a1", "b1"]
            await storage.configure("q", SettingsPatch(per_key=None), now=3)
            return await claimed(storage, lease, 3)

    assert asyncio.run(order()) == ["a2", "a3", "b2"]


def test_time_goes_on_after_a_clock_was_ahead(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A lease ends although the file has a time ten days ahead, and a reopened file goes on from there."""
    url = f"sqlite:{tmp_path}/jobs.db"
    ahead = time.time_ns() // 1_000_000 + 10 * 24 * 3_600_000

    async def lease_ends() -> int:
        async with open_url(url, clock="manual") as storage:
            await storage.enqueue("q", [JOB], now=ahead)
        async with open_url(url) as storage, asyncio.timeout(20):
            granted = await storage.grant(["q"], 50, "dead")
            await storage.claim("q", granted.lease, 1)
            while True:
                if await storage.reap("q", 1):
                    break
                await asyncio.sleep(0.02)
        async with open_url(url) as storage:
            again = await storage.grant(["q"], 50, "alive")
            return again.now - granted.now

    assert 50 <= asyncio.run(lease_ends()) < 24 * 3_600_000
    assert sum("ahead of its clock" in record.getMessage() for record in caplog.records) == 1


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UnknownOption, match="fsync, poll"):
        open_url("sqlite:x?fsnyc=1")


def test_a_wait_notices_a_commit_of_another_connection(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"

    async def wait_and_enqueue() -> bool:
        async with open_url(url) as storage, open_url(url) as other:
            granted = await storage.grant(["q"], 60_000, "test")
            token = (await storage.claim("q", granted.lease, 1)).token
            waiting = asyncio.create_task(storage.wait(["q"], since={"q": token}, timeout=60))
            await other.enqueue("q", [JOB])
            return (await waiting).woken

    assert asyncio.run(wait_and_enqueue())


def test_closing_ends_the_waits(tmp_path: Path) -> None:
    async def wait_and_close() -> None:
        async with open_url(f"sqlite:{tmp_path}/jobs.db") as storage:
            waiting = asyncio.create_task(storage.wait(["q"], timeout=60))
            # The storage has one thread, so the wait has read the queues when this read returns.
            await storage.get("q", ["a"])
        with pytest.raises(NotRunning):
            await waiting

    asyncio.run(wait_and_close())


def test_remove_url_removes_all_files(tmp_path: Path) -> None:
    url = temporary_url(f"sqlite:{tmp_path}/jobs.db?poll=1", "mine")
    assert url == f"sqlite:{tmp_path}/jobs.db.mine/jobs.db?poll=1"

    asyncio.run(opened(tmp_path / "jobs.db.mine/jobs.db"))
    asyncio.run(remove_url(url))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "priorities",
        "due",
        "next_turn",
        "waits_under_key",
        "next_due",
        "expired_lease",
        "held_ids",
        "cancel_requested_ids",
        "expired_ids",
        "any_filed",
        "bring_back",
        "count_runs_of_key",
        "opened_keys",
    ],
)
def test_the_queries_of_a_worker_use_an_index(name: str) -> None:
    """Methods that workers call often read only the rows that they need."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(script("schema"))
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {queries()[name]}", PARAMS)]
    connection.close()
    reads = [tx for tx in plan if tx.startswith(("SCAN slots", "SCAN leases", "USE TEMP B-TREE"))]

    assert reads == []
    assert any("USING" in tx and "INDEX" in tx for tx in plan), plan


@pytest.mark.parametrize("body", [b"", b"damaged", b"\x91\xc1"])
def test_a_damaged_job_is_named(tmp_path: Path, body: bytes) -> None:
    async def read_damaged() -> None:
        async with open_url(f"sqlite:{tmp_path}/jobs.db") as storage:
            await storage.enqueue("q", [JOB])
            lease = (await storage.grant(["q"], 1000, "test")).lease
            with sqlite3.connect(tmp_path / "jobs.db") as connection:
                connection.execute("UPDATE slots SET body = ?", [body])
            connection.close()
            for verb in (
                storage.get("q", ["a"]),
                storage.list("q", "waiting"),
                storage.claim("q", lease, 1),
                storage.cancel("q", ["a"]),
            ):
                with pytest.raises(StorageDamaged, match="'a' in queue 'q'"):
                    await verb

    asyncio.run(read_damaged())


@pytest.mark.parametrize("state", [None, "waiting", "scheduled"])
def test_split_makes_parts_of_equal_size(tmp_path: Path, state: State | None) -> None:
    """The contract allows fewer parts; this storage knows the sizes."""

    async def parts() -> list[str]:
        async with open_url(f"sqlite:{tmp_path / 'jobs.db'}") as storage:
            jobs = [NewJob(id=str(number), delay=60_000) for number in range(6)]
            await storage.enqueue("q", [EnqueueRequest(job=job) for job in jobs])
            return list(await storage.split("q", 3, state=state))

    assert asyncio.run(parts()) == ["1", "3"]


@pytest.mark.parametrize("state", ["active", "handed_off", "blocked", "completed"])
def test_split_divides_only_the_ids_in_the_state(tmp_path: Path, state: State) -> None:
    async def parts() -> list[str]:
        async with open_url(f"sqlite:{tmp_path / 'jobs.db'}") as storage:
            await storage.enqueue("q", [JOB])
            return list(await storage.split("q", 3, state=state))

    assert asyncio.run(parts()) == []


def test_the_first_poll_wakes_the_waits() -> None:
    """Another connection may commit between the first read of a wait and the first poll."""

    async def is_woken() -> bool:
        async def version() -> int:
            return 1

        changes = ChangeNotifier(version, poll=60.0)
        with changes:
            change = changes.next_change
            await asyncio.sleep(0.01)
            return change.is_set()

    assert asyncio.run(is_woken())
