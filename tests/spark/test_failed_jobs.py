"""Failed jobs are mended and enqueued again, once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from dibs.errors import Refused
from dibs.model.job import Error, JobData, NewJob, OutcomeRetention
from dibs.model.requests import Complete, EnqueueRequest, Fail, SettingsPatch, SettleAction, Settlement
from dibs.spark import read, replay
from dibs.storage.protocol import Storage
from tests.spark.source_storages import at, jobs, records
from tests.storage_urls import new_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FAILED = Fail(error=Error(type="KeyError", message="no"))


async def end_all(storage: Storage, **ends: SettleAction) -> None:
    """Claim all jobs of queue `work` and end them: as `ends` says for an id, else by failure."""
    lease = (await storage.grant(["work"], 600_000, "a test")).lease
    claimed = (await storage.claim("work", lease, 100)).jobs
    ended = [(job.id, job.run.fence) for job in claimed if job.run]
    settlements = [Settlement(id=id, fence=fence, action=ends.get(id, FAILED)) for id, fence in ended]
    await storage.settle("work", settlements)


def mended(rows: DataFrame) -> DataFrame:
    data = f.from_json(f.decode("payload", "utf-8"), "n bigint")
    return rows.withColumn("data", data.withField("n", data["n"] + 1)).drop("payload")


def test_a_repeated_replay_adds_no_job_twice(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("file", request)
    at(url, lambda storage: storage.enqueue("work", jobs("a", "b", "live", colour=b'"red"')))
    at(url, lambda storage: end_all(storage, b=Complete()))
    failed = spark.createDataFrame(read(spark, "outcomes", url=url).where("kind = 'failed'").toArrow())
    at(url, lambda storage: storage.enqueue("work", jobs("live", payload=b"7")))

    first = replay(failed, fix=mended, run="monday", url=url)

    slots = at(url, lambda storage: records(storage, "work"))
    waiting = {id: record.slot.current.data for id, record in slots.items() if record.slot.current}
    assert {"a": {"n": 2}, "live": 7} == {id: json.loads(data.payload) for id, data in waiting.items()}
    assert {"colour": b'"red"'} == dict(waiting["a"].attributes)
    assert [{"queued": 1, "duplicate": 1}] == [report.statuses for report in first]

    at(url, end_all)
    again = replay(failed.coalesce(1), fix=mended, run="monday", url=url)

    assert [2] == [report.repeated for report in again]
    assert not any(record.slot.current for record in at(url, lambda s: records(s, "work")).values())
    [info] = at(url, lambda storage: storage.queues())
    assert 7 * 86_400_000 == info.settings.request_key_age


def test_a_job_keeps_its_key(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("file", request)
    request_with_key = EnqueueRequest(job=NewJob(id="a", data=JobData(payload=b"1", key="ada")))
    at(url, lambda storage: storage.enqueue("work", [request_with_key]))
    at(url, end_all)
    failed = spark.createDataFrame(read(spark, "outcomes", url=url).toArrow())

    replay(failed, run="monday", url=url)
    current = at(url, lambda storage: records(storage, "work"))["a"].slot.current
    assert current is not None
    assert "ada" == current.data.key


def test_outcomes_without_data_are_refused(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("file", request)
    settings = SettingsPatch(retention=OutcomeRetention(keep_payload=()))
    at(url, lambda storage: storage.configure("work", settings))
    at(url, lambda storage: storage.enqueue("work", jobs("a")))
    at(url, end_all)

    with pytest.raises(Refused, match="1 outcomes of queue 'work' have no payload"):
        replay(read(spark, "outcomes", url=url), run="monday", url=url)
    with pytest.raises(Refused, match="failed has no column payload"):
        replay(read(spark, "outcomes", url=url).drop("payload"), run="monday", url=url)
