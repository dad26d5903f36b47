"""The live jobs, read while jobs are enqueued, end and return. These tests do not start Spark."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from dibs.model.job import JobData, NewJob, Slot
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.model.results import ExportRecord
from dibs.spark.connection import StorageConnection
from dibs.spark.history.storage_reads import live_record_pages
from dibs.storage.registry import open_storage
from tests.spark.random_day import QUEUES, RandomDay
from tests.spark.storage_contents import all_events, all_slots

T = TypeVar("T")

Key = tuple[str, int]


class ChangingConnection(StorageConnection):
    """A connection that applies random operations to the storage before every call."""

    def __init__(self, day: RandomDay, steps: int) -> None:
        super().__init__("memory:")
        self.day, self.storage, self.steps = day, day.storage, steps
        self.calls = 0

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        self.calls += 1
        super().run(self.day.advance(self.steps))
        return super().run(operation)


@pytest.fixture
def connection() -> Iterator[ChangingConnection]:
    storage = open_storage("memory:", clock="manual")
    with ChangingConnection(RandomDay(storage), 0) as connection:
        yield connection


def live_in(slots: list[tuple[str, Slot]], queue: str) -> set[Key]:
    """Return the live jobs of a queue, each identified by its id and the first revision of its range."""
    return {
        key for name, slot in slots if name == queue and slot.current for key in keys(slot.current.id, slot)
    }


def keys(id: str, slot: Slot) -> Iterator[Key]:
    yield from ((id, job.first) for job in (slot.current, slot.successor) if job is not None)


def latest(pages: list[tuple[ExportRecord, ...]]) -> set[Key]:
    """Return the live jobs by the last record of each id."""
    slots = {record.id: record.slot for page in pages for record in page}
    return {key for id, slot in slots.items() for key in keys(id, slot)}


@pytest.mark.parametrize("seed", range(20))
def test_a_job_that_is_live_during_the_whole_read_is_read(
    connection: ChangingConnection, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random changes between two pages, with the log levels `all` and `runs`."""
    monkeypatch.setattr("dibs.spark.source.pages.PAGE", 2)
    connection.day.random.seed(seed)
    run = super(ChangingConnection, connection).run
    run(connection.day.prepare(all_events_of="mail"))
    for queue in QUEUES:
        run(connection.day.advance(60))
        before = live_in(run(all_slots(connection.storage)), queue)
        connection.steps = 3
        read = latest([tuple(page) for page in live_record_pages(connection, queue, is_logged=True)])
        connection.steps = 0
        after = live_in(run(all_slots(connection.storage)), queue)
        over = [event for name, _, event in run(all_events(connection.storage)) if name == queue]

        assert before & after <= read
        assert {id for id, _ in read - after} <= {event.id for event in over}


def test_jobs_that_ended_are_not_read(connection: ChangingConnection) -> None:
    ids = [f"id {number}" for number in range(500)]
    run = connection.run
    run(
        connection.storage.enqueue(
            "mail", [EnqueueRequest(job=NewJob(id=id, data=JobData(payload=b"1"))) for id in ids], now=1
        )
    )
    run(connection.storage.cancel("mail", ids[1:], now=2))
    connection.calls = 0

    assert [["id 0"]] == [
        [r.id for r in page] for page in live_record_pages(connection, "mail", is_logged=True) if page
    ]
    assert connection.calls < 10


def test_without_a_log_all_ids_are_read(connection: ChangingConnection) -> None:
    """All ids are read then, as the listings could miss a job that returns to an earlier state."""
    run = super(ChangingConnection, connection).run
    run(connection.storage.configure("mail", SettingsPatch(log_level="off"), now=1))
    run(connection.storage.enqueue("mail", [EnqueueRequest(job=NewJob(id=id)) for id in "abc"], now=1))
    run(connection.storage.cancel("mail", ["b"], now=2))

    (page,) = live_record_pages(connection, "mail", is_logged=False)
    assert ["a", "b", "c"] == sorted(record.id for record in page)
