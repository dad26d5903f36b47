"""The log as a stream: each event exactly once, even if processes are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import psutil
import pytest
from pyspark.errors import StreamingQueryException

from dibs.spark.schemas import struct_type
from dibs.spark.source.options import stream_options
from dibs.spark.source.stream_reader import EventStreamReader
from tests.spark.source_storages import SHARED, at, log, records, run_some, wait_until
from tests.spark.source_stream import BATCH, SINKS, commits, finished, followed, into
from tests.storage_urls import new_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "tests.spark.source_stream"]


def run_jobs(url: str, first: int, last: int, queue: str = "work") -> None:
    ids = [f"id {number}" for number in range(first, last)]
    for start in range(0, len(ids), 500):
        part = ids[start : start + 500]
        at(url, lambda storage, part=part: run_some(storage, queue, part))  # type: ignore[misc]


def rows_in(spark: SparkSession, folder: Path) -> list[str]:
    return sorted(row.offset for row in spark.read.parquet(str(folder / "rows")).select("offset").collect())


def copies_in(url: str) -> list[str]:
    found = at(url, lambda storage: records(storage, "copies"))
    payloads = [
        json.loads(record.slot.current.data.payload) for record in found.values() if record.slot.current
    ]
    return sorted(payload["offset"] for payload in payloads)


def offsets_in(url: str) -> list[str]:
    return [offset for offset, _ in at(url, lambda storage: log(storage, "work"))]


def test_max_events_bounds_a_micro_batch_of_more_queues(tmp_path: Path) -> None:
    """Seven queues with 4 events each, and batches of 3 events: no queue has to wait for ever."""
    url, names = f"file:{tmp_path}/jobs", [f"q{number}" for number in range(7)]
    for name in names:
        run_jobs(url, 0, 4, name)
    lengths = {name: [offset for offset, _ in at(url, lambda s, n=name: log(s, n))] for name in names}  # type: ignore[misc]
    options = stream_options({"url": url, "max_events": "3"})
    reader = EventStreamReader(options, struct_type("events"))
    position, sizes = reader.initialOffset(), list[int]()
    while True:
        end = reader.latestOffset(position, reader.getDefaultReadLimit())
        if end == position:
            break
        sizes.append(sum(position[name] < offset <= end[name] for name in names for offset in lengths[name]))
        position = end

    assert max(sizes) <= 3
    assert sum(map(len, lengths.values())) == sum(sizes)


@pytest.mark.parametrize("scheme", SHARED)
@pytest.mark.parametrize("queues", [1, 2, 5])
def test_a_micro_batch_is_split_and_reads_each_event_once(
    request: pytest.FixtureRequest, scheme: str, queues: int
) -> None:
    """Up to four partitions, and one for each of more queues. The log is cut by the times of its events."""
    url, names = new_url(scheme, request), [f"q{number}" for number in range(queues)]
    for name, begin in product(names, range(0, 40, 5)):
        run_jobs(url, begin, begin + 5, name)
    options = stream_options({"url": url, "minPartitions": "4"})
    reader = EventStreamReader(options, struct_type("events"))
    start, end = reader.initialOffset(), reader.reportLatestOffset()
    parts = reader.partitions(start, end)
    found = [
        (name, offset)
        for part in parts
        for batch in reader.read(part)
        for name, offset in zip(batch["queue"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    ]

    written = [(name, offset) for name in names for offset, _ in at(url, lambda s, n=name: log(s, n))]  # type: ignore[misc]
    assert sorted(written) == sorted(found)
    # How many parts there are depends on the times of the events.
    assert max(queues, 2) <= len(parts) <= max(queues, 4)
    assert [] == reader.partitions(end, end)


@pytest.mark.parametrize("scheme", SHARED)
def test_a_query_continues_at_its_checkpoint(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, scheme: str
) -> None:
    url = new_url(scheme, request)
    for first, last in ((0, 30), (30, 45)):
        run_jobs(url, first, last)
        events = followed(spark, url, startingOffsets="earliest", maxOffsetsPerTrigger=20, minPartitions=3)
        finished(partial(into, "parquet", events, url, tmp_path, availableNow=True))

    assert offsets_in(url) == rows_in(spark, tmp_path)
    assert 3 == commits(tmp_path, "parquet")


def test_a_query_can_start_at_the_latest_offset_and_reads_new_queues_whole(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """With start=latest a query over all queues skips old events, but reads a new queue from its start."""
    url = new_url("redis", request)
    run_jobs(url, 0, 10)
    every = spark.readStream.format("dibs").options(url=url, table="runs", start="latest").load()
    finished(partial(into, "parquet", every, url, tmp_path, availableNow=True))
    run_jobs(url, 10, 13)
    run_jobs(url, 0, 5, "late")

    finished(partial(into, "parquet", every, url, tmp_path, availableNow=True))

    found = spark.read.parquet(str(tmp_path / "rows")).select("queue", "id").collect()
    new = [("late", f"id {n}") for n in range(5)] + [("work", f"id {n}") for n in range(10, 13)]
    assert new == sorted(map(tuple, found))


def test_the_checkpoint_of_another_queue_is_refused(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = new_url("file", request)
    run_jobs(url, 0, 3)
    finished(partial(into, "parquet", followed(spark, url), url, tmp_path, availableNow=True))

    other = followed(spark, url, queue="mail")

    with pytest.raises(StreamingQueryException, match="checkpoint belongs to a query on work"):
        finished(partial(into, "parquet", other, url, tmp_path, availableNow=True))


@contextmanager
def streaming(url: str, folder: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run both streams in a child process, which is killed at the end with all its children."""
    command, variables = [*PROGRAM, url, str(folder)], {**os.environ, **env}
    with (folder / "program.log").open("ab") as output:
        program = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=output)
        try:
            yield program
        finally:
            kill_family(program)


def kill_family(program: subprocess.Popen[bytes]) -> None:
    try:
        top = psutil.Process(program.pid)
        family = [*top.children(recursive=True), top]
    except psutil.NoSuchProcess:
        family = []
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    program.wait()
    psutil.wait_procs(family)


def kill_once(url: str, folder: Path, env: Mapping[str, str]) -> None:
    """Kill the streams after both have committed a micro-batch."""
    before = {sink: commits(folder, sink) for sink in SINKS}

    def both_committed() -> bool:
        return all(commits(folder, sink) > before[sink] for sink in SINKS)

    while not both_committed():
        with streaming(url, folder, env) as program:
            # If the program ends by itself, the loop starts it again.
            wait_until(lambda: both_committed() or program.poll() is not None, 600)


def check_after_kills(
    spark: SparkSession,
    url: str,
    folder: Path,
    kills: int,
    events: int,
    env: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Each event is exactly once in the Parquet files, and exactly one job in the queue."""
    run_jobs(url, 0, events)

    for _ in range(kills):
        kill_once(url, folder, env)
    assert all(commits(folder, sink) < events // BATCH for sink in SINKS), "killed too late to mean anything"
    for sink in SINKS:
        finished(partial(into, sink, followed(spark, url), url, folder, availableNow=True))

    expected = offsets_in(url)
    assert events == len(expected)
    assert expected == rows_in(spark, folder)
    assert expected == copies_in(url)


def test_a_kill_neither_loses_nor_repeats_an_event(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    check_after_kills(spark, new_url("redis", request), tmp_path, kills=1, events=3000)
