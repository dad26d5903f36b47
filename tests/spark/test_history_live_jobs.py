"""Who is live, read while jobs come, go and come back. No Spark is started for that."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from dibs.model.job import JobData, NewJob, Slot
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.model.results import ExportRecord
from dibs.spark.connection import StorageConnection
from dibs.spark.history.live_jobs import live_record_pages
from dibs.storage.registry import open_storage
from tests.spark.small_day import QUEUES, RandomDay
from tests.spark.storage_contents import all_events, all_slots

T = TypeVar("T")

Key = tuple[str, int]


class Moving(StorageConnection):
    """A door behind which something happens before every answer."""

    def __init__(self, day: RandomDay, steps: int) -> None:
        super().__init__("memory:")
        self.day, self.storage, self.steps = day, day.storage, steps
        self.asked = 0

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        self.asked += 1
        super().run(self.day.live(self.steps))
        return super().run(call)


@pytest.fixture
def connection() -> Iterator[Moving]:
    storage = open_storage("memory:", clock="manual")
    with Moving(RandomDay(storage), 0) as connection:
        yield connection


def live_in(slots: list[tuple[str, Slot]], queue: str) -> set[Key]:
    """The jobs of a queue, each known by its id and the first enqueue in its range."""
    return {
        key for name, slot in slots if name == queue and slot.current for key in keys(slot.current.id, slot)
    }


def keys(id: str, slot: Slot) -> Iterator[Key]:
    yield from ((id, job.first) for job in (slot.current, slot.successor) if job is not None)


def latest(pages: list[tuple[ExportRecord, ...]]) -> set[Key]:
    """What is live by the latest reading of each id."""
    slots = {record.id: record.slot for page in pages for record in page}
    return {key for id, slot in slots.items() for key in keys(id, slot)}


@pytest.mark.parametrize("seed", range(20))
def test_who_is_live_all_the_while_is_met(
    connection: Moving, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever moves between any two pages, and whether the log tells much or only the ends."""
    monkeypatch.setattr("dibs.spark.source.batch_reader.PAGE", 2)
    connection.day.chance.seed(seed)
    run = super(Moving, connection).run
    run(connection.day.prepare(everything="mail"))
    for queue in QUEUES:
        run(connection.day.live(60))
        before = live_in(run(all_slots(connection.storage)), queue)
        connection.steps = 3
        read = latest([tuple(page) for page in live_record_pages(connection, queue, is_logged=True)])
        connection.steps = 0
        after = live_in(run(all_slots(connection.storage)), queue)
        over = [event for name, _, event in run(all_events(connection.storage)) if name == queue]

        assert before & after <= read
        assert {id for id, _ in read - after} <= {event.id for event in over}


def test_of_jobs_that_ended_nothing_is_read(connection: Moving) -> None:
    ids = [f"id {number}" for number in range(500)]
    run = connection.run
    run(
        connection.storage.enqueue(
            "mail", [EnqueueRequest(job=NewJob(id=id, data=JobData(payload=b"1"))) for id in ids], now=1
        )
    )
    run(connection.storage.cancel("mail", ids[1:], now=2))
    connection.asked = 0

    assert [["id 0"]] == [
        [r.id for r in page] for page in live_record_pages(connection, "mail", is_logged=True) if page
    ]
    assert connection.asked < 10


def test_a_log_that_tells_nothing_is_no_help(connection: Moving) -> None:
    """Then everything is read, as a job that comes back between two states could be missed."""
    run = super(Moving, connection).run
    run(connection.storage.configure("mail", SettingsPatch(log_level="off"), now=1))
    run(connection.storage.enqueue("mail", [EnqueueRequest(job=NewJob(id=id)) for id in "abc"], now=1))
    run(connection.storage.cancel("mail", ["b"], now=2))

    (page,) = live_record_pages(connection, "mail", is_logged=False)
    assert ["a", "b", "c"] == sorted(record.id for record in page)
