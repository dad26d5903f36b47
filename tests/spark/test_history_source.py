"""Which storage continues a warehouse, and which live jobs an increment reads."""

from __future__ import annotations

import asyncio
import sys
from asyncio import to_thread
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import Refused
from dibs.model.requests import SettingsPatch
from dibs.spark.history import increments, storage_reads
from dibs.spark.history.increments import update
from dibs.spark.history.warehouse import Warehouse
from dibs.storage.registry import open_storage
from tests.spark import expected_history
from tests.spark.random_day import RandomDay
from tests.spark.source_storages import SHARED, at, jobs, run_some
from tests.spark.storage_contents import all_events, all_slots
from tests.spark.warehouse_rows import rows, runs_in
from tests.storage_urls import new_url


async def run_dibs(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "dibs", *arguments)
    assert 0 == await process.wait()


def ids(warehouse: Path) -> list[str]:
    return sorted(id for _, id in rows(warehouse, "ids"))


def test_a_storage_is_recognised_under_a_new_url(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    at(f"file:{tmp_path}/jobs", lambda storage: run_some(storage, "mail", ["a", "b"]))
    update(f"file:{tmp_path}/jobs", warehouse)
    (tmp_path / "jobs").rename(tmp_path / "moved")
    at(f"file:{tmp_path}/moved", lambda storage: run_some(storage, "mail", ["c"]))

    assert 1 == update(f"file:{tmp_path}/moved", warehouse).events
    assert ["a", "b", "c"] == ids(warehouse)
    assert Warehouse(warehouse).state.source.endswith("/moved")


@pytest.mark.parametrize("scheme", SHARED)
def test_another_storage_is_refused(request: pytest.FixtureRequest, tmp_path: Path, scheme: str) -> None:
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    at(url, lambda storage: run_some(storage, "mail", ["a"]))
    update(url, warehouse)
    other = new_url(scheme, request)
    at(other, lambda storage: run_some(storage, "mail", [f"other {number}" for number in range(9)]))

    with pytest.raises(Refused, match=r"is another storage, or was emptied.*--adopt"):
        update(other, warehouse)
    assert ["a"] == ids(warehouse)


def test_an_unknown_storage_with_a_trimmed_log_is_refused(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    at(f"file:{tmp_path}/jobs", lambda storage: run_some(storage, "mail", ["a", "b", "c"]))
    update(f"file:{tmp_path}/jobs", warehouse)

    async def trim(storage: Any) -> None:
        await storage.configure("mail", SettingsPatch(log_bytes=1))
        await run_some(storage, "mail", ["d"])
        while (await storage.prune("mail", 1000)).more:
            pass

    at(f"file:{tmp_path}/jobs", trim)
    (tmp_path / "jobs").rename(tmp_path / "moved")
    with pytest.raises(Refused, match="may be another storage"):
        update(f"file:{tmp_path}/moved", warehouse)
    (tmp_path / "moved").rename(tmp_path / "jobs")
    assert ("mail",) == update(f"file:{tmp_path}/jobs", warehouse).gaps


async def test_a_moved_storage_is_adopted_exactly(tmp_path: Path) -> None:
    old, new, warehouse = f"file:{tmp_path}/old", f"file:{tmp_path}/new", tmp_path / "warehouse"
    async with open_storage(old) as storage:
        await run_some(storage, "mail", ["a", "b"])
        await storage.enqueue("mail", jobs("waits", "runs later"))
    await to_thread(update, old, warehouse)
    await run_dibs("move", "--from", old, "--to", new)
    async with open_storage(new) as storage:
        await storage.configure("mail", SettingsPatch(paused=False))
        await storage.cancel("mail", ["waits"])
        await run_some(storage, "mail", ["runs later", "c"])
        await storage.enqueue("mail", jobs("still waits"))
        with pytest.raises(Refused, match="another storage"):
            await to_thread(update, new, warehouse)
        await run_dibs("spark", "history", "--url", new, "--warehouse", str(warehouse), "--adopt")
        # Adopted once, the storage is that of the warehouse.
        await to_thread(update, new, warehouse, adopt=True)
        assert 0 == (await to_thread(update, new, warehouse)).events
        events, live = await all_events(storage), await all_slots(storage)
    async with open_storage(old) as storage:
        events = [*await all_events(storage), *events]
    pairs = [(queue, event) for queue, _, event in events]
    horizon = Warehouse(warehouse).state.horizon

    assert expected_history.runs(pairs) == runs_in(warehouse)
    assert expected_history.metrics(pairs, live, horizon) == rows(warehouse, "metrics")


def test_an_adopted_storage_without_events_is_continued(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    at(f"file:{tmp_path}/old", lambda storage: run_some(storage, "mail", ["a"]))
    update(f"file:{tmp_path}/old", warehouse)
    at(f"file:{tmp_path}/new", lambda storage: storage.enqueue("mail", jobs("b")))
    update(f"file:{tmp_path}/new", warehouse, adopt=True)
    at(f"file:{tmp_path}/new", lambda storage: run_some(storage, "mail", ["c"]))
    update(f"file:{tmp_path}/new", warehouse)

    assert ["a", "b", "c"] == ids(warehouse)


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
async def test_a_large_backlog_is_read_seldom_and_exact_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, engine: Any
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    unread: list[set[str]] = []
    plan_live = storage_reads.plan_live

    def recorded(*arguments: Any) -> Any:
        plan = plan_live(*arguments)
        unread.append({*arguments[2]})
        assert not unread[-1] & {part.queue for part in plan}
        return plan

    monkeypatch.setattr("dibs.spark.history.increments.plan_live", recorded)
    monkeypatch.setattr(increments, "ALWAYS_READ", 3)
    monkeypatch.setattr(increments, "JOBS_PER_SECOND", 0.01)
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage, seed=7)
        await day.prepare(all_events_of="mail")
        for _ in range(12):
            await day.advance(15)
            await to_thread(update, url, warehouse, engine=engine)
        assert Warehouse(warehouse).live.state.read_at
        assert any(unread)
        assert not all(unread)
        monkeypatch.setattr(increments, "ALWAYS_READ", 10_000)
        await to_thread(update, url, warehouse, engine=engine)
        events, live = await all_events(storage), await all_slots(storage)
    pairs = [(queue, event) for queue, _, event in events]
    horizon = Warehouse(warehouse).state.horizon

    assert expected_history.metrics(pairs, live, horizon) == rows(warehouse, "metrics")
    assert expected_history.runs(pairs) == runs_in(warehouse)


def test_a_queue_that_is_named_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    monkeypatch.setattr(increments, "ALWAYS_READ", 1)
    monkeypatch.setattr(increments, "JOBS_PER_SECOND", 0.001)
    at(url, lambda storage: storage.enqueue("mail", jobs("a", "b")))
    update(url, warehouse)
    at(url, lambda storage: storage.enqueue("mail", jobs("c")))
    update(url, warehouse)
    assert {"a", "b"} == {id for _, id, _ in rows(warehouse, "live")}
    update(url, warehouse, queues=["mail"])

    assert {"a", "b", "c"} == {id for _, id, _ in rows(warehouse, "live")}


@pytest.mark.parametrize("name", ["queues", "attributes"])
def test_a_text_is_no_list_of_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match=f"{name} is 'mail'; pass a list"):
        update(f"file:{tmp_path}/jobs", tmp_path / "warehouse", **{name: "mail"})  # type: ignore[arg-type]
