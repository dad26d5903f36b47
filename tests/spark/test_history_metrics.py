from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from dibs.model.events import LogEvent
from dibs.model.job import Slot
from dibs.spark.history.spark_engine.metrics import (
    changes_of_ended,
    changes_of_live,
    difference,
    ids_from,
    merge_ids,
    metrics_of,
    runs_from,
    union,
)
from dibs.spark.history.spark_engine.storage_sources import without_ended
from dibs.spark.history.tables import MINUTE
from dibs.storage.registry import open_storage
from tests.spark import expected_history
from tests.spark.frames import events_frame, live_frame, ms, starts_frame
from tests.spark.random_day import BEGIN, QUEUES, RandomDay
from tests.spark.storage_contents import all_events, all_slots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Events = list[tuple[str, LogEvent]]
Live = list[tuple[str, Slot]]


def horizon_of(events: Events, live: Live) -> int:
    jobs = [slot.current for _, slot in live if slot.current]
    runs = [job.run.claimed_at for job in jobs if job.run]
    waiting = [job.enqueued_at for job in jobs] + [
        slot.successor.enqueued_at for _, slot in live if slot.successor
    ]
    return max([event.at for _, event in events] + runs + waiting)


def rows_of(frame: DataFrame) -> dict[tuple[str, int], dict[str, Any]]:
    rows = {}
    for row in frame.collect():
        events = row.asDict()
        key = events.pop("queue"), ms(events.pop("minute"))
        assert key not in rows
        del events["date"]
        rows[key] = events
    return rows


@pytest.fixture
async def day() -> RandomDay:
    storage = open_storage("memory:", clock="manual")
    await storage.__aenter__()
    day = RandomDay(storage)
    await day.prepare(all_events_of="mail")
    await day.advance(800)
    return day


async def test_every_minute_has_the_expected_metrics(spark: SparkSession, day: RandomDay) -> None:
    events, live = await all_events(day.storage), await all_slots(day.storage)
    pairs = [(queue, event) for queue, _, event in events]
    horizon = horizon_of(pairs, live)
    kinds = {event.kind for _, event in pairs}

    found = metrics_of(
        events_frame(spark, events),
        live_frame(spark, live),
        starts_frame(spark, dict.fromkeys(QUEUES, 0)),
        horizon,
    )

    assert set(expected_history.ENDS) <= kinds
    assert expected_history.metrics(pairs, live, horizon) == rows_of(found)


async def test_metrics_from_a_minute_on_need_only_later_events(spark: SparkSession, day: RandomDay) -> None:
    events, live = await all_events(day.storage), await all_slots(day.storage)
    pairs = [(queue, event) for queue, _, event in events]
    horizon = horizon_of(pairs, live)
    expected = expected_history.metrics(pairs, live, horizon)
    for share in (0.1, 0.7):
        start = sorted(minute for _, minute in expected)[int(len(expected) * share)]
        late = [row for row in events if row[2].at >= start]

        found = metrics_of(
            events_frame(spark, late), live_frame(spark, live), starts_frame(spark, {"mail": start}), horizon
        )

        assert {k: v for k, v in expected.items() if k[0] == "mail" and k[1] >= start} == rows_of(found)


async def test_runs_and_ids_are_as_expected(spark: SparkSession, day: RandomDay) -> None:
    events = await all_events(day.storage)
    pairs = [(queue, event) for queue, _, event in events]
    columns = ("queue", "id", "attempt", "fence", "end", "wait_ms", "run_ms", "holder")
    runs = runs_from(events_frame(spark, events)).select(*columns).collect()
    half = len(events) // 2
    parts = (ids_from(events_frame(spark, part)) for part in (events[:half], events[half:]))
    ids = merge_ids(union(*parts, single=False))
    found = {}
    for row in ids.collect():
        values = {name: ms(v) if isinstance(v, datetime) else v for name, v in row.asDict().items()}
        del values["date"]
        found[values.pop("queue"), values.pop("id")] = values

    assert expected_history.runs(pairs) == {tuple(row) for row in runs}
    assert expected_history.ids(pairs) == found


async def test_metrics_before_the_first_difference_are_unchanged(spark: SparkSession, day: RandomDay) -> None:
    """A job that was live and has ended since makes the same changes to the past as when it was live."""
    events, live = await all_events(day.storage), await all_slots(day.storage)
    before = changes_of_live(live_frame(spark, live), day.now)
    old = expected_history.metrics([(queue, event) for queue, _, event in events], live, day.now)
    then = day.now
    await day.advance(150)
    later, now = await all_events(day.storage), await all_slots(day.storage)
    new = changes_of_ended(events_frame(spark, [row for row in later if row not in events]))
    found = difference(new.unionByName(changes_of_live(live_frame(spark, now), then)), before).collect()
    starts = {row["queue"]: row["start"] // MINUTE * MINUTE for row in found}
    recounted = expected_history.metrics([(queue, event) for queue, _, event in later], now, day.now)

    assert set(QUEUES) == set(starts)
    assert min(starts.values()) > BEGIN + (then - BEGIN) // 2
    assert untouched(old, starts) == untouched(recounted, starts)


def untouched(rows: dict[tuple[str, int], Any], starts: dict[str, int]) -> dict[tuple[str, int], Any]:
    return {key: row for key, row in rows.items() if key[1] < starts[key[0]]}


def test_the_last_record_of_a_live_id_and_its_later_events_count(spark: SparkSession) -> None:
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
    frame = spark.createDataFrame(read, "id string, state string, first long, fence long, seen long")
    never = f.timestamp_millis(f.lit(None).cast("long"))
    whole = dict.fromkeys(("enqueued_at", "due_at", "claimed_at"), never)
    data = dict.fromkeys(("key", "flow", "memo_bytes"), f.lit(None))
    live = without_ended(
        frame.withColumns({"queue": f.lit("mail"), "date": f.lit(None), **whole, **data}),
        events_frame(spark, events),
    )

    assert {
        ("claimed", "active", 1, 10),
        ("back", "waiting", 2, None),
        ("back since", "waiting", 5, None),
    } == {tuple(row) for row in live.select("id", "state", "first", "fence").collect()}
