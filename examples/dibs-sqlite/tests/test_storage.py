"""What is SQLite's own here, and so not the kit's to know."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from dibs_sqlite import open_url, place_url, remove_url
from dibs_sqlite.database import LAYOUT
from dibs_sqlite.queries import queries, schema

from dibs.errors import NotRunning, StorageDamaged, StorageTooNew, UnknownOption
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest

JOB = EnqueueRequest(job=NewJob(id="a"))
WORDS: dict[str, Any] = {"queue": "q", "priority": 0, "now": 1, "limit": 10, "lease": "x", "after": 0}


async def opened(path: Path) -> None:
    async with open_url(f"sqlite:{path}"):
        pass


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()

    with pytest.raises(StorageDamaged, match="none of dibs"):
        asyncio.run(opened(path))


def test_what_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("no database " * 100)

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


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UnknownOption, match="fsync, poll"):
        open_url("sqlite:x?fsnyc=1")


def test_a_wait_hears_of_another_connection(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"

    async def wait_and_enqueue() -> bool:
        async with open_url(url) as here, open_url(url) as there:
            granted = await here.grant(["q"], 60_000, "test")
            token = (await here.claim("q", granted.lease, 1)).token
            waiting = asyncio.create_task(here.wait(["q"], since={"q": token}, timeout=60))
            await there.enqueue("q", [JOB])
            return (await waiting).woken

    assert asyncio.run(wait_and_enqueue())


def test_closing_ends_the_waits(tmp_path: Path) -> None:
    async def wait_and_close() -> None:
        async with open_url(f"sqlite:{tmp_path}/jobs.db") as storage:
            waiting = asyncio.create_task(storage.wait(["q"], timeout=60))
            # It has looked once it is in its second wait for the loop.
            await storage.get("q", ["a"])
        with pytest.raises(NotRunning):
            await waiting

    asyncio.run(wait_and_close())


def test_a_removed_place_is_gone(tmp_path: Path) -> None:
    url = place_url(f"sqlite:{tmp_path}/jobs.db?poll=1", "mine")
    assert url == f"sqlite:{tmp_path}/jobs.db.mine?poll=1"

    asyncio.run(opened(tmp_path / "jobs.db.mine"))
    asyncio.run(remove_url(url))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["priorities", "due", "next_due", "expired_lease", "held", "asked", "expired"]
)
def test_what_is_asked_in_a_hurry_has_an_index(name: str) -> None:
    """No verb that runs jobs reads ids it does not touch."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(schema())
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {queries()[name]}", WORDS)]
    connection.close()
    reads = [step for step in plan if step.startswith(("SCAN slots", "SCAN leases", "USE TEMP B-TREE"))]

    assert reads == []
    assert any("USING" in step and "INDEX" in step for step in plan), plan
