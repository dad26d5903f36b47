"""Random jobs of Postgres, read as columns and row by row."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Fail, RetryLater, SettleAction, Settlement
from dibs.spark.schemas import select_columns, struct_type
from dibs.spark.source import batch_reader
from dibs.spark.source.batch_reader import PushdownReader
from dibs.spark.source.options import read_options
from dibs.storage.protocol import Storage
from tests.spark.source_storages import at
from tests.storage_urls import new_url


async def fill_random(storage: Storage, seed: int) -> None:
    """Fill a queue with jobs of random fields, and claim, end and follow up random ones of them."""
    random = Random(seed)
    ids = [f"id {number}" for number in range(120)]
    for _ in range(3):
        chosen = random.sample(ids, 60)
        await storage.enqueue("random", [random_request(random, id) for id in chosen])
        lease = (await storage.grant(["random"], 600_000, random.choice(("h", "\u00e9'")))).lease
        claimed = (await storage.claim("random", lease, 25)).jobs
        ended = random.sample([job for job in claimed if job.run], len(claimed) // 2)
        settled = [Settlement(id=j.id, fence=j.run.fence, action=random_end(random)) for j in ended if j.run]
        await storage.settle("random", settled)
    await storage.cancel("random", random.sample(ids, 20))


def random_request(random: Random, id: str) -> EnqueueRequest:
    payload = random.choice((b"", b"{}", b"[1, 2]", b"\xff", b'"\xc3\xa9"', b"nan", b"1" * 300))
    attributes = random.choice(({}, {}, {"n": b"1"}, {"text": b'"a\\"b"'}))
    data = JobData(payload=payload, attributes=attributes, priority=random.randint(-100, 100))
    return EnqueueRequest(job=NewJob(id=id, data=data, run_at=random.choice((None, 0, 1, 2**47))))


def random_end(random: Random) -> SettleAction:
    error = random.choice((None, Error(type="E", message="m"), Error(type="E", message="", traceback="t")))
    ends: tuple[SettleAction, ...] = (
        Complete(result=random.choice((None, b"1", b"\xff"))),
        Fail(error=error or Error(type="F", message="")),
        RetryLater(delay=random.choice((0, 10**7)), error=error),
    )
    return random.choice(ends)


@pytest.mark.parametrize("seed", range(3))
def test_columns_of_random_jobs_are_those_of_the_rows(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The types, the nulls, and the times with their zones are equal, for all columns and for some."""
    url = new_url("postgresql", request)
    at(url, lambda storage: fill_random(storage, seed))
    choices = [
        (name, sorted(Random(seed).sample(struct_type(name).names, width)))
        for name in ("jobs", "outcomes")
        for width in (1, 3, 9, len(struct_type(name)))
    ]
    as_columns = [batches_of(url, name, names) for name, names in choices]
    monkeypatch.setattr(batch_reader, "has_arrow_driver", lambda: False)

    for columns, (name, names) in zip(as_columns, choices, strict=True):
        rows = batches_of(url, name, names)
        assert len(columns) >= 20, name
        assert rows.schema == columns.schema
        assert key_sorted(rows) == key_sorted(columns), names


def batches_of(url: str, name: str, names: list[str]) -> pa.Table:
    """Read some columns of a table in this process."""
    reader = PushdownReader(read_options({"url": url, "table": name}), select_columns(name, names))
    return pa.Table.from_batches([batch for part in reader.partitions() for batch in reader.read(part)])


def key_sorted(rows: pa.Table) -> list[str]:
    return sorted(repr(row) for row in rows.to_pylist())
