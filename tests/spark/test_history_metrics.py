"""The definitions in SQL, run unchanged by Spark and DuckDB, against the plain computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from dibs.model.events import LogEvent
from dibs.model.job import Slot
from dibs.spark.history.duckdb_engine import add_sources, connect
from dibs.spark.history.increments import bounds
from dibs.spark.history.queries import statement
from dibs.spark.history.spark_engine import run_statement
from dibs.spark.history.tables import MINUTE, table_schema
from dibs.storage.registry import open_storage
from tests.spark import expected_history
from tests.spark.frames import LIVE, events_table, live_table, ms, starts_table
from tests.spark.random_day import BEGIN, QUEUES, RandomDay
from tests.spark.storage_contents import all_events, all_slots

Events = list[tuple[str, LogEvent]]
Live = list[tuple[str, Slot]]


def horizon_of(events: Events, live: Live) -> int:
    jobs = [slot.current for _, slot in live if slot.current]
    runs = [job.run.claimed_at for job in jobs if job.run]
    waiting = [job.enqueued_at for job in jobs] + [
        slot.successor.enqueued_at for _, slot in live if slot.successor
    ]
    return max([event.at for _, event in events] + runs + waiting)


Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(params=["duckdb", "spark"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a definition with tables of Arrow as sources, and return its rows."""

    def run_duckdb(name: str, table: str = "", **sources: pa.Table) -> list[dict[str, Any]]:
        with connect() as database:
            add_sources(database, sources)
            found: list[dict[str, Any]] = (
                database.sql(statement(name, *sources, table=table)).to_arrow_table().to_pylist()
            )
            return found

    def run_spark(name: str, table: str = "", **sources: pa.Table) -> list[dict[str, Any]]:
        spark = request.getfixturevalue("spark")
        frames = {source: spark.createDataFrame(rows) for source, rows in sources.items()}
        found: list[dict[str, Any]] = (
            run_statement(spark, statement(name, *sources, table=table), frames).toArrow().to_pylist()
        )
        return found

    return run_duckdb if request.param == "duckdb" else run_spark


def metrics_of(
    run: Run, events: pa.Table, live: pa.Table, starts: Mapping[str, int], horizon: int
) -> dict[tuple[str, int], dict[str, Any]]:
    rows = {}
    for row in run(
        "metrics",
        "metrics",
        events=events,
        live=live,
        old_live=LIVE.empty_table(),
        old_metrics=table_schema("metrics").empty_table(),
        starts=starts_table(starts),
        bounds=bounds(horizon),
    ):
        key = row.pop("queue"), ms(row.pop("minute"))
        assert key not in rows
        rows[key] = row
    return rows


@pytest.fixture
async def day() -> RandomDay:
    storage = open_storage("memory:", clock="manual")
    await storage.__aenter__()
    day = RandomDay(storage)
    await day.prepare(all_events_of="mail")
    await day.advance(800)
    return day


async def test_every_minute_has_the_expected_metrics(run: Run, day: RandomDay) -> None:
    events, live = await all_events(day.storage), await all_slots(day.storage)
    pairs = [(queue, event) for queue, _, event in events]
    horizon = horizon_of(pairs, live)
    kinds = {event.kind for _, event in pairs}

    found = metrics_of(run, events_table(events), live_table(live), dict.fromkeys(QUEUES, 0), horizon)

    assert set(expected_history.ENDS) <= kinds
    assert expected_history.metrics(pairs, live, horizon) == found


async def test_metrics_from_a_minute_on_need_only_later_events(run: Run, day: RandomDay) -> None:
    events, live = await all_events(day.storage), await all_slots(day.storage)
    pairs = [(queue, event) for queue, _, event in events]
    horizon = horizon_of(pairs, live)
    expected = expected_history.metrics(pairs, live, horizon)
    for share in (0.1, 0.7):
        start = sorted(minute for _, minute in expected)[int(len(expected) * share)]
        late = [row for row in events if row[2].at >= start]

        found = metrics_of(run, events_table(late), live_table(live), {"mail": start}, horizon)

        assert {k: v for k, v in expected.items() if k[0] == "mail" and k[1] >= start} == found


async def test_runs_and_ids_are_as_expected(run: Run, day: RandomDay) -> None:
    events = await all_events(day.storage)
    pairs = [(queue, event) for queue, _, event in events]
    columns = ("queue", "id", "attempt", "fence", "end", "wait_ms", "run_ms", "holder")
    runs = {tuple(row[name] for name in columns) for row in run("runs", "runs", events=events_table(events))}
    found = {}
    for row in run("ids", "ids", events=events_table(events)):
        values = {name: ms(v) if isinstance(v, datetime) else v for name, v in row.items()}
        found[values.pop("queue"), values.pop("id")] = values

    assert expected_history.runs(pairs) == runs
    assert expected_history.ids(pairs) == found


async def test_metrics_before_the_first_difference_are_unchanged(run: Run, day: RandomDay) -> None:
    """A job that was live and has ended since makes the same changes to the past as when it was live."""
    events, live = await all_events(day.storage), await all_slots(day.storage)
    old = expected_history.metrics([(queue, event) for queue, _, event in events], live, day.now)
    then = day.now
    await day.advance(150)
    later, now = await all_events(day.storage), await all_slots(day.storage)
    found = run(
        "changed",
        events=events_table([row for row in later if row not in events]),
        live=live_table(now),
        old_live=live_table(live),
        bounds=bounds(then, then),
    )
    starts = {row["queue"]: row["start"] // MINUTE * MINUTE for row in found}
    recounted = expected_history.metrics([(queue, event) for queue, _, event in later], now, day.now)

    assert set(QUEUES) == set(starts)
    assert min(starts.values()) > BEGIN + (then - BEGIN) // 2
    assert untouched(old, starts) == untouched(recounted, starts)


def untouched(rows: dict[tuple[str, int], Any], starts: dict[str, int]) -> dict[tuple[str, int], Any]:
    return {key: row for key, row in rows.items() if key[1] < starts[key[0]]}


def test_the_last_record_of_a_live_id_and_its_later_events_count(run: Run) -> None:
    read = [
        # Claimed between two pages.
        ("claimed", "waiting", 1, None, 0),
        ("claimed", "active", 1, 10, 1),
        # Returned between two pages, with its successor folded in.
        ("back", "active", 2, 11, 0),
        ("back", "blocked", 3, None, 0),
        ("back", "waiting", 2, None, 2),
        ("ended since", "active", 4, 12, 0),
        ("back since", "active", 5, 13, 0),
    ]
    events = [
        ("mail", "1", LogEvent(kind="completed", id="ended since", at=9, finished_at=9, first=4, fence=12)),
        ("mail", "2", LogEvent(kind="retried", id="back since", at=9, finished_at=9, first=5, fence=13)),
    ]
    schema = pa.schema([*LIVE, ("seen", pa.int64())])
    names = ("id", "state", "first", "fence", "seen")
    rows = [{"queue": "mail", **dict(zip(names, row, strict=True))} for row in read]
    live = run(
        "live",
        "live",
        live_read=pa.Table.from_pylist(rows, schema=schema),
        events=events_table(events),
        last_live=live_table([]),
        unread_queues=pa.table({"queue": pa.array([], pa.string())}),
    )

    assert {
        ("claimed", "active", 1, 10),
        ("back", "waiting", 2, None),
        ("back since", "waiting", 5, None),
    } == {tuple(row[name] for name in ("id", "state", "first", "fence")) for row in live}
