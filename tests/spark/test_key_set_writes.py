"""Writes to a storage with key sets: repeated attempts, attempts at the same time, and lost replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from dibs.errors import OutcomeUnknown
from dibs.model.request_columns import RequestColumns
from dibs.model.requests import SettingsPatch
from dibs.model.results import EnqueueStatus
from dibs.spark.source import partition_writer
from dibs.spark.source.options import write_options
from dibs.spark.source.partition_writer import WriteTask, write_partition
from dibs.spark.write_report import PartitionReport
from dibs.storage.abilities import StoredMembers
from dibs.storage.postgres import PostgresStorage
from dibs.storage.postgres import key_sets as postgres_key_sets
from dibs.storage.redis import RedisStorage
from dibs.storage.redis import storage as redis_storage
from tests.spark.source_storages import at, jobs, records
from tests.storage_urls import new_url

ROWS = 2500


STORAGES: dict[str, type[PostgresStorage | RedisStorage]] = {
    "postgresql": PostgresStorage,
    "redis": RedisStorage,
}


@pytest.fixture(params=STORAGES)
def url(request: pytest.FixtureRequest) -> str:
    return new_url(request.param, request)


@pytest.fixture
def storage_class(url: str) -> Any:
    return STORAGES[url.partition(":")[0]]


def rows(first: int = 0, count: int = ROWS) -> list[pa.RecordBatch]:
    ids = [f"{number:05}" for number in range(first, first + count)]
    table = pa.table({"id": ids, "payload": [id.encode() for id in ids]})
    return list(table.to_batches(700))


def write(url: str, batches: Sequence[pa.RecordBatch], run: str = "run", attempt: int = 0) -> PartitionReport:
    return write_partition(write_options({"url": url, "queue": "work"}), WriteTask(run, 0, attempt), batches)


def stored(url: str) -> dict[str, int]:
    """Return the number of enqueues of each waiting job."""
    found = at(url, lambda storage: records(storage, "work"))
    return {id: record.slot.current.enqueues for id, record in found.items() if record.slot.current}


def once(count: int) -> dict[str, int]:
    return {f"{number:05}": 1 for number in range(count)}


def test_an_attempt_after_a_part_enqueues_the_rest(url: str) -> None:
    first = write(url, rows(count=1000))
    again = write(url, rows(), attempt=1)

    assert (1000, 0) == (first.rows, first.repeated)
    assert (ROWS, 1000, {"queued": ROWS}) == (again.rows, again.repeated, dict(again.statuses))
    assert once(ROWS) == stored(url)


def test_the_rows_of_an_attempt_may_come_in_another_order(url: str) -> None:
    write(url, rows())
    again = write(url, rows()[::-1], attempt=1)

    assert (ROWS, ROWS) == (again.rows, again.repeated)
    assert once(ROWS) == stored(url)


def test_a_repeated_row_has_the_status_of_its_first_enqueue(url: str) -> None:
    at(url, lambda storage: storage.enqueue("work", jobs("00001", "00002")))

    first = write(url, rows(count=10))
    again = write(url, rows(count=10), attempt=1)

    assert {"queued": 8, "updated": 2} == first.statuses == again.statuses
    assert 10 == again.repeated


def test_two_attempts_at_once_enqueue_each_row_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read the empty key set before one of them writes."""
    both, opened = Barrier(2), partition_writer.open_sink

    def open_together(*arguments: Any) -> Any:
        sink = opened(*arguments)
        both.wait(30)
        return sink

    monkeypatch.setattr("dibs.spark.source.partition_writer.open_sink", open_together)
    with ThreadPoolExecutor(2) as threads:
        reports = list(threads.map(lambda attempt: write(url, rows(), attempt=attempt), range(2)))

    assert [(ROWS, {"queued": ROWS})] * 2 == [(one.rows, dict(one.statuses)) for one in reports]
    assert ROWS == sum(one.repeated for one in reports)
    assert once(ROWS) == stored(url)


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_lost_call_enqueues_each_row_once(
    url: str, monkeypatch: pytest.MonkeyPatch, storage_class: Any, lost: str
) -> None:
    monkeypatch.setattr(partition_writer, "RETRY_DELAYS", (0.0,))
    send: Callable[..., Any] = storage_class.enqueue_batch
    calls = 0

    async def lose_second(storage: Any, *arguments: Any) -> Sequence[EnqueueStatus] | None:
        nonlocal calls
        calls += 1
        answer: Sequence[EnqueueStatus] | None = None
        if calls != 2 or lost == "reply":
            answer = await send(storage, *arguments)
        if calls == 2:
            raise OutcomeUnknown("the connection was lost")
        return answer

    monkeypatch.setattr(storage_class, "enqueue_batch", lose_second)
    report = write(url, rows())

    assert (ROWS, {"queued": ROWS}) == (report.rows, dict(report.statuses))
    assert once(ROWS) == stored(url)


