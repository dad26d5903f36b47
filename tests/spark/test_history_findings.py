"""None"""

from __future__ import annotations

import re
from asyncio import to_thread
from collections.abc import Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from dibs.model.job import JobData, NewJob, Slot
from dibs.model.requests import EnqueueRequest, SettingsPatch, StartRate
from dibs.model.results import ExportRecord
from dibs.spark.connection import StorageConnection
from dibs.spark.history import increments
from dibs.spark.history.storage_reads import live_record_pages
from dibs.spark.history.tables import IDS_COLUMNS, LIVE_COLUMNS, METRICS_COLUMNS
from dibs.spark.history.warehouse import Warehouse
from dibs.spark.report.figures.capacity import advise, busiest_hour, simulate_wait_p95
from dibs.spark.report.figures.findings import Outage, find_outages, find_poison_ids, merge_outages
from dibs.storage.registry import open_storage
from tests.source import PROJECT
from tests.spark import expected_history
from tests.spark.random_day import QUEUES, RandomDay
from tests.spark.storage_contents import all_events, all_slots
from tests.spark.warehouse_rows import rows

MINUTE = 60_000


def minute(n: int, *, claims: int = 0, attempts: int = 0, due: int = 0, stalled: int = 0) -> dict[str, Any]:
    return {
        "minute": n * MINUTE, "claims": claims, "attempts": attempts, "backlog_due": due, "stalled": stalled,
        "arrivals": claims,
    }  # fmt: skip


def silent(*due: int) -> list[dict[str, Any]]:
    """Return a minute of work, minutes without work and with so many jobs due, and a minute of work with two
    stalls.
    """
    quiet = [minute(n, due=count) for n, count in enumerate(due, 1)]
    end = len(due) + 1
    return [minute(0, claims=1, attempts=1), *quiet, minute(end, claims=4, attempts=6, stalled=2)]


def test_silence_while_jobs_are_due_is_an_outage() -> None:
    (found,) = find_outages("mail", silent(1, 5, 9), 100)

    assert Outage(queues=("mail",), begin=MINUTE, end=4 * MINUTE, due=9, stalled=2) == found


@pytest.mark.parametrize(
    ("minutes", "usual_run_ms"),
    [
        (silent(1, 5), 100),
        (silent(0, 0, 0, 0), 100),
        (silent(1, 5, 9, 9), 2 * MINUTE),
        ([minute(n, due=5) for n in (0, 2, 4, 6)], 100),
        ([minute(n, attempts=1, due=5) for n in range(9)], 100),
    ],
    ids=["short", "nothing due", "runs are long", "not one stretch", "something ends"],
)
def test_other_silence_is_no_outage(minutes: list[dict[str, Any]], usual_run_ms: int) -> None:
    assert [] == find_outages("mail", minutes, usual_run_ms)


def test_the_silence_that_the_rate_of_a_queue_causes_is_no_outage() -> None:
    """A queue that starts a run every ten minutes is silent for nine, also with a backlog."""
    minutes = [minute(n, claims=int(n % 10 == 0), due=50) for n in range(60)]

    assert 6 == len(find_outages("mail", minutes, 100))
    assert [] == find_outages("mail", minutes, 100, StartRate(starts=6, per=60 * MINUTE))
    # A pause of more than three times the pace is still an outage.
    assert 1 == len(find_outages("mail", silent(*[5] * 40), 100, StartRate(starts=6, per=60 * MINUTE)))


def test_slots_do_not_make_a_rate_faster() -> None:
    jobs = [(0, 10)] * 20

    slow = [simulate_wait_p95(jobs, slots, StartRate(starts=1, per=100)) for slots in (1, 20)]
    burst = simulate_wait_p95(jobs, 20, StartRate(starts=1, per=100, burst=20))

    assert ([1800, 1800], 0) == (slow, burst)
    advice = advise(jobs, (0, 3_600_000), 1_000, 1, rate=StartRate(starts=1, per=100))
    assert advice is not None
    assert advice.slots is None


def test_queues_that_are_silent_together_are_one_outage() -> None:
    def outage(queue: str, begin: int, end: int) -> Outage:
        return Outage(queues=(queue,), begin=begin * MINUTE, end=end * MINUTE, due=3)

    both, other = merge_outages([outage("b", 11, 40), outage("a", 10, 40), outage("a", 50, 55)])

    assert (("a", "b"), 10 * MINUTE, 40 * MINUTE, 6) == (both.queues, both.begin, both.end, both.due)
    assert (("a",), 50 * MINUTE) == (other.queues, other.begin)


def ids_row(id: str, attempts: int, **ends: int) -> dict[str, Any]:
    return {
        "id": id, "attempts": attempts, "completed": 0, "failed": 0, "retried": 0, "stalled": 0,
        "timed_out": 0, **ends,
    }  # fmt: skip


def test_an_id_that_fails_nearly_every_time_is_poison() -> None:
    rows = [
        ids_row("bad", 12, failed=4, retried=8),
        ids_row("kills its process", 6, stalled=6),
        ids_row("unlucky", 10, completed=5, retried=5),
        ids_row("young", 4, failed=4),
    ]

    found = find_poison_ids("mail", rows, 24)

    assert ["bad", "kills its process"] == [poison.id for poison in found]
    assert (0.5, {"failed": 4, "retried": 8}) == (found[0].share, found[0].bad)


def test_the_simulation_waits_for_free_slots() -> None:
    jobs = [(0, 100), (0, 100), (0, 100), (250, 10)]

    assert [200, 100, 0] == [simulate_wait_p95(jobs, slots) for slots in (1, 2, 3)]


def test_the_advice_is_the_fewest_slots_that_meet_the_target() -> None:
    random = Random(3)
    jobs = sorted((random.randrange(3_600_000), random.randrange(10, 30_000)) for _ in range(3000))

    found = advise(jobs, (0, 3_600_000), 1_000, 9)

    assert found is not None
    assert found.slots is not None
    assert simulate_wait_p95(jobs, found.slots) <= 1_000 < simulate_wait_p95(jobs, found.slots - 1)
    assert (found.slots * 10, -(-found.slots // 10)) == (found.units, found.processes)
    assert list(found.curve) == sorted(found.curve)
    assert [wait for _, wait in found.curve] == sorted((wait for _, wait in found.curve), reverse=True)


@pytest.mark.parametrize(
    ("size", "units", "processes"),
    [(None, 480, 5), (10, 480, 5), (2, 96, 1), (30, 1440, 16), (100, 4800, 48)],
)
def test_the_advice_uses_the_declared_size(size: int | None, units: int, processes: int) -> None:
    """A process of 100 units has room for 3 runs of 30 units, not for 3.3."""
    found = advise([(0, 1000)] * 50, (0, 3_600_000), 1, 9, size)

    assert found is not None
    assert (48, size) == (found.slots, found.size)
    assert (units, processes) == (found.units, found.processes)


def test_the_busiest_hour_is_the_one_with_most_arrivals() -> None:
    minutes = [minute(n, claims=1 + 5 * (100 <= n < 160)) for n in range(300)]

    assert (100 * MINUTE, 160 * MINUTE) == busiest_hour(minutes)


def test_without_attempts_there_is_no_advice() -> None:
    assert advise([], (0, 1), 1_000, 0) is None


# -- The reference of the warehouse's tables names exactly their columns -----------------------------


PAGE = (PROJECT / "docs/reference/warehouse.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("table", "columns"),
    [("metrics", METRICS_COLUMNS), ("ids", IDS_COLUMNS), ("live", LIVE_COLUMNS)],
    ids=["metrics", "ids", "live"],
)
def test_the_page_names_the_columns_of(table: str, columns: dict[str, str]) -> None:
    section = PAGE.partition(f"\n## {table}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)

    assert sorted(columns) == sorted(name for row in rows for name in re.findall(r"`(\w+)`", row))


# -- Increments that read only some queues of a warehouse: the other queues keep their rows ----------


async def test_an_increment_of_one_queue_keeps_the_live_jobs_of_the_others(tmp_path: Path) -> None:
    """The minutes of the other queues go on with the jobs that were live at their last read."""
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage)
        await day.prepare()
        await day.advance(90)
        await to_thread(increments.update, url, warehouse)
        read = [(queue, event) for queue, _, event in await all_events(storage)]
        live = await all_slots(storage)
        await day.advance(40)
        await to_thread(increments.update, url, warehouse, [QUEUES[0]])
        read += [
            (queue, event)
            for queue, _, event in await all_events(storage)
            if queue == QUEUES[0] and (queue, event) not in read
        ]
        live = [slot for slot in live if slot[0] == QUEUES[1]] + [
            slot for slot in await all_slots(storage) if slot[0] == QUEUES[0]
        ]
        horizon = Warehouse(warehouse).state.horizon

        assert expected_history.metrics(read, live, horizon) == rows(warehouse, "metrics", "queue", "minute")

        await to_thread(increments.update, url, warehouse)
        events, live = await all_events(storage), await all_slots(storage)
    pairs = [(queue, event) for queue, _, event in events]
    horizon = Warehouse(warehouse).state.horizon

    assert expected_history.metrics(pairs, live, horizon) == rows(warehouse, "metrics", "queue", "minute")
    assert expected_history.ids(pairs) == rows(warehouse, "ids", "queue", "id")


# -- The live jobs, read while jobs are enqueued, end and return. These tests do not start Spark -----


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