def test_a_reply_that_is_lost_each_time_fails_the_write(
    url: str, storage_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_writer, "RETRY_DELAYS", (0.0, 0.0))
    attempts: list[int] = []

    async def lose(storage: Any, queue: str, name: str, number: int, *more: Any) -> None:
        attempts.append(number)
        raise OutcomeUnknown("the connection was lost")

    monkeypatch.setattr(storage_class, "enqueue_batch", lose)
    with pytest.raises(OutcomeUnknown):
        write(url, rows(count=10))

    assert [1, 1, 1] == attempts


def test_a_key_set_is_forgotten_after_the_age_of_request_keys(url: str) -> None:
    at(url, lambda storage: storage.configure("work", SettingsPatch(request_key_age=1)))

    write(url, rows(count=5))
    again = write(url, rows(count=5), attempt=1)

    assert (5, 0, {"updated": 5}) == (again.rows, again.repeated, dict(again.statuses))


def test_a_batch_is_remembered_after_the_first_one_was_pruned(url: str) -> None:
    """The numbers go on after the last batch that the set has, so none is used again."""
    set_age(url, 1)
    write(url, rows(count=5))
    set_age(url, 60_000)
    write(url, rows(count=5), attempt=1)
    at(url, lambda storage: storage.prune("work", 10))

    again = write(url, rows(count=5), attempt=2)

    assert (5, 5) == (again.rows, again.repeated)


def set_age(url: str, ms: int) -> None:
    at(url, lambda storage: storage.configure("work", SettingsPatch(request_key_age=ms)))


def test_a_key_set_that_expires_during_the_write_begins_again(url: str) -> None:
    set_age(url, 1)

    report = write(url, rows())

    assert (ROWS, 0, {"queued": ROWS}) == (report.rows, report.repeated, dict(report.statuses))
    assert once(ROWS) == stored(url)


def test_a_batch_is_remembered_if_the_age_gets_shorter(url: str) -> None:
    write(url, rows(count=5))
    set_age(url, 1)
    write(url, rows(count=8), attempt=1)
    set_age(url, 60_000)

    again = write(url, rows(count=5), attempt=2)

    assert (5, 5) == (again.rows, again.repeated)


def test_each_batch_is_sent_once(url: str, storage_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    send: Callable[..., Any] = storage_class.enqueue_batch

    async def count(storage: Any, queue: str, name: str, number: int, columns: RequestColumns) -> Any:
        sent.append((number, len(columns)))
        return await send(storage, queue, name, number, columns)

    monkeypatch.setattr(storage_class, "enqueue_batch", count)
    write(url, rows(count=1200))
    write(url, rows(count=1500), attempt=1)

    assert [(1, 700), (2, 500), (3, 200), (4, 100)] == sent


def test_a_key_set_of_many_batches_is_read_in_pages(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (postgres_key_sets, redis_storage):
        monkeypatch.setattr(module, "_PAGE", 2)
    write(url, rows())

    async def pages(storage: Any) -> list[StoredMembers]:
        return [await storage.read_key_set("work", "run/0", after=after) for after in (0, 2, 4)]

    first, second, third = at(url, pages)
    assert (1400, 2, True) == (len(first.statuses), first.number, first.more)
    # A full page may be the last one.
    assert (1100, 4) == (len(second.statuses), second.number)
    assert ({}, 4, False) == third
    assert ROWS == write(url, rows(), attempt=1).repeated
